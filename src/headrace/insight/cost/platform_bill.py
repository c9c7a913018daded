"""What a platform bills for a run: its own seconds of every attempt, at the prices of where and on what that ran. Pure.

It counts from the platform's own answers (`AttemptBilled`), not from headrace's clocks: there, every instance costs to
the end of its attempt, whether its host was released or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.catalog.cost import cost
from headrace.catalog.prices import Price
from headrace.insight.figures.figure import Window
from headrace.runs.events import AttemptBilled
from headrace.runs.lifecycle import HostTime

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
