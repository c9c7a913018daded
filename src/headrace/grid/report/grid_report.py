"""The one report of a grid: a row a line, totals by region, cost planned against spent, the best lines. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from headrace.catalog.prices import CURRENCY
from headrace.grid.journal.grid_record import AttemptRecord, CopyRecord, GridRecord, LineState
from headrace.grid.report.line_result import LineResult, RunFigures, line_result


class Objective(msgspec.Struct, frozen=True):
    """What a grid is run for.

    Attributes:
        metric: of the job's metric definitions, or of `headrace.log`; its last value counts.
        goal: whether the least or the greatest is the best.
    """

    metric: str
    goal: Literal["min", "max"]


def value_of(result: LineResult, objective: Objective) -> float | None:
    """Returns a line's metric; None when its job did not complete, or printed none, or no finite number."""
    found = result.metrics.get(objective.metric)
    return found if result.completed and found is not None and math.isfinite(found) else None


def ranked(results: Iterable[LineResult], objective: Objective) -> tuple[LineResult, ...]:
    """Returns the lines that have the metric, the best one first; of equal ones the cheaper, then the earlier one."""
    measured = [each for each in results if value_of(each, objective) is not None]
    return tuple(sorted(measured, key=lambda each: (_loss(each, objective), _cost(each), each.index)))


def pareto_front(results: Iterable[LineResult], objective: Objective) -> tuple[LineResult, ...]:
    """Returns the lines than which no other one is at least as cheap and at least as good, and better in one of them.

    The cheapest one is first. Lines that are equal in both stand in it together. A line whose cost is unknown is in
    no front.
    """
    front: list[LineResult] = []
    for each in sorted(_known(results, objective), key=lambda one: (_cost(one), _loss(one, objective), one.index)):
        if not front or _loss(each, objective) < _loss(front[-1], objective) or _equal(each, front[-1], objective):
            front.append(each)
    return tuple(front)


def _known(results: Iterable[LineResult], objective: Objective) -> Sequence[LineResult]:
    return [each for each in results if value_of(each, objective) is not None and each.cost is not None]


def _equal(one: LineResult, other: LineResult, objective: Objective) -> bool:
    return one.cost == other.cost and _loss(one, objective) == _loss(other, objective)


def _cost(result: LineResult) -> float:
    return math.inf if result.cost is None else result.cost


def _loss(result: LineResult, objective: Objective) -> float:
    """Returns what is less the better a line is; infinite without a value."""
    value = value_of(result, objective)
    return math.inf if value is None else value if objective.goal == "min" else -value


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
