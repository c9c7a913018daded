"""Which lines are best by a metric, and which are not beaten in cost and metric together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from headrace.grid.report.line_result import LineResult


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
