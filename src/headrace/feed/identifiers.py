"""Numbers of the feed: the kinds that name things, so that one cannot be taken for another, which count from 1; and
what one may be that a user gave, or that was read from a state that may be damaged."""

from __future__ import annotations

import operator
from typing import NewType

WorkerNumber = NewType("WorkerNumber", int)
"""A worker of one session."""

RequestNumber = NewType("RequestNumber", int)
"""A request of one side of a connection; answers repeat it."""

SlabNumber = NewType("SlabNumber", int)
"""A slab of one client, or of a feed server (there staging slabs are negative towards executors); 0 for none."""

PipelineNumber = NewType("PipelineNumber", int)
"""A pipeline of one connection, or of a feed server."""

RouteNumber = NewType("RouteNumber", int)
"""Whom a frame concerns on a link that several workers share, see `Worker.route`; 0 on other links."""

NO_SLAB = SlabNumber(0)
NO_ROUTE = RouteNumber(0)

LIMIT = 2**63  # numbers fit into 64 bits wherever they are sent and written


def whole(name: str, value: object) -> int:
    """Returns a number as an int. Raises TypeError, which names it, if it is not a whole one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return operator.index(value)


def require_count(name: str, value: int) -> None:
    """Raises ValueError, which names it, if nothing can have counted to a number."""
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    if value >= LIMIT:
        raise ValueError(f"{name} must be below 2**63, got {value}")
