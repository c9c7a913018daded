"""The clocks of a run's hosts and the prices of its groups, brought together: seconds become money here. Pure.

A platform bills its own seconds of every attempt, at the prices of where and on what that ran.

Of a job that has not run, nobody knows how long it takes, so no cost of it is predicted (`project`): only the price of
an hour, and the bounds that its time limit and its budget set. Projected figures have names of their own and never
share a column with measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.catalog.prices import CURRENCY, DEFAULT_REGION, SECONDS_PER_HOUR, Price, cost, last_day, price_of, regions
from headrace.insight.figures.figure import FORMULAS, Figure, Spread, Window, figure_of, missing
from headrace.insight.figures.run_files import PlannedGroup
from headrace.runs import RunState
from headrace.runs.event_text import not_started
from headrace.runs.events import AttemptBilled
from headrace.runs.state import HostTime

if TYPE_CHECKING:
    from headrace.insight.figures.loaders import LoaderReport


BILLED_FORMULAS = {
    "billable_seconds": "BillableTimeInSeconds of the service, all attempts; of a group: times its instances",
    "cost": "price * billable_seconds / 3600, added over groups and attempts: these are the service's own seconds",
    "cost_per_hour": (
        "sum of the prices of all instances of the last attempt * its BillableTimeInSeconds / TrainingTimeInSeconds"
    ),
    "cost_platform": "the same as cost: these are the seconds that the service bills",
}

_OLD_DAYS = 366
NOT_STARTED = "the events hold no start of its instances"


def unpriced(groups: Sequence[PlannedGroup], prices: Mapping[str, Price | None], region: str) -> dict[str, str]:
    """Returns why a group has no price, by its name; only groups without one."""
    found = {}
    for group in groups:
        if prices[group.name] is not None:
            continue
        kind = group.instance_type
        if not kind.startswith("ml."):
            found[group.name] = f"{kind or 'an unknown instance type'} has no list price"
            continue
        others = [each for each in regions() if price_of(kind, each) is not None]
        known = f"; known: {', '.join(others)}" if others and region not in others else ""
        found[group.name] = f"no price of {kind} in {region} is known{known}"
    return found


class Charge(NamedTuple):
    """What an instance has run, or so many equal ones.

    Attributes:
        group: its instance group.
        of: its host; where a platform bills, the number of the attempt.
        seconds: that count, of each.
        instances: how many these are.
        price: of one; None where it is not known.
        why_not: why the money is not known; empty when it is, and where nothing is billed.
    """

    group: str
    of: str | int
    seconds: float
    instances: int
    price: Price | None
    why_not: str

    @property
    def hourly(self) -> float:
        """The price of one; 0 where none is needed."""
        return 0.0 if self.price is None else self.price.price


@dataclass(frozen=True)
class Bill:
    """What the instances of a run have run, by headrace's clocks or by the platform that bills them.

    Attributes:
        state: what its events say.
        charges: a host each by the clocks; a group of an attempt each where a platform bills.
        window: from the start of the instances to the end of the run, or to now; None when none has started.
        nothing: why there is no money where there is no charge; empty where that is 0.
        unpriced: why a group has no price, by its name; only groups without one.
        hourly: returns the price an hour of what ran between two moments, averaged over them.
        note: of every figure.
    """

    state: RunState
    charges: tuple[Charge, ...]
    window: Window | None
    nothing: str
    unpriced: Mapping[str, str]
    hourly: Callable[[float, float], float]
    note: str = ""

    @property
    def unknown(self) -> str:
        """Why the money of all that ran is not known; empty when it is."""
        return _why_not(self.charges) or ("" if self.window or not self.nothing else self.nothing)

    def of_group(self, name: str) -> list[Charge]:
        """Returns the charges of a group."""
        return [charge for charge in self.charges if charge.group == name]

    def of_host(self, host: HostTime) -> list[Charge]:
        """Returns the charges of one instance."""
        mine = (host.host, *host.billed)
        return [charge._replace(instances=1) for charge in self.of_group(host.group) if charge.of in mine]

    def cost(self, charges: Sequence[Charge]) -> Figure:
        """Returns what instances cost, each to its own end; what the platform bills where it does."""
        unknown = _why_not(charges) or ("" if charges else self.nothing)
        if unknown:
            return missing("cost", unknown)
        value = math.fsum(cost(charge.hourly, charge.seconds) * charge.instances for charge in charges)
        return figure_of("cost", value, self.window, note=self.note)

    def seconds(self, charges: Sequence[Charge]) -> Figure:
        """Returns the seconds that count, added up."""
        if self.nothing and not charges:
            return missing("billable_seconds", NOT_STARTED)
        return figure_of(
            "billable_seconds", math.fsum(charge.seconds * charge.instances for charge in charges), self.window
        )

    def platform(self, groups: Sequence[PlannedGroup]) -> Figure:
        """Returns what the platform would bill: every instance to the end of the run; or what it has billed."""
        if self.state.billed:
            return msgspec.structs.replace(self.cost(self.charges), name="cost_platform")
        unknown = "the groups are not known" if not groups else "; ".join(dict.fromkeys(self.unpriced.values()))
        if self.window is None or unknown:
            return missing("cost_platform", unknown if self.window else self.nothing)
        every = math.fsum(charge.hourly for charge in self.charges)
        seconds = math.ceil(max(0.0, self.window.seconds))
        return figure_of("cost_platform", cost(every, seconds), self.window, note=self.note)

    def per_hour(self, window: Window | None) -> Figure:
        """Returns the price an hour of the hosts that ran in the training window."""
        if window is None or not window.seconds:
            return missing("cost_per_hour", "no loader has a record after its warm-up")
        if self.unknown:
            return missing("cost_per_hour", self.unknown)
        return figure_of("cost_per_hour", self.hourly(window.start, window.end), window)


def _why_not(charges: Iterable[Charge]) -> str:
    return "; ".join(dict.fromkeys(charge.why_not for charge in charges if charge.why_not))


def bill_by_clocks(
    state: RunState, prices: Mapping[str, Price | None], unpriced: Mapping[str, str], now: float
) -> Bill:
    """Returns what headrace's own clocks say.

    Args:
        state: what the events of the run say.
        prices: of an instance of each group, None where it is not known.
        unpriced: why it is not known, see `unpriced`.
        now: until when clocks count that still run, seconds since the epoch.
    """
    started, ended = state.instances_started, state.ended
    if started is None:
        return Bill(state, (), None, not_started(state) or NOT_STARTED, unpriced, lambda *_: 0.0)
    charges = []
    for host in state.hosts:
        price = prices.get(host.group)
        why_not = unpriced.get(host.group, f"the instance type of {host.group} is not known")
        charges.append(Charge(host.group, host.host, host.seconds(now), 1, price, "" if price else why_not))

    def hourly(start: float, end: float) -> float:
        return math.fsum(
            charge.hourly * host.within(start, end) / (end - start)
            for charge, host in zip(charges, state.hosts, strict=True)
        )

    window = Window(started, now if ended is None else ended)
    note = "so far" if ended is None else ""
    return Bill(state, tuple(charges), window, NOT_STARTED, unpriced, hourly, note)


def bill_of_platform(state: RunState, unpriced: Mapping[str, str], region: str, on: date | None) -> Bill:
    """Returns what a platform has billed, at least one attempt.

    Args:
        state: what the events of the run say.
        unpriced: why a group has no price.
        region: whose prices are taken; empty for that of each attempt.
        on: day of the run: no later price is taken.
    """
    charges = []
    for attempt in state.billed:
        for group, (kind, count) in attempt.groups.items():
            price = price_of(kind, region or attempt.region, on=on)
            free = price is not None or not attempt.billable_seconds
            why_not = "" if free else f"no price of {kind} in {region or attempt.region} is known"
            charges.append(Charge(group, attempt.number, attempt.billable_seconds, count, price, why_not))
    last = state.billed[-1]
    share = last.billable_seconds / last.training_seconds if last.training_seconds else 0.0
    hourly = share * math.fsum(charge.hourly * charge.instances for charge in charges[-len(last.groups) :])
    ran = [(each.started, each.ended) for each in state.billed if each.started is not None and each.ended is not None]
    window = Window(min(start for start, _ in ran), max(end for _, end in ran)) if ran else None
    return Bill(state, tuple(charges), window, "", unpriced, lambda *_: hourly)


def billed_text(attempts: Iterable[AttemptBilled]) -> Iterator[str]:
    """Yields what a platform has billed, a sentence an attempt."""
    for each in attempts:
        types = ", ".join(f"{count} x {kind}" for kind, count in each.groups.values())
        spared = each.training_seconds - each.billable_seconds
        less = f", {100 * spared / each.training_seconds:.0f} % less" if spared > 0 else ""
        yield (
            f"billed by the service: {each.name} in {each.region}, {types}: {each.billable_seconds} s of "
            f"{each.training_seconds} s{less}"
        )


def origin(price: Price) -> str:
    """Returns a price in words: what it is, how sure it is, of when and who says so."""
    how = f"{price.status}: {price.rule}" if price.rule else price.status
    what = f"{price.instance_type} in {price.region}: {price.price:g} {price.unit}, {price.term}"
    return f"price of {what}, as of {price.as_of}, {how}; source: {price.source}"


def age_text(prices: Iterable[Price | None], today: date) -> str:
    """Returns that prices are old, of which years, and how newer ones come; empty where none is older than a year."""
    known = [price for price in prices if price is not None]
    old = [price for price in known if (today - last_day(price.as_of)).days > _OLD_DAYS]
    if not old:
        return ""
    years = sorted({price.as_of[:4] for price in old})
    span = years[0] if len(years) == 1 else f"{years[0]} to {years[-1]}"
    regions = " ".join(f"--region {region}" for region in sorted({price.region for price in old}))
    return f"OLD prices, of {span}: `headrace prices update {regions}` asks AWS for those of today"


def per_step(rate: Figure, training: LoaderReport | None) -> Figure:
    """Returns what a step costs at a price an hour; the spread is that of the step time."""
    step = training.step_time if training else None
    return _following("cost_per_step", rate, step, lambda milliseconds: milliseconds / 1000)


def per_1000_samples(rate: Figure, training: LoaderReport | None) -> Figure:
    """Returns what 1,000 samples cost at a price an hour; the spread is that of the samples a second."""
    speed = training.samples_per_second if training else None
    return _following("cost_per_1000_samples", rate, speed, lambda samples: 1000 / samples)


def _following(name: str, rate: Figure, source: Figure | None, seconds: Callable[[float], float]) -> Figure:
    """Returns what the seconds cost that follow from a figure of the training; its spread is that of these costs."""
    if rate.value is None or source is None or not source.value:
        why = rate.note or (source.note if source else "") or "no samples were counted"
        return missing(name, why)
    spread = None
    if source.spread is not None and source.spread.low > 0:
        low, high = sorted(cost(rate.value, seconds(end)) for end in (source.spread.low, source.spread.high))
        spread = Spread(low, high, source.spread.count)
    return figure_of(name, cost(rate.value, seconds(source.value)), source.window, spread)


def amount(value: float) -> str:
    """Returns an amount with two decimals, or more while fewer than three digits count.

    >>> amount(0.0), amount(37.688), amount(0.204), amount(0.0000301)
    ('0.00', '37.69', '0.204', '0.0000301')
    """
    places = 2 if not value else max(2, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


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
) -> Projection:
    """Returns what a job may cost. Pure.

    Args:
        groups: its instance groups.
        max_run: seconds after which it is stopped; 0 for no limit.
        max_cost: its budget, None without one.
        region: whose prices are taken; None for us-east-1, which a note says.
    """
    where = region or DEFAULT_REGION
    prices = {group.name: price_of(group.instance_type, where) for group in groups}
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
