"""Reads the report of a grid of this machine, live or later; what its runs measured and cost; the list of all grids.

What runs has cost so far is read from its run: the journal has the cost of an attempt only when it is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError, StorageError
from headrace.grid.controller.attempt_runner import cost_so_far
from headrace.grid.grid_file import Objective
from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState
from headrace.grid.grid_report import GridReport, RunFigures, report_grid
from headrace.grid.load_grid import read_grid_file
from headrace.grid.read_grid import grid_names, has_controller, journal_path, read_grid
from headrace.job.problems.finding import suggestion
from headrace.own_runs import started_here
from headrace.runs import Run
from headrace.runs.run_paths import runs_dir
from headrace.runs.store import run_of_id

FOREIGN = "the grid was not started here by you: its journal is only read, and what it says is somebody else's word"


def with_running_costs(record: GridRecord) -> GridRecord:
    """Returns a grid whose attempts that run have the cost of their runs so far, as their records here have it."""
    return msgspec.structs.replace(record, lines=tuple(map(_with_cost, record.lines)))


def _with_cost(line: LineRecord) -> LineRecord:
    if line.state is not LineState.RUNNING:
        return line
    *before, attempt = line.attempts
    paths = run_of_id(attempt.run_id)
    try:
        if paths is None:
            return line  # its record is on another machine, or gone: the cost stays unknown
        cost, seconds = cost_so_far(Run(paths), attempt.region)
    except (OSError, msgspec.DecodeError):
        return line
    now = msgspec.structs.replace(attempt, cost=cost, billable_seconds=seconds)
    return msgspec.structs.replace(line, attempts=(*before, now))


def run_figures(
    attempt: AttemptRecord, runs: Path | None = None, running: dict[str, Run] | None = None
) -> RunFigures | None:
    """Returns the figures of an attempt's run; None when it has no record on this machine, or none that can be read.

    Args:
        attempt: whose run.
        runs: directory of all runs; None for the user's.
        running: runs by id that go on, for callers that ask again; one that is not in it is added.
    """
    paths = run_of_id(attempt.run_id, runs)
    try:
        if paths is None:
            return None
        run = Run(paths) if running is None else running.setdefault(attempt.run_id, Run(paths))
        cost = cost_so_far(run, attempt.region)[0] if attempt.cost is None else attempt.cost
        return RunFigures(run.values.last(), cost)
    except (OSError, msgspec.DecodeError):
        return None


class EndedRuns:
    """Reads the figures of attempts, each record only once. Threads may share it.

    Raises:
        UsageError: see `headrace.home.home_dir`.
    """

    def __init__(self) -> None:
        self._runs = runs_dir()
        self._known: dict[str, RunFigures] = {}
        self._running: dict[str, Run] = {}

    def figures(self, attempt: AttemptRecord) -> RunFigures | None:
        """Returns what `run_figures` does."""
        known = self._known.get(attempt.run_id)
        if known is not None:
            return known
        found = run_figures(attempt, self._runs, self._running)
        if found is not None and attempt.state is AttemptState.ENDED:
            self._known[attempt.run_id] = found
            self._running.pop(attempt.run_id, None)
        return found


def read_report(
    name: str,
    objective: Objective | None = None,
    figures: Callable[[AttemptRecord], RunFigures | None] | None = None,
) -> GridReport:
    """Returns the report of a grid.

    Args:
        name: of the grid.
        objective: what it is run for; None: what its file says now.
        figures: reads what the run of an attempt measured and cost, None when it has no record here; None: anew.

    Raises:
        UsageError: there is no such grid.
        StorageError: its journal cannot be read.
    """
    record = read_grid(name)
    notes: list[str] = []
    foreign = not started_here(journal_path(name).parent)
    if foreign:  # it names files, too
        notes.append(FOREIGN)
    elif objective is None:
        try:
            objective = read_grid_file(Path(record.file)).objective
        except HeadraceError as error:
            notes.append(f"{record.file} cannot be read now: what the grid is run for is not known ({error.message})")
    if record.ended is None and not foreign and not has_controller(journal_path(name).parent):
        notes.append(f"no process controls the grid: nothing more begins until headrace grid run {record.file}")
    found = report_grid(record, objective, figures or EndedRuns().figures, time.time())
    return msgspec.structs.replace(found, notes=(*notes, *found.notes))


def without_objective(attempt: AttemptRecord, metric: str) -> str:
    """Returns what to say of a run that has completed without the objective's metric; empty when it has it, or has no
    record here.

    Args:
        attempt: whose run it is.
        metric: of the objective.
    """
    found = run_figures(attempt)
    if found is None or metric in found.metrics:
        return ""
    hint = suggestion(metric, sorted(found.metrics)) if found.metrics else "it has no metric at all"
    return f"it has completed without the objective's metric {metric!r}: no line can be ranked so; {hint}"


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
