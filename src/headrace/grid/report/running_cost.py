"""What runs has cost so far: the journal has the cost of an attempt only when it is over."""

from __future__ import annotations

import msgspec

from headrace.errors import RunNotFound
from headrace.grid.controller.run_outcome import cost_so_far
from headrace.grid.journal.grid_record import AttemptRecord, GridRecord, LineRecord, LineState
from headrace.runs import Run


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
