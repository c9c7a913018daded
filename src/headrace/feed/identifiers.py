"""Numbers of the feed: the kinds that name things, so that one cannot be taken for another, which count from 1; and
what one may be that a user gave, or that was read from a state that may be damaged. Names of environment variables,
and the rank of this process.

The standard library only: the probe of `headrace doctor` loads this file into scripts without headrace."""

from __future__ import annotations

import math
import numbers
import operator
import os
import sys
from collections.abc import Sequence
from typing import Any, NewType, SupportsIndex, TypeVar, cast

T = TypeVar("T")

WorkerNumber = NewType("WorkerNumber", int)
"""A worker of one session."""

RequestNumber = NewType("RequestNumber", int)
"""A request of one side of a connection; answers repeat it."""

SlabNumber = NewType("SlabNumber", int)
"""A slab of one client, or of a feed server; 0 for none."""

PipelineNumber = NewType("PipelineNumber", int)
"""A pipeline of one connection, or of a feed server."""

RouteNumber = NewType("RouteNumber", int)
"""Whom a frame concerns on a link that several workers share, see `Worker.route`; 0 on other links."""

NO_SLAB = SlabNumber(0)
NO_ROUTE = RouteNumber(0)

MAX_JOB = 128  # characters of a job's name
FEED_VARIABLE = "HEADRACE_FEED"
SECRET_VARIABLE = "HEADRACE_FEED_SECRET_FILE"
CA_VARIABLE = "HEADRACE_FEED_TLS_CA"

LIMIT = 2**63  # numbers fit into 64 bits wherever they are sent and written


def whole(name: str, value: object) -> int:
    """Returns a number as an int. Raises TypeError, which names it, if it is not a whole one."""
    number = _index(value)
    if number is None:
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return number


def _index(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(cast(SupportsIndex, value))
    except TypeError:
        return None


def require_count(name: str, value: int) -> None:
    """Raises ValueError, which names it, if nothing can have counted to a number."""
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    if value >= LIMIT:
        raise ValueError(f"{name} must be below 2**63, got {value}")


def positive(name: str, value: object) -> int:
    """Returns a number as an int. Raises ValueError, which names it, unless it is a whole one of at least 1."""
    number = _index(value)
    if number is None or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return number


def real(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """Returns a number as a Python one. Raises ValueError, which names it, unless it is one in [`least`, `most`]."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not least <= cast(float, value) <= most:  # nan is not
        bounds = "" if least == -math.inf else f" of at least {least:g}"
        bounds += "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{name} must be a number{bounds}, got {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def one_of(name: str, value: T, choices: Sequence[str | None]) -> T:
    """Returns a value as it is. Raises ValueError, which names it and what is allowed, if it is none of some words."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        allowed = " or ".join(f'"{word}"' for word in choices if word is not None)
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return value


def ranks_of_torch() -> tuple[int, int] | None:
    """Returns this rank and the number of ranks of torch.distributed; None where that is not set up."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def this_rank() -> tuple[int, int]:
    """Returns this rank and the number of ranks, as far as they are known by now: 0 and 1 if they are not."""
    if (known := ranks_of_torch()) is not None:
        return known
    if "RANK" not in os.environ:
        return 0, 1  # not known yet: a launcher that sets WORLD_SIZE alone numbers its ranks later
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
