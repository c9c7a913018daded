"""The order of names with numbers in them: algo-9 before algo-10. Every room may import this module."""

from __future__ import annotations

import functools
import re


@functools.lru_cache(maxsize=1 << 14)
def by_number(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Returns a key that sorts names with numbers in them as people do.

    >>> sorted(["algo-10", "agent", "algo-9", "10", "9"], key=by_number)
    ['9', '10', 'agent', 'algo-9', 'algo-10']
    """
    parts = (part for part in re.split(r"([0-9]+)", name) if part)
    return tuple((False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts)
