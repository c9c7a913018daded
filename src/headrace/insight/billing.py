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
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.prices import CURRENCY, DEFAULT_REGION, SECONDS_PER_HOUR, Price, cost, last_day, price_of, regions
from headrace.insight.figures.figure import FORMULAS, Figure, Spread, Window, figure_of, missing
from headrace.insight.figures.run_files import PlannedGroup
from headrace.runs import RunState
from headrace.runs.describe import billed
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

PriceOf = Callable[[str, str], "Price | None"]
"""Returns the price of an instance type in a region."""


@dataclass(frozen=True)
class PlatformBill:
    """The bill.

    Attributes:
        attempts: what was billed, in the order of time; at least one.
        price_of: the prices.
        region: whose prices are taken; empty for that of each attempt.
    """

    attempts: tuple[AttemptBilled, ...]
    price_of: PriceOf
    region: str = ""

    @property
    def window(self) -> Window | None:
        """From the start of the first attempt's instances to the end of the last one's; None when none has started."""
        moments = [(each.started, each.ended) for each in self.attempts]
        ran = [(start, end) for start, end in moments if start is not None and end is not None]
        return Window(min(start for start, _ in ran), max(end for _, end in ran)) if ran else None

    def price(self, attempt: AttemptBilled, group: str) -> Price | None:
        """Returns the price of an instance of a group in an attempt; None when it is not known."""
        kind, _ = attempt.groups[group]
        return self.price_of(kind, self.region or attempt.region)

    def why_unknown(self, group: str | None = None) -> str:
        """Returns why the money of a group, or of all of them, is not known; empty when it is."""
        lacking = dict.fromkeys(
            f"no price of {attempt.groups[name][0]} in {self.region or attempt.region} is known"
            for attempt, name in self._parts(group)
            if self.price(attempt, name) is None and attempt.billable_seconds
        )
        return "; ".join(lacking)

    def seconds(self, group: str) -> float:
        """Returns the billed seconds of all instances of a group, added up."""
        return math.fsum(each.billable_seconds * each.groups[name][1] for each, name in self._parts(group))

    def seconds_of_hosts(self, hosts: Sequence[HostTime]) -> float:
        """Returns the billed seconds of some hosts, added up."""
        return math.fsum(
            each.billable_seconds for host in hosts for each in self.attempts if each.number in host.billed
        )

    def money(self, group: str | None = None, numbers: Sequence[int] | None = None, *, one: bool = False) -> float:
        """Returns what instances cost. To be asked when `why_unknown` is empty.

        Args:
            group: whose; None for all groups.
            numbers: of which attempts; None for all.
            one: of one instance of the group only.
        """
        parts = [(each, name) for each, name in self._parts(group) if numbers is None or each.number in numbers]
        return math.fsum(
            cost(self._hourly(each, name), each.billable_seconds) * (1 if one else each.groups[name][1])
            for each, name in parts
        )

    def per_hour(self) -> float:
        """Returns what an hour of the last attempt costs: all its instances, for as much of it as is billed."""
        last = self.attempts[-1]
        share = last.billable_seconds / last.training_seconds if last.training_seconds else 0.0
        return share * math.fsum(self._hourly(last, name) * count for name, (_, count) in last.groups.items())

    def sentences(self) -> Iterator[str]:
        """Yields what was billed, a sentence an attempt."""
        for each in self.attempts:
            types = ", ".join(f"{count} x {kind}" for kind, count in each.groups.values())
            spared = each.training_seconds - each.billable_seconds
            less = f", {100 * spared / each.training_seconds:.0f} % less" if spared > 0 else ""
            yield (
                f"billed by the service: {each.name} in {each.region}, {types}: {each.billable_seconds} s of "
                f"{each.training_seconds} s{less}"
            )

    def _parts(self, group: str | None) -> Iterator[tuple[AttemptBilled, str]]:
        for attempt in self.attempts:
            for name in attempt.groups:
                if group in (None, name):
                    yield attempt, name

    def _hourly(self, attempt: AttemptBilled, group: str) -> float:
        price = self.price(attempt, group)
        return 0.0 if price is None else price.price  # of an attempt that is billed nothing


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


@dataclass(frozen=True)
class Bill:
    """The clocks of a run and the prices of its groups.

    Attributes:
        state: what its events say.
        prices: of an instance of each group, None where it is not known.
        why_not: why it is not known, see `unpriced`.
        now: until when clocks count that still run, seconds since the epoch.
        service: what the platform bills; None where headrace's own clocks count.
    """

    state: RunState
    prices: Mapping[str, Price | None]
    why_not: Mapping[str, str]
    now: float
    service: PlatformBill | None = None

    @property
    def window(self) -> Window | None:
        """From the start of the instances to the end of the run, or to now; None when none has started."""
        if self.service is not None:
            return self.service.window
        started = self.state.instances_started
        return None if started is None else Window(started, self.now if self.state.ended is None else self.state.ended)

    def why_unknown(self, groups: Sequence[str]) -> str:
        """Returns why these groups' money is not known; empty when it is."""
        if self.service is not None:
            return "; ".join(dict.fromkeys(filter(None, map(self.service.why_unknown, dict.fromkeys(groups)))))
        if self.window is None:
            return not_started(self.state) or NOT_STARTED
        unknown = [self.why_not.get(name, f"the instance type of {name} is not known") for name in groups]
        words = [why for name, why in zip(groups, unknown, strict=True) if self.prices.get(name) is None]
        return "; ".join(dict.fromkeys(words))

    def total(self) -> Figure:
        """Returns what all hosts cost, each to its own end; what the platform bills where it does."""
        if self.service is None:
            return self.of("cost", self.state.hosts)
        return self._billed(self.service, None)

    def of_group(self, name: str) -> Figure:
        """Returns what the hosts of a group cost, likewise."""
        if self.service is None:
            return self.of("cost", [host for host in self.state.hosts if host.group == name])
        return self._billed(self.service, name)

    def of_host(self, host: HostTime) -> Figure:
        """Returns what a host costs, likewise."""
        if self.service is None:
            return self.of("cost", [host])
        unknown = self.service.why_unknown(host.group)
        if unknown:
            return missing("cost", unknown)
        value = self.service.money(host.group, host.billed, one=True)
        return figure_of("cost", value, self.window)

    def seconds(self, hosts: Sequence[HostTime], group: str = "") -> Figure:
        """Returns the seconds that count of some hosts, added up; of a whole group when it is named."""
        if self.service is not None:
            billed = self.service.seconds(group) if group else self.service.seconds_of_hosts(hosts)
            return figure_of("billable_seconds", billed, self.window)
        if self.window is None or not hosts:
            return missing("billable_seconds", NOT_STARTED)
        return figure_of("billable_seconds", math.fsum(host.seconds(self.now) for host in hosts), self.window)

    def _billed(self, service: PlatformBill, group: str | None) -> Figure:
        unknown = service.why_unknown(group)
        if unknown:
            return missing("cost", unknown)
        return figure_of("cost", service.money(group), self.window)

    def of(self, name: str, hosts: Sequence[HostTime]) -> Figure:
        """Returns what hosts cost by headrace's own clocks, each to its own end."""
        unknown = self.why_unknown([host.group for host in hosts]) or ("" if hosts else NOT_STARTED)
        if unknown:
            return missing(name, unknown)
        value = math.fsum(cost(self.price(host), host.seconds(self.now)) for host in hosts)
        return figure_of(name, value, self.window, note="so far" if self.state.ended is None else "")

    def per_hour(self, start: float, end: float) -> float:
        """Returns the price an hour of the hosts that ran between two moments, averaged over them."""
        if self.service is not None:
            return self.service.per_hour()
        shares = (self.price(host) * host.within(start, end) / (end - start) for host in self.state.hosts)
        return math.fsum(shares)

    def price(self, host: HostTime) -> float:
        """Returns the price of a host that has one."""
        price = self.prices[host.group]
        assert price is not None
        return price.price


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


def platform(bill: Bill, groups: Sequence[PlannedGroup]) -> Figure:
    """Returns what the platform would bill: every instance to the end of the run; or what it has billed."""
    if bill.service is not None:
        return msgspec.structs.replace(bill.total(), name="cost_platform")
    seconds = billed(bill.state, bill.now)
    unknown = bill.why_unknown([group.name for group in groups]) or ("" if groups else "the groups are not known")
    if unknown or seconds is None:
        return missing("cost_platform", unknown)
    every = math.fsum(bill.price(host) for host in bill.state.hosts)
    note = "so far" if bill.state.ended is None else ""
    return figure_of("cost_platform", cost(every, seconds), bill.window, note=note)


def per_hour(bill: Bill, window: Window | None) -> Figure:
    """Returns the price an hour of the hosts that ran in the training window."""
    if window is None or not window.seconds:
        return missing("cost_per_hour", "no loader has a record after its warm-up")
    unknown = bill.why_unknown([host.group for host in bill.state.hosts])
    if unknown:
        return missing("cost_per_hour", unknown)
    return figure_of("cost_per_hour", bill.per_hour(window.start, window.end), window)


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
