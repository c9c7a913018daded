"""Which log lines are shown: those with a pattern, those since a time, the last so many."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.runs import LogLine

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def age_seconds(text: str) -> float | None:
    """Returns the seconds of an age: ``30s``, ``10m``, ``2h``, ``1d``; None for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def parse_since(text: str, now: float) -> float:
    """Returns a time in seconds since the epoch.

    >>> parse_since("10m", now=1000.0), parse_since("1970-01-01T00:01:00Z", now=0.0)
    (400.0, 60.0)

    Args:
        text: so long ago (``30s``, ``10m``, ``2h``, ``1d``), or a time in ISO 8601 (UTC if it names no zone).
        now: seconds since the epoch.

    Raises:
        UsageError: it is neither.
    """
    age = age_seconds(text)
    if age is not None:
        return now - age
    try:
        when = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        raise UsageError(
            f"--since {text!r} is not a time", hint="for example --since 10m, or --since 2026-11-20T19:01:02Z"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


class LogFilter:
    """Lets some lines through.

    Args:
        show: gets the lines that are shown.
        pattern: regular expression that is searched in the text of a line; empty for every line.
        since: lines before this time are left out; None for all.
        tail: of the lines that are there at first, show the last so many only; None for all.

    Raises:
        UsageError: the pattern is not a regular expression.
    """

    def __init__(
        self, show: Callable[[LogLine], None], pattern: str = "", since: str | None = None, tail: int | None = None
    ) -> None:
        self._show = show
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"--grep {pattern!r} is not a regular expression: {error}",
                hint="write \\( for a parenthesis, and so on",
            ) from None
        self._since = float("-inf") if since is None else parse_since(since, time.time())
        self._first: deque[LogLine] | None = None if tail is None else deque(maxlen=tail)

    def take(self, lines: Iterable[LogLine]) -> None:
        """Takes lines in the order of time."""
        for line in lines:
            if line.t < self._since or not self._pattern.search(line.text):
                continue
            if self._first is None:
                self._show(line)
            else:
                self._first.append(line)

    def caught_up(self) -> None:
        """All lines that were there at first have been taken."""
        first, self._first = self._first, None
        for line in first or ():
            self._show(line)
