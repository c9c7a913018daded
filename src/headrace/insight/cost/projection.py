"""What a job may cost, before it has run: list prices, and the most that its time limit and its budget allow.

How long a job takes is not known before it has run, so no cost of the job is predicted here: only the price of an hour
and the bounds. Projected figures have names of their own and never share a column with measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import msgspec

from headrace.catalog.prices import CURRENCY, DEFAULT_REGION, SECONDS_PER_HOUR, Price, cost, price_of
from headrace.insight.cost.billing import amount, unpriced
from headrace.insight.figures.figure import FORMULAS, Figure, figure_of, missing
from headrace.insight.figures.run_files import PlannedGroup

_NAMES = ("projected_per_hour", "projected_maximum", "projected_budget_time")


class PlannedCost(msgspec.Struct, frozen=True):
    """What an instance group costs an hour.

    Attributes:
        group: its name.
        instance_type: that the job names.
        instances: how many.
        price: of one of them; None when it is not known.
        per_hour: of all of them while all run.
    """

    group: str
    instance_type: str
    instances: int
    price: Price | None
    per_hour: Figure


class Projection(msgspec.Struct, frozen=True):
    """What a job may cost.

    Attributes:
        region: whose prices are taken.
        currency: of all money.
        groups: its instance groups.
        per_hour: of all instances while all run.
        maximum: of all instances for all of max_run.
        max_cost: the budget, None without one.
        budget_time: seconds after which the budget is used up while all instances run.
        notes: what a reader must know about these figures.
        formulas: how every figure is computed, by its name.
    """

    region: str
    currency: str
    groups: tuple[PlannedCost, ...]
    per_hour: Figure
    maximum: Figure
    max_cost: float | None
    budget_time: Figure
    notes: tuple[str, ...]
    formulas: dict[str, str]


def project(
    groups: Sequence[PlannedGroup],
    max_run: float,
    *,
    max_cost: float | None = None,
    region: str | None = None,
    on: date | None = None,
) -> Projection:
    """Returns what a job may cost. Pure.

    Args:
        groups: its instance groups.
        max_run: seconds after which it is stopped; 0 for no limit.
        max_cost: its budget, None without one.
        region: whose prices are taken; None for us-east-1, which a note says.
        on: no later price is taken; None for the newest.
    """
    where = region or DEFAULT_REGION
    prices = {group.name: price_of(group.instance_type, where, on=on) for group in groups}
    why_not = unpriced(groups, prices, where)
    planned = tuple(_group(group, prices[group.name], why_not) for group in groups)
    per_hour = _sum(planned, why_not)
    notes = list(dict.fromkeys(why_not.values()))
    if region is None:
        notes.insert(0, f"no region is named: prices of {where}")
    gone = dict.fromkeys(price.instance_type for price in prices.values() if price and price.offered is False)
    notes += [f"{kind} was not offered in {where} any more in October 2026" for kind in gone]
    budget_time = _budget_time(per_hour, max_cost)
    notes += _compared(budget_time, max_cost, max_run)
    return Projection(
        region=where,
        currency=CURRENCY,
        groups=planned,
        per_hour=per_hour,
        maximum=_maximum(per_hour, max_run),
        max_cost=max_cost,
        budget_time=budget_time,
        notes=tuple(notes),
        formulas={name: FORMULAS[name] for name in _NAMES},
    )


def _group(group: PlannedGroup, price: Price | None, why_not: dict[str, str]) -> PlannedCost:
    name = "projected_per_hour"
    many = len(group.hosts)
    figure = missing(name, why_not[group.name]) if price is None else figure_of(name, many * price.price)
    return PlannedCost(group.name, group.instance_type, many, price, figure)


def _sum(planned: Sequence[PlannedCost], why_not: dict[str, str]) -> Figure:
    name = "projected_per_hour"
    values = [group.per_hour.value for group in planned if group.per_hour.value is not None]
    if len(values) < len(planned):
        return missing(name, "; ".join(dict.fromkeys(why_not.values())))
    return figure_of(name, math.fsum(values))


def _maximum(per_hour: Figure, max_run: float) -> Figure:
    name = "projected_maximum"
    if per_hour.value is None:
        return missing(name, per_hour.note)
    if not max_run:
        return missing(name, "the job has no time limit")
    return figure_of(name, cost(per_hour.value, max_run))


def _budget_time(per_hour: Figure, max_cost: float | None) -> Figure:
    name = "projected_budget_time"
    if max_cost is None:
        return missing(name, "the job has no budget")
    if per_hour.value is None:
        return missing(name, per_hour.note)
    return figure_of(name, max_cost / per_hour.value * SECONDS_PER_HOUR)


def _compared(budget_time: Figure, max_cost: float | None, max_run: float) -> list[str]:
    if max_cost is None or budget_time.value is None:
        return []
    budget = f"the budget, {amount(max_cost)} {CURRENCY}, lasts {budget_time.value:.1f} s while all instances run"
    if max_run and budget_time.value >= max_run:
        return [f"{budget}: the job is stopped by max_run, {max_run:g} s, before that"]
    limit = f"max_run, {max_run:g} s, would allow more" if max_run else "there is no time limit"
    return [f"{budget}, then the job is stopped; {limit}"]
