"""The grids of this machine, in a list: `headrace grid list` and the page of `headrace ui`."""

from __future__ import annotations

import msgspec

from headrace.errors import StorageError
from headrace.grid.journal.grid_record import GridRecord, LineState
from headrace.grid.journal.read_grid import grid_names, read_grid
from headrace.grid.report.run_figures import with_running_costs


class GridLine(msgspec.Struct, frozen=True):
    """One grid in a list.

    Attributes:
        name: of the grid.
        file: its file.
        created, ended: seconds since the epoch; `ended` is None while it goes on.
        lines: how many.
        states: how many lines are in each state; those without a line are left out.
        regions: of its lines.
        cost: USD of all attempts and copies so far, as far as it is known.
        budget: USD; None for no limit.
    """

    name: str
    file: str
    created: float
    ended: float | None
    lines: int
    states: dict[str, int]
    regions: tuple[str, ...]
    cost: float
    budget: float | None


class UnreadGrid(msgspec.Struct, frozen=True):
    """A grid whose journal cannot be read: its name, and why."""

    name: str
    error: str


def list_grids() -> tuple[tuple[GridLine, ...], tuple[UnreadGrid, ...]]:
    """Returns the grids of this machine, the newest one first, and those that cannot be read."""
    found: list[GridLine] = []
    unread: list[UnreadGrid] = []
    for name in grid_names():
        try:
            found.append(_line(with_running_costs(read_grid(name))))
        except StorageError as error:
            unread.append(UnreadGrid(name, error.message))
    return tuple(sorted(found, key=lambda each: -each.created)), tuple(unread)


def _line(record: GridRecord) -> GridLine:
    counts = record.counts
    return GridLine(
        name=record.name,
        file=record.file,
        created=record.created,
        ended=record.ended,
        lines=len(record.lines),
        states={state.value: counts[state] for state in LineState if counts[state]},
        regions=tuple(sorted({line.region for line in record.lines if line.region})),
        cost=record.cost,
        budget=record.budget,
    )
