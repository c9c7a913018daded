"""CPU sets as text, in the form that the kernel writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RANGE = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?", re.ASCII)


def parse_cpu_set(text: str) -> tuple[int, ...]:
    """Reads CPU ids and ranges, as the kernel writes them.

    >>> parse_cpu_set("0-3,5")
    (0, 1, 2, 3, 5)

    Raises:
        ValueError: empty, not of that form, or a range that runs backwards.
    """
    ids: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"not a CPU id or range: {part!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"a range that runs backwards: {part!r}")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_cpu_set(ids: Sequence[int]) -> str:
    """Writes CPU ids in the form that `parse_cpu_set` reads.

    >>> format_cpu_set((0, 1, 2, 3, 5))
    '0-3,5'
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(ids)):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
