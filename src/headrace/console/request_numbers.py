"""What a request asks for: the numbers in its address."""

from __future__ import annotations

from starlette.requests import Request

from headrace.errors import UsageError
from headrace.insight.run_cache import MOST_SECONDS, SINCE

DEFAULT_POINTS = 400
_DIGITS = 15  # of a number that says how many


def stretch(request: Request) -> tuple[float | None, float | None, int]:
    """Returns start and end of what is asked for, seconds since the epoch, and in how many points."""
    return number(request, "start"), number(request, "end"), count(request, "points") or DEFAULT_POINTS


def count(request: Request, name: str) -> int | None:
    """Returns a whole number; None where it is not named."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal() or len(text) > _DIGITS:
        raise UsageError(f"{name} is {text[:80]!r}, which is not a whole number", hint=f"for example {name}=100")
    return int(text)


def number(request: Request, name: str) -> float | None:
    """Returns a number; None where it is not named."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < MOST_SECONDS:
        raise UsageError(f"{name} is {text!r}, which is not a number", hint=SINCE)
    return value
