"""Finds lines of a grid by what people call them. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headrace.errors import UsageError
from headrace.grid.journal.grid_record import GridRecord, LineRecord

_SHOWN = 5


def lines_named(grid: GridRecord, names: Iterable[str]) -> tuple[LineRecord, ...]:
    """Returns the lines of these names, in the order of the names.

    Args:
        grid: the grid.
        names: each the key of a line, the name of one of its jobs, its place (``array.txt:3``), or that place's
            number; of a line that stands in no file its number among all, from 1. Of lines of one name that counts
            which the grid's file still has.

    Raises:
        UsageError: a name that no line has, or several have.
    """
    found = []
    for name in names:
        mine = [line for line in grid.lines if name in _names(line)]
        mine = mine or [line for line in grid.lines if _number(line) == name]
        mine = [line for line in mine if line.in_file] or mine
        if len(mine) > 1:
            raise UsageError(
                f"{grid.name}: {len(mine)} lines are called {name!r}",
                f"their keys: {', '.join(line.key for line in mine[:_SHOWN])}",
            )
        if not mine:
            known = [each for line in grid.lines for each in (line.place, line.key)]
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`headrace grid status {grid.name}` shows them"
            raise UsageError(f"{grid.name}: no line is called {name!r}", hint)
        found.append(mine[0])
    return tuple({line.key: line for line in found}.values())


def _names(line: LineRecord) -> tuple[str, ...]:
    return (line.key, line.job_name, line.place, *(attempt.job_name for attempt in line.attempts))


def _number(line: LineRecord) -> str:
    _, in_file, number = line.place.rpartition(":")
    return number if in_file else str(line.index + 1)
