"""What came of a grid: a row a line, totals by region, cost planned against spent, the best lines. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from headrace.catalog.prices import CURRENCY
from headrace.grid.grid_file import Objective
from headrace.grid.grid_record import AttemptRecord, CopyRecord, GridRecord, LineFacts, LineRecord, LineState
from headrace.grid.line import ENGINE, REGION, said_of
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
        cost=_total_cost(line, found),
        metrics=found.metrics if found else {},
        recorded=found is not None,
        cause=in_words(line.cause) if line.cause is not None else None,
    )


def _state(attempt: AttemptRecord) -> LineState:
    if attempt.ended is None:
        return LineState.RUNNING
    known = {Status.COMPLETED: LineState.COMPLETED, Status.STOPPED: LineState.STOPPED}
    return known.get(attempt.status or Status.FAILED, LineState.FAILED)


def _seconds(started: float, attempt: AttemptRecord, now: float) -> float:
    return max(0.0, (now if attempt.ended is None else attempt.ended) - started)


def _total_cost(line: LineRecord, newest: RunFigures | None) -> float | None:
    """Adds the attempts' costs; that of a run that goes on is in its record only."""
    costs = [each.cost for each in line.attempts]
    if costs and costs[-1] is None and newest is not None:
        costs[-1] = newest.cost
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def why(line: LineRecord | LineResult) -> str:
    """Returns why a line did not complete: what the grid has decided about it comes before what befell its run."""
    return line.reason or str(line.cause or "")


def told(result: LineResult) -> str:
    """Returns what a line says, in few words; its region and engine have columns of their own."""
    return said_of(result.fields, beside=(REGION, ENGINE))


def span(seconds: float) -> str:
    """Returns a time in words, with its unit.

    >>> span(4.25), span(75), span(3723)
    ('4.2 s', '1:15 min', '1:02:03 h')
    """
    return duration(seconds) + ("" if seconds < 60 else " min" if int(seconds) < 3600 else " h")


def value_of(result: LineResult, objective: Objective) -> float | None:
    """Returns a line's metric; None when its job did not complete, or printed none, or no finite number."""
    found = result.metrics.get(objective.metric)
    return found if result.completed and found is not None and math.isfinite(found) else None


def _standing(result: LineResult, objective: Objective) -> tuple[float, float] | None:
    """Returns a line's cost, infinite when unknown, and its metric so that less is better; None without the metric."""
    value = value_of(result, objective)
    if value is None:
        return None
    return math.inf if result.cost is None else result.cost, value if objective.goal == "min" else -value


def ranked(results: Iterable[LineResult], objective: Objective) -> tuple[LineResult, ...]:
    """Returns the lines that have the metric, the best one first; of equal ones the cheaper, then the earlier one."""
    stand = [(each, standing) for each in results if (standing := _standing(each, objective))]
    return tuple(each for each, _ in sorted(stand, key=lambda pair: (pair[1][1], pair[1][0], pair[0].index)))


def pareto_front(results: Iterable[LineResult], objective: Objective) -> tuple[LineResult, ...]:
    """Returns the lines than which no other one is at least as cheap and at least as good, and better in one of them.

    The cheapest one is first. Lines that are equal in both stand in it together. A line whose cost is unknown is in
    no front.
    """
    stand = [(each, standing) for each in results if (standing := _standing(each, objective))]
    front: list[LineResult] = []
    last = (math.inf, math.inf)
    for each, standing in sorted(stand, key=lambda pair: (pair[1], pair[0].index)):
        if each.cost is not None and (standing[1] < last[1] or standing == last):
            front.append(each)
            last = standing
    return tuple(front)


FORMULAS = {
    "seconds": "sum over a line's attempts of the time from when each had a run to its end, or to now; without pauses",
    "cost": "sum over a line's attempts of what `headrace cost` says of each run; copies are not in it",
    "planned_cost": "price an hour of all its hosts * the expected hours, as `headrace grid plan` says; without copies",
    "metrics": "last value that the newest attempt printed, by the job's metric_definitions",
    "best": "completed lines that have the objective's metric, the best one first; of equal ones the cheaper",
    "front": (
        "completed lines than which no other one is at least as cheap and at least as good, and better in one of both"
    ),
}


class RegionResult(msgspec.Struct, frozen=True):
    """What came of the lines of one region.

    Attributes:
        region: its name; empty for lines of engines without regions.
        lines: whose newest attempt is there.
        completed, failed, stopped, going: how many of them; going have neither ended nor begun for good.
        attempts: of its lines.
        planned_cost, cost: USD of its lines whose price is known.
        copy_cost: USD of copies into it.
    """

    region: str
    lines: int
    completed: int
    failed: int
    stopped: int
    going: int
    attempts: int
    planned_cost: float
    cost: float
    copy_cost: float


class GridReport(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        name: of the grid.
        file: its file.
        digest: of its lines.
        created, ended: seconds since the epoch; `ended` is None while it goes on.
        seconds: from there to there, or to now.
        states: how many lines are in each state; those without a line are left out.
        lines: in their order.
        regions: by name.
        copies: by region and place.
        currency: of all money.
        planned_cost: of all lines and copies whose price was known.
        cost: of all attempts and copies, so far.
        unpriced: lines that ran and whose cost is unknown.
        budget: USD; None for no limit.
        deadline: seconds since the epoch; None for none.
        objective: what the grid is run for; None when nobody said.
        best: indices of the lines that have its metric, the best one first.
        front: indices of the lines that no other one beats in cost and metric together, the cheapest one first.
        notes: what a reader must know about these figures.
        formulas: how every figure is computed, by its name.
    """

    name: str
    file: str
    digest: str
    created: float
    ended: float | None
    seconds: float
    states: dict[str, int]
    lines: tuple[LineResult, ...]
    regions: tuple[RegionResult, ...]
    copies: tuple[CopyRecord, ...]
    currency: str
    planned_cost: float
    cost: float
    unpriced: int
    budget: float | None
    deadline: float | None
    objective: Objective | None
    best: tuple[int, ...]
    front: tuple[int, ...]
    notes: tuple[str, ...]
    formulas: dict[str, str]


def report_grid(
    record: GridRecord,
    objective: Objective | None,
    figures: Callable[[AttemptRecord], RunFigures | None],
    now: float,
) -> GridReport:
    """Returns the report of a grid, live or after its end.

    Args:
        record: as the journal has it.
        objective: what it is run for; None when nobody said.
        figures: reads what the run of an attempt measured and cost; None when it has no record here.
        now: seconds since the epoch.
    """
    lines = tuple(line_result(line, figures, now) for line in record.lines)
    copied = sum(copy.cost or 0.0 for copy in record.copies)
    planned = sum(each.planned_cost or 0.0 for each in lines) + sum(copy.planned_cost for copy in record.copies)
    best = ranked(lines, objective) if objective else ()
    unpriced = sum(1 for each in lines if each.seconds is not None and each.cost is None)
    states = Counter(each.state for each in lines)
    return GridReport(
        name=record.name,
        file=record.file,
        digest=record.digest,
        created=record.created,
        ended=record.ended,
        seconds=max(0.0, (now if record.ended is None else record.ended) - record.created),
        states={state.value: states[state] for state in LineState if states[state]},
        lines=lines,
        regions=tuple(_regions(lines, record.copies)),
        copies=record.copies,
        currency=CURRENCY,
        planned_cost=planned,
        cost=sum(each.cost or 0.0 for each in lines) + copied,
        unpriced=unpriced,
        budget=record.budget,
        deadline=record.deadline,
        objective=objective,
        best=tuple(each.index for each in best),
        front=tuple(each.index for each in pareto_front(lines, objective)) if objective else (),
        notes=tuple(_notes(lines, objective, best, unpriced)),
        formulas=FORMULAS,
    )


def counted(lines: int) -> str:
    """Returns a number of lines in words.

    >>> counted(1), counted(2)
    ('1 line', '2 lines')
    """
    return f"{lines} line{'' if lines == 1 else 's'}"


def _regions(lines: Iterable[LineResult], copies: Sequence[CopyRecord]) -> Iterable[RegionResult]:
    by_region: dict[str, list[LineResult]] = {}
    for each in lines:
        if each.state is not LineState.UNPLACED:
            by_region.setdefault(each.region, []).append(each)
    for region, there in sorted(by_region.items()):
        yield RegionResult(
            region=region,
            lines=len(there),
            completed=sum(each.completed for each in there),
            failed=sum(each.state is LineState.FAILED for each in there),
            stopped=sum(each.state in (LineState.STOPPED, LineState.STOPPED_EARLY) for each in there),
            going=sum(not each.state.over for each in there),
            attempts=sum(each.attempts for each in there),
            planned_cost=sum(each.planned_cost or 0.0 for each in there),
            cost=sum(each.cost or 0.0 for each in there),
            copy_cost=sum(copy.cost or 0.0 for copy in copies if copy.region == region),
        )


def _notes(
    lines: Sequence[LineResult], objective: Objective | None, best: Sequence[LineResult], unpriced: int
) -> Iterable[str]:
    if unpriced:
        yield f"{counted(unpriced)} of unknown cost: an instance type without a price here, or no instance has started"
    unread = sum(each.completed and not each.recorded for each in lines)
    if unread:
        yield f"{counted(unread)} whose run has no record here: its metrics are not known"
    broken = sum(objective is not None and math.isnan(each.metrics.get(objective.metric, 0.0)) for each in lines)
    if objective and broken:
        yield f"{counted(broken)} not ranked: the last value of {objective.metric!r} was no finite number"
    gone = sum(not each.in_file for each in lines)
    if gone:
        yield f"{counted(gone)} no longer in the grid's file"
    if objective and not best and any(each.completed for each in lines):
        names = sorted({name for each in lines for name in each.metrics})
        there = (
            f"there are: {', '.join(names)}" if names else "no run has printed any: see metric_definitions of the job"
        )
        yield f"no completed line has the metric {objective.metric!r}; {there}"
