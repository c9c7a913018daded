"""What came of one line of a grid, as values for every kind of report."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.grid.journal.grid_record import AttemptRecord, LineRecord, LineState
from headrace.runs.cause import CauseInWords, in_words


class RunFigures(msgspec.Struct, frozen=True):
    """What the record of a run says.

    Attributes:
        metrics: last values of the job's metrics, by name.
        cost: USD so far; None when the price is unknown or no instance has started.
    """

    metrics: dict[str, float] = {}
    cost: float | None = None


class LineResult(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        index: position among the grid's lines, from 0.
        place: where it was written, as messages say it.
        key: of its content.
        job_name: of its newest attempt's job, or of the first one's.
        fields: in what its job differs.
        engine, region: where its newest attempt runs or ran, or where the first one will; region is empty where the
            engine has none.
        state: how far it has come.
        in_file: the grid's file still has it.
        attempts: how many were begun.
        run_id: of the newest attempt; empty before it has a run.
        started, ended: seconds since the epoch: when its first attempt had a run, and its last one was over.
        seconds: from there to there, or to now; None before it started.
        planned_cost: USD without copies, as planned; None when the price was unknown.
        planned_seconds: as planned, copies included.
        cost: USD of all its attempts, so far; None when nothing is known of the price, or nothing has run.
        metrics: last values of the job's metrics in the newest attempt, by name.
        cause: why its newest attempt that failed did; None for a line that has completed.
        reason: why it is unplaced or was stopped, for people.
    """

    index: int
    place: str
    key: str
    job_name: str
    fields: dict[str, object]
    engine: str
    region: str
    state: LineState
    in_file: bool = True
    attempts: int = 0
    run_id: str = ""
    started: float | None = None
    ended: float | None = None
    seconds: float | None = None
    planned_cost: float | None = None
    planned_seconds: float | None = None
    cost: float | None = None
    metrics: dict[str, float] = {}
    cause: CauseInWords | None = None
    reason: str = ""

    @property
    def completed(self) -> bool:
        """Whether its job has completed."""
        return self.state is LineState.COMPLETED


def line_result(line: LineRecord, figures: Callable[[AttemptRecord], RunFigures | None], now: float) -> LineResult:
    """Returns what came of a line.

    Args:
        line: as the journal has it.
        figures: reads the record of an attempt's run; None when there is none here.
        now: seconds since the epoch.
    """
    newest = line.attempt
    found = figures(newest) if newest and newest.run_id else None
    began = [each.started for each in line.attempts if each.started is not None]
    started = min(began, default=None)
    ended = newest.ended if newest and line.state.over else None
    failed = [each.cause for each in line.attempts if each.cause is not None]
    return LineResult(
        index=line.index,
        place=line.place,
        key=line.key,
        job_name=newest.job_name if newest else line.job_name,
        fields=dict(line.fields),
        engine=newest.engine if newest else line.engine,
        region=newest.region if newest else line.region,
        state=line.state,
        in_file=line.in_file,
        attempts=len(line.attempts),
        run_id=newest.run_id if newest else "",
        started=started,
        ended=ended,
        seconds=None if started is None else max(0.0, (now if ended is None else ended) - started),
        planned_cost=line.planned_cost,
        planned_seconds=line.planned_seconds,
        cost=_cost(line, found),
        metrics=found.metrics if found else {},
        cause=in_words(failed[-1]) if failed and line.state is not LineState.COMPLETED else None,
        reason=line.reason,
    )


def _cost(line: LineRecord, newest: RunFigures | None) -> float | None:
    """Adds the attempts' costs; that of a run that goes on is in its record only."""
    costs = [_attempt_cost(each, newest if each is line.attempt else None) for each in line.attempts]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def _attempt_cost(attempt: AttemptRecord, figures: RunFigures | None) -> float | None:
    return attempt.cost if attempt.cost is not None else figures.cost if figures else None
