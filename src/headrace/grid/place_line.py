"""Chooses the region of a line among candidates: what each costs, how long it takes, and why it cannot be. Pure.

The same line, rules and price list give the same place.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import NamedTuple

from headrace.catalog.prices import DEFAULT_REGION, Price, cost, price_of
from headrace.grid.grid_file import DataSet, PlacementRules


class Refusal(Enum):
    """Why a line cannot run in a region."""

    LAW = "law"
    NOT_OFFERED = "not offered"
    QUOTA = "quota"
    SCORE = "placement score"
    SIZE_UNKNOWN = "size of the data unknown"
    NOT_COPIED = "a list of objects, which would have to be copied:"
    NO_PLACE = "copy_to names no place there for"
    DEADLINE = "deadline"
    OTHER_REGION = "the line names another region"


@dataclass(frozen=True)
class Refused:
    """Why, with what decided.

    Attributes:
        refusal: the kind.
        what: the type, data set or limit that it is about.
        number: that decided; None where no number did.
        limit: with which it was compared; None where there was none.
    """

    refusal: Refusal
    what: str = ""
    number: float | None = None
    limit: float | None = None


class PlaceSize(NamedTuple):
    """How much a place holds.

    Attributes:
        gigabytes: GB, of 10^9 bytes.
        objects: how many.
    """

    gigabytes: float
    objects: int


@dataclass(frozen=True)
class Copy:
    """Data that a line needs in a region where they are not.

    Attributes:
        place: ``s3://`` place of the data.
        source, region: where they are, and where they are needed.
        gigabytes: how much.
        cost: USD.
        seconds: that it takes.
        objects: how many they are; None when unknown.
    """

    place: str
    source: str
    region: str
    gigabytes: float
    cost: float
    seconds: float
    objects: int | None = None


class Candidate(NamedTuple):
    """A region for a line.

    Attributes:
        region: its name.
        price: USD an hour of all hosts, as they are paid; None when `unpriced` has something.
        prices: rows of the price list that it is made of.
        unpriced: types whose price is unknown, ``spot`` for an unknown share of it. Where a price decides, such a
            region comes last.
        run_cost: USD, for the seconds that the job is expected to run; None with an unknown price.
        copies: data that must be copied first; their cost is in `cost`, though other lines may share them.
        seconds: until the job is done: the longest copy, and the run.
        reserved: all instances are paid already.
        refused: every reason against it; empty for a region that can be chosen.
        spot_share: of the list price, that is paid on spare capacity by the user's own measure; None where the list
            price is paid, or nobody said.
    """

    region: str
    price: float | None
    prices: tuple[Price, ...]
    unpriced: tuple[str, ...]
    run_cost: float | None
    copies: tuple[Copy, ...]
    seconds: float
    reserved: bool
    refused: tuple[Refused, ...]
    spot_share: float | None = None

    @property
    def copy_cost(self) -> float:
        """USD for copies."""
        return sum(copy.cost for copy in self.copies)

    @property
    def cost(self) -> float | None:
        """USD for copies and run; None with an unknown price."""
        return None if self.run_cost is None else self.run_cost + self.copy_cost


@dataclass(frozen=True)
class Placed:
    """Where a line runs.

    Attributes:
        demand: what it needs.
        chosen: the region; None when every one is refused.
        others: all other candidates, the best ones first, refused ones last.
        decided_by: the first wish in which the chosen one is better than the best other one; empty when there is no
            other one that can be chosen, or nothing but the name tells them apart.
    """

    demand: Demand
    chosen: Candidate | None
    others: tuple[Candidate, ...]
    decided_by: str = ""

    @property
    def possible(self) -> tuple[Candidate, ...]:
        """The regions in which the line may run, the first choice first."""
        return () if self.chosen is None else (self.chosen, *(each for each in self.others if not each.refused))


_Merit = tuple[bool, float]
"""How a candidate stands in a wish: whether it does not fulfil it, or cannot be compared; the number that counts."""


@dataclass(frozen=True)
class Demand:
    """What a line's job needs.

    Attributes:
        hosts: instance type to number of hosts.
        places: ``s3://`` places that its channels read.
        run_seconds: that it is expected to run.
        region: that the line names; empty when it names none.
        lists: places of these that list objects elsewhere, such as manifests: such data are not copied.
        otherwise: region when nothing else names one: the job's own; empty for an engine without regions, where prices
            are those of the default region; None when there is none.
        spot: it runs on spare capacity.
    """

    hosts: Mapping[str, int]
    places: Sequence[str] = ()
    run_seconds: float = 0.0
    region: str = ""
    lists: frozenset[str] = frozenset()
    otherwise: str | None = None
    spot: bool = False


@dataclass
class Placer:
    """Places lines, one after the other: what a line takes of a reservation the next ones have no more.

    Attributes:
        rules: of the user.
        measured: sizes of places that the rules do not know.
    """

    rules: PlacementRules
    measured: Mapping[str, PlaceSize] = field(default_factory=dict)
    _taken: Counter[tuple[str, str]] = field(default_factory=Counter)

    def place(self, demand: Demand) -> Placed:
        """Chooses a region. Law, capacity and the deadline refuse; wishes choose among the rest."""
        data = [(place, self._known(place)) for place in demand.places]
        candidates = [self._candidate(demand, data, region) for region in self._candidates(demand, data)]
        possible = sorted((each for each in candidates if not each.refused), key=self._rank)
        refused = sorted((each for each in candidates if each.refused), key=lambda each: each.region)
        if not possible:
            return Placed(demand, None, tuple(refused))
        decided = self._decided_by(possible[0], possible[1]) if len(possible) > 1 else ""
        self._take(demand, possible[0].region)
        return Placed(demand, possible[0], (*possible[1:], *refused), decided)

    def _known(self, place: str) -> DataSet | None:
        found, size = self.rules.data_of(place), self.measured.get(place)
        return found.model_copy(update={"gigabytes": size.gigabytes}) if found and size else found

    def _candidates(self, demand: Demand, data: Sequence[tuple[str, DataSet | None]]) -> tuple[str, ...]:
        named = (demand.region,) if demand.region else ()
        known = tuple(found.region for _, found in data if found)
        found = tuple(dict.fromkeys((*named, *(self.rules.regions or known))))
        return found if found or demand.otherwise is None else (demand.otherwise,)

    def _candidate(self, demand: Demand, data: Sequence[tuple[str, DataSet | None]], region: str) -> Candidate:
        rules = self.rules
        free = self._reserved(demand, region)
        spot_share = rules.spot.of(region) if rules.spot and demand.spot else None
        share = spot_share if rules.spot and demand.spot else 1.0
        to_pay = tuple((kind, max(0, count - free[kind])) for kind, count in demand.hosts.items())
        bill = _bill(to_pay, region, rules.on, share)
        copies = tuple(self._copies(data, region))
        seconds = max((copy.seconds for copy in copies), default=0.0) + demand.run_seconds
        return Candidate(
            region=region,
            price=None if bill.unpriced else bill.price,
            prices=tuple(price for price in bill.prices.values() if price),
            unpriced=bill.unpriced,
            run_cost=None if bill.unpriced else cost(bill.price, demand.run_seconds),
            copies=copies,
            seconds=seconds,
            reserved=all(free[kind] >= count for kind, count in demand.hosts.items()),
            refused=tuple(self._against(demand, data, region, bill.prices, free, seconds)),
            spot_share=spot_share,
        )

    def _reserved(self, demand: Demand, region: str) -> Counter[str]:
        free: Counter[str] = Counter()
        if region not in self.rules.reservations:
            return free
        for each in self.rules.reservations[region]:
            if each.instance_type in demand.hosts:
                free[each.instance_type] += each.count
        for kind in free:
            free[kind] -= self._taken[region, kind]
        return free

    def _take(self, demand: Demand, region: str) -> None:
        free = self._reserved(demand, region)
        for kind, count in demand.hosts.items():
            self._taken[region, kind] += min(count, free[kind])

    def _copies(self, data: Sequence[tuple[str, DataSet | None]], region: str) -> Iterator[Copy]:
        transfer = self.rules.transfer
        for place, found in data:
            if found and found.region != region and found.gigabytes is not None:
                size = found.gigabytes
                objects = self.measured[place].objects if place in self.measured else None
                yield Copy(place, found.region, region, size, size * transfer.price, size / transfer.speed, objects)

    def _against(
        self,
        demand: Demand,
        data: Sequence[tuple[str, DataSet | None]],
        region: str,
        prices: Mapping[str, Price | None],
        free: Counter[str],
        seconds: float,
    ) -> Iterator[Refused]:
        rules = self.rules
        if demand.region not in ("", region):
            yield Refused(Refusal.OTHER_REGION, demand.region)
        for place, found in data:
            if found and found.stays_in and region not in found.stays_in:
                yield Refused(Refusal.LAW, place)
            elif found and found.region != region:
                if place in demand.lists:
                    yield Refused(Refusal.NOT_COPIED, place)
                elif found.gigabytes is None:
                    yield Refused(Refusal.SIZE_UNKNOWN, place)
                if rules.copy_to and region not in rules.copy_to:
                    yield Refused(Refusal.NO_PLACE, place)
        for kind, count in demand.hosts.items():
            price, needed = prices[kind], count - free[kind]
            if price is not None and price.offered is False:
                yield Refused(Refusal.NOT_OFFERED, kind)
            quota = rules.quotas.get(region, {}).get(kind)
            if quota is not None and needed > quota:
                yield Refused(Refusal.QUOTA, kind, needed, quota)
        score = rules.scores.get(region)
        if score is not None and score < rules.least_score:
            yield Refused(Refusal.SCORE, region, score, rules.least_score)
        if rules.deadline is not None and seconds > rules.deadline:
            yield Refused(Refusal.DEADLINE, "", seconds, rules.deadline)

    def _rank(self, candidate: Candidate) -> tuple[tuple[_Merit, ...], str]:
        return tuple(_merit(candidate, wish) for wish in self._wishes), candidate.region

    @property
    def _wishes(self) -> tuple[str, ...]:
        """What counts, in its order: of regions that fulfil all wishes alike the cheapest."""
        wishes = self.rules.wishes
        return wishes if "cheapest" in wishes else (*wishes, "cheapest")

    def _decided_by(self, best: Candidate, next_best: Candidate) -> str:
        return next((wish for wish in self._wishes if _merit(best, wish) != _merit(next_best, wish)), "")


def _merit(candidate: Candidate, wish: str) -> _Merit:
    """Returns how a candidate stands in one wish: less is better. Of an unknown cost copies are the known part."""
    if wish == "reserved":
        return (not candidate.reserved, 0.0)
    if wish == "data_local":
        return (False, len(candidate.copies))
    if wish == "fastest":
        return (False, round(candidate.seconds, 3))
    total = candidate.cost
    return (total is None, round(candidate.copy_cost if total is None else total, 6))


@dataclass(frozen=True)
class _Bill:
    """What hosts cost in a region: price an hour, types whose price is unknown, list prices by type."""

    price: float
    unpriced: tuple[str, ...]
    prices: Mapping[str, Price | None]


@functools.lru_cache(maxsize=4096)
def _bill(to_pay: tuple[tuple[str, int], ...], region: str, on: date | None, share: float | None) -> _Bill:
    """Returns what so many hosts of each type cost; `share` of the list price is paid, None: nobody knows it."""
    prices = {kind: price_of(kind, region or DEFAULT_REGION, on=on) for kind, _ in to_pay}
    unpriced = [kind for kind, count in to_pay if count and prices[kind] is None]
    unpriced += ["spot"] if share is None and any(count for _, count in to_pay) else []
    counts = dict(to_pay)
    paid = sum(price.price * (share or 0.0) * counts[kind] for kind, price in prices.items() if price)
    return _Bill(paid, tuple(unpriced), prices)
