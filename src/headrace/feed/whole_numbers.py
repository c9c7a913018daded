"""What a number may be that says where a loader is: given by a user, or read from a state that may be damaged."""

from __future__ import annotations

import operator

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
