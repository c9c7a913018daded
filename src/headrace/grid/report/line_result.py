"""What came of one line of a grid, as values for every kind of report."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.grid.journal.grid_record import AttemptRecord, LineFacts, LineRecord, LineState
from headrace.grid.lines.line import ENGINE, REGION, said_of
from headrace.insight.render.plain_text import duration
from headrace.runs import Status
from headrace.runs.cause import CauseInWords, in_words


class RunFigures(msgspec.Struct, frozen=True):
    """What the record of a run says.

    Attributes:
        metrics: last values of the job's metrics, by name.
        cost: USD so far; None when the price is unknown or no instance has started.
    """

    metrics: dict[str, float] = {}
    cost: float | None = None


class AttemptSpan(msgspec.Struct, frozen=True):
    """When an attempt ran.

    Attributes:
        number: of the attempt, from 1.
        run_id: of its run.
        region: where; empty where the engine has none.
        state: completed, failed or stopped; running while it goes on.
        started, seconds: when it had a run, since the epoch; and for how long, to its end or to now.
    """

    number: int
    run_id: str
    region: str
    state: LineState
    started: float
    seconds: float


class LineResult(LineFacts, frozen=True):
    """One line.

    Attributes:
        attempts: how many were begun.
        run_id: of the newest attempt; empty before it has a run.
        started, ended: seconds since the epoch: when its first attempt had a run, and its last one was over.
        seconds: of all its attempts, without the pauses between them; None before it started.
        spans: its attempts that had a run, in their order.
        cost: USD of all its attempts, so far; None when nothing is known of the price, or nothing has run.
        metrics: last values of the job's metrics in the newest attempt, by name.
        recorded: the record of its newest attempt's run is on this machine and can be read.
        cause: why its newest attempt that failed did; None for a line that has completed.
    """

    attempts: int = 0
    run_id: str = ""
    started: float | None = None
    ended: float | None = None
    seconds: float | None = None
    spans: tuple[AttemptSpan, ...] = ()
    cost: float | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    recorded: bool = False
    cause: CauseInWords | None = None

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
    spans = tuple(
        AttemptSpan(
            each.number, each.run_id, each.region, _state(each), each.started, _seconds(each.started, each, now)
        )
        for each in line.attempts
        if each.started is not None
    )
    ended = newest.ended if newest and line.state.over else None
    failed = [each.cause for each in line.attempts if each.cause is not None]
    facts = {name: getattr(line, name) for name in LineFacts.__struct_fields__}
    if newest:
        facts |= {"job_name": newest.job_name, "engine": newest.engine, "region": newest.region}
    return LineResult(
        **facts,
        attempts=len(line.attempts),
        run_id=newest.run_id if newest else "",
        started=min((each.started for each in spans), default=None),
        ended=ended,
        seconds=sum(each.seconds for each in spans) if spans else None,
        spans=spans,
        cost=_cost(line, found),
        metrics=found.metrics if found else {},
        recorded=found is not None,
        cause=in_words(failed[-1]) if failed and line.state is not LineState.COMPLETED else None,
    )


def _state(attempt: AttemptRecord) -> LineState:
    if attempt.ended is None:
        return LineState.RUNNING
    known = {Status.COMPLETED: LineState.COMPLETED, Status.STOPPED: LineState.STOPPED}
    return known.get(attempt.status or Status.FAILED, LineState.FAILED)


def _seconds(started: float, attempt: AttemptRecord, now: float) -> float:
    return max(0.0, (now if attempt.ended is None else attempt.ended) - started)


def _cost(line: LineRecord, newest: RunFigures | None) -> float | None:
    """Adds the attempts' costs; that of a run that goes on is in its record only."""
    costs = [_attempt_cost(each, newest if each is line.attempt else None) for each in line.attempts]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def _attempt_cost(attempt: AttemptRecord, figures: RunFigures | None) -> float | None:
    return attempt.cost if attempt.cost is not None else figures.cost if figures else None


def why(result: LineResult) -> str:
    """Returns why a line did not complete: what the grid has decided about it comes before what befell its run."""
    return result.reason or (str(result.cause) if result.cause is not None else "")


def told(result: LineResult) -> str:
    """Returns what a line says, in few words; its region and engine have columns of their own."""
    return said_of(result.fields, beside=(REGION, ENGINE))


def span(seconds: float) -> str:
    """Returns a time in words, with its unit.

    >>> span(4.25), span(75), span(3723)
    ('4.2 s', '1:15 min', '1:02:03 h')
    """
    return duration(seconds) + ("" if seconds < 60 else " min" if int(seconds) < 3600 else " h")
