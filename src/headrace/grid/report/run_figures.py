"""Reads what the runs of a grid's lines measured and cost.

What runs has cost so far is read from its run: the journal has the cost of an attempt only when it is over.
"""

from __future__ import annotations

import msgspec

from headrace.errors import RunNotFound
from headrace.grid.controller.run_outcome import cost_so_far
from headrace.grid.journal.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState
from headrace.grid.report.line_result import RunFigures
from headrace.insight.cost.cost_report import cost_report
from headrace.runs import Run
from headrace.runs.describe import last_values


def with_running_costs(record: GridRecord) -> GridRecord:
    """Returns a grid whose attempts that run have the cost of their runs so far, as their records here have it."""
    return msgspec.structs.replace(record, lines=tuple(map(_line, record.lines)))


def _line(line: LineRecord) -> LineRecord:
    if line.state is not LineState.RUNNING:
        return line
    return msgspec.structs.replace(line, attempts=(*line.attempts[:-1], _attempt(line.attempts[-1])))


def _attempt(attempt: AttemptRecord) -> AttemptRecord:
    try:
        cost, seconds = cost_so_far(Run.open(attempt.run_id), attempt.region)
    except (RunNotFound, OSError, msgspec.DecodeError):
        return attempt  # its record is on another machine, or gone: the cost stays unknown
    return msgspec.structs.replace(attempt, cost=cost, billable_seconds=seconds)


def run_figures(attempt: AttemptRecord) -> RunFigures | None:
    """Returns the figures of an attempt's run; None when it has no record on this machine, or none that can be read."""
    try:
        run = Run.open(attempt.run_id)
        return RunFigures(last_values(run), cost_report(run, by_work=False).total.value)
    except (RunNotFound, OSError, msgspec.DecodeError):
        return None


class EndedRuns:
    """Reads the figures of attempts, those of attempts that have ended only once. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[str, RunFigures] = {}

    def figures(self, attempt: AttemptRecord) -> RunFigures | None:
        """Returns what `run_figures` does."""
        known = self._known.get(attempt.run_id)
        if known is not None:
            return known
        found = run_figures(attempt)
        if found is not None and attempt.state is AttemptState.ENDED:
            self._known[attempt.run_id] = found
        return found
