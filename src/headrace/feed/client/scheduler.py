"""Who makes what, and when: the client's side of the feed, as a state machine without I/O.

The shell (`session`) pushes batches in plan order, tells which sources there are, what they answered and what time it
is, and asks what to send next. Sockets, slabs, processes and clocks are not known here.

A `Bundle` is one batch, or several small consecutive ones that are made and stored together. A `Part` of a bundle is
what one source is asked for: rows of a single batch, or all batches of the bundle.

Invariants:
* a bundle is complete when every row has been made once; a second answer for a row is dropped;
* batches are handed out in plan order;
* a part whose worker was lost is asked again elsewhere; rows over which `MAX_DEATHS` executors died are not, they fail.
  After the first death the part is asked again in single rows, so that the second one names the row;
* the first batch in line is asked for before any other.

Placement: the earliest part goes to the source that is expected to finish it first, by its measured seconds per row and
what it already has to do. The workers of the trainer's own host are asked when the other hosts have all they can take,
because they take CPU time from the trainer. A source that is more than `SLOW` times slower than the best (a niced
worker beside a busy trainer) gets the latest part instead, one at a time: its help is welcome, and nobody waits for it
until the whole window has passed.

Hedging: when the first bundle in line is late, its part is asked a second time of a source that is idle; at most
`HEDGE_SHARE` of all requests, and the first answer counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.feed.client.work_units import Bundle, Part, Source
from headrace.feed.plan.epoch import BatchPlan

MAX_DEATHS = 2
MAX_SPLIT = 64  # pieces that a part is asked for in after a death
SLOW = 2.0
TARGET_SECONDS = 0.1  # worth of one part of a large batch
BUNDLE_SECONDS = 0.01  # worth of several small batches that travel together
BUNDLE_BATCHES = 64
HEDGE_SHARE = 0.05
HEDGE_FACTOR, HEDGE_SECONDS = 2.0, 0.1  # late: that many times the expected time, and that much more
_SMOOTHING = 0.2


class Placement(Protocol):
    """Decides where parts may be made, when workers hold different data; see `shard_placement`."""

    def cut(self, bundle: Bundle, *, most: int, stackable: bool) -> None:
        """Cuts a bundle into parts of at most `most` rows; leaves it when the layout must be learned first."""

    def place_whole(self, bundle: Bundle) -> None:
        """Finds who holds all of a batch that is made whole. If nobody ever can, the batch fails."""


class Schedule:
    """See the module. Sources and requests are numbers that the shell and this class share.

    Args:
        hedge: whether late parts are asked for twice.
    """

    def __init__(self, *, hedge: bool = True) -> None:
        self.sources: dict[int, Source] = {}
        self.bundles: dict[tuple[int, int], Bundle] = {}
        self.stackable = False  # rows may be asked for one by one: the layout is known
        self.placement: Placement | None = None  # when sources hold different data
        self.requests = 0
        self.hedges = 0
        self._hedge = hedge
        self._cost_per_row = 0.0

    # Batches

    def bundle_size(self, rows: int, size: int, limit: int) -> int:
        """Returns how many batches should travel together.

        Args:
            rows: rows of the next batch.
            size: bytes that a batch is expected to have, 0 when it is not known.
            limit: bytes that they may have together.
        """
        if self._cost_per_row == 0.0 or size == 0 or self.placement is not None:
            return 1
        affordable = BUNDLE_SECONDS / (self._cost_per_row * max(1, rows))
        return max(1, min(BUNDLE_BATCHES, int(affordable), limit // size))

    def push(self, plans: Sequence[BatchPlan]) -> None:
        """Adds the next batches in plan order, which travel together. They are of one epoch."""
        bundle = Bundle(tuple(plans))
        self.bundles[bundle.plan.epoch, bundle.plan.step] = bundle

    @property
    def head(self) -> Bundle | None:
        """The first bundle in line."""
        return next(iter(self.bundles.values()), None)

    @property
    def batches(self) -> int:
        """Number of batches on their way."""
        return sum(len(bundle.plans) for bundle in self.bundles.values())

    def pop(self, epoch: int, step: int) -> Bundle:
        """Takes the bundle that begins with a batch out."""
        return self.bundles.pop((epoch, step))

    def clear(self) -> list[int]:
        """Forgets all batches. Returns the requests that are under way; their answers will be stale."""
        self.bundles.clear()
        return [request for source in self.sources.values() for request in source.outstanding]

    # Sources

    def add_source(self, number: int, name: str, executors: int, now: float, *, shared: bool = False) -> None:
        """A source is ready to be asked."""
        self.sources[number] = Source(name, max(1, executors), shared, since=now)

    def remove_source(self, number: int) -> dict[int, Part]:
        """A source is gone. Returns what it owed, by request; it will be asked for elsewhere."""
        source = self.sources.pop(number, None)
        owed = dict(source.outstanding) if source is not None else {}
        for request, part in owed.items():
            part.requests.pop(request, None)
        return owed

    @property
    def executors(self) -> int:
        """Executors of all sources."""
        return sum(source.executors for source in self.sources.values())

    def stuck(self, now: float, limit: float) -> list[int]:
        """Returns the sources of one executor that have worked on one part for more than `limit` seconds."""
        return [
            number for number, source in self.sources.items()
            if source.executors == 1 and source.outstanding and now - source.since > limit
        ]  # fmt: skip

    # Asking

    def next_part(self) -> tuple[int, Part] | None:
        """Returns the next (source, part) to ask for, or None when nothing should be asked now."""
        if not self.sources:
            return None
        for waiting in self._waiting_parts(latest=False):
            chosen = self._choose(waiting)
            if chosen is not None:
                return chosen
            if waiting.holders is None or not any(source.has_room for source in self.sources.values()):
                break  # nobody could take a later part either
        return None

    def _choose(self, waiting: Part) -> tuple[int, Part] | None:
        """Returns whom to ask for a part that waits; a slow source is given the latest part instead."""
        able = self._able(waiting)
        if not able:
            return None
        finish = {number: self._finish(source, waiting.rows) for number, source in able.items()}
        near = SLOW * min(finish.values())
        for shared in (False, True):
            quick = [
                number
                for number, source in able.items()
                if source.shared is shared and source.has_room and finish[number] <= near
            ]
            if quick:
                return min(quick, key=lambda number: (finish[number], len(self.sources[number].outstanding))), waiting
        idle = [number for number, source in able.items() if not source.outstanding]
        if not idle:
            return None
        last = waiting if waiting.holders is not None else next(self._waiting_parts(latest=True), None)
        return (min(idle, key=lambda number: finish[number]), last) if last is not None else None

    def _able(self, part: Part) -> dict[int, Source]:
        """Returns the sources that hold a part's samples."""
        if part.holders is None:
            return self.sources
        return {number: source for number, source in self.sources.items() if number in part.holders}

    def _waiting_parts(self, *, latest: bool) -> Iterator[Part]:
        bundles = reversed(self.bundles.values()) if latest else iter(self.bundles.values())
        for bundle in bundles:
            if not bundle.parts and not bundle.failed:
                self._cut(bundle)
            if bundle.failed:
                continue
            parts = reversed(bundle.parts) if latest else iter(bundle.parts)
            for part in parts:
                if not part.done and not part.requests:
                    yield part

    def late_part(self, now: float) -> tuple[int, Part] | None:
        """Returns the part of the first bundle that is late, and an idle source other than those that have it."""
        head = self.head
        if head is None or head.failed or not self._hedge:
            return None
        if self.hedges + 1 > 1 + HEDGE_SHARE * self.requests:
            return None
        for part in head.parts:
            late = part.asked + HEDGE_FACTOR * part.expected + HEDGE_SECONDS
            if part.done or len(part.requests) != 1 or now < late:
                continue
            holders = set(part.requests.values())
            idle = [
                number
                for number, source in self._able(part).items()
                if number not in holders and not source.outstanding
            ]
            if idle:
                return min(idle, key=lambda number: self.sources[number].seconds_per_row), part
        return None

    def _cut(self, bundle: Bundle) -> None:
        rows = bundle.rows
        if self.placement is not None:
            share = TARGET_SECONDS / self._cost_per_row if self._cost_per_row else rows
            self.placement.cut(bundle, most=max(1, int(share)), stackable=self.stackable)
            return
        if (
            len(bundle.plans) > 1
            or not self.stackable
            or not bundle.plan.batched
            or self._cost_per_row * rows <= TARGET_SECONDS * 1.5
        ):
            bundle.parts = [Part(bundle, 0, rows, whole=False, deaths=bundle.deaths)]
            return
        self.split(bundle, 0, rows, math.ceil(self._cost_per_row * rows / TARGET_SECONDS), bundle.deaths)

    @staticmethod
    def split(
        bundle: Bundle, first: int, last: int, count: int, deaths: int, holders: frozenset[int] | None = None
    ) -> None:
        """Cuts rows first..last-1 of a bundle's batch into `count` parts."""
        rows = last - first
        count = min(rows, count)
        edges = [first + rows * k // count for k in range(count + 1)]
        bundle.parts += [
            Part(bundle, a, b, whole=False, deaths=deaths, holders=holders)
            for a, b in itertools.pairwise(edges)
            if b > a
        ]

    def _finish(self, source: Source, rows: int) -> float:
        """Seconds until the source would have made `rows` more rows."""
        pace = source.seconds_per_row or min(
            (other.seconds_per_row for other in self.sources.values() if other.seconds_per_row), default=1.0
        )
        return pace * (source.outstanding_rows / source.executors + rows)

    def asked(self, number: int, part: Part, now: float) -> int:
        """Notes that a part was sent to a source. Returns the request number."""
        self.requests += 1
        source = self.sources[number]
        if part.requests:
            self.hedges += 1
            part.twice = True
        else:
            part.asked, part.expected = now, self._finish(source, part.rows)
        if not source.outstanding:
            source.since = now
        part.requests[self.requests] = number
        source.outstanding[self.requests] = part
        return self.requests

    # Answers

    def answered(self, number: int, request: int, now: float) -> Part | None:
        """Takes a request off a source's list. Returns its part; None when nobody waits for it any more."""
        source = self.sources.get(number)
        part = source.outstanding.pop(request, None) if source is not None else None
        if source is None or part is None:
            return None
        source.since = now
        part.requests.pop(request, None)
        current = self.bundles.get((part.bundle.plan.epoch, part.bundle.plan.step))
        wanted = current is part.bundle and not part.done and any(part is own for own in part.bundle.parts)
        return part if wanted else None

    def done(self, number: int, part: Part, seconds: float, cpu: float) -> list[int]:
        """A part's rows are there. Returns the requests for it that are still under way: a hedge that was lost."""
        part.done = True
        source = self.sources[number]
        rows = max(1, part.rows)
        source.made += part.rows
        source.seconds_per_row = _smooth(source.seconds_per_row, seconds / rows)
        self._cost_per_row = _smooth(self._cost_per_row, max(seconds, cpu) / rows)
        return list(part.requests)

    def died(self, part: Part) -> bool:
        """An executor died over a part. Returns whether it may be asked for again.

        If so, it will be asked for in smaller parts where that is possible, so that a second death names the rows.
        """
        part.deaths += 1
        bundle = part.bundle
        if part.requests:
            return True  # the other one that was asked, because it was late, may still make it
        rows = len(bundle.plans) > 1 or (self.stackable and not part.whole and part.rows > 1)
        deaths = part.deaths - 1 if rows and part.twice else part.deaths  # two at the same time say no more than one
        if deaths >= MAX_DEATHS:
            return False
        if len(bundle.plans) > 1:
            self._unbundle(bundle, deaths=deaths)
        elif rows:
            bundle.parts.remove(part)
            self.split(bundle, part.first, part.last, MAX_SPLIT, deaths, part.holders)
            bundle.parts.sort(key=lambda own: own.first)
        return True

    def _unbundle(self, bundle: Bundle, *, deaths: int = 0) -> list[Bundle]:
        """Replaces a bundle by one of its own for each of its batches."""
        singles = [Bundle((plan,), deaths=deaths) for plan in bundle.plans]
        rebuilt: dict[tuple[int, int], Bundle] = {}
        for key, other in self.bundles.items():
            if other is bundle:
                rebuilt |= {(single.plan.epoch, single.plan.step): single for single in singles}
            else:
                rebuilt[key] = other
        self.bundles = rebuilt
        if deaths and self.stackable:
            for single in singles:
                self.split(single, 0, single.rows, MAX_SPLIT, deaths)
        return singles

    def make_whole(self, bundle: Bundle) -> None:
        """The bundle's samples do not stack row by row, or rows are left out: it will be asked for whole."""
        deaths = max((part.deaths for part in bundle.parts), default=0) if not bundle.left_out else 0
        bundle.parts = [Part(bundle, 0, bundle.rows, whole=True, deaths=deaths)]
        if self.placement is not None:
            self.placement.place_whole(bundle)

    def singles(self, bundle: Bundle) -> list[Bundle]:
        """Returns the bundles that stand for a bundle's batches one by one; it is replaced by them if need be."""
        return [bundle] if len(bundle.plans) == 1 else self._unbundle(bundle)

    def start_over(self, bundle: Bundle) -> None:
        """Forgets the rows that were made: their slab may still be written to by a lost worker."""
        for part in bundle.parts:
            part.done = False
            for request, number in part.requests.items():  # the answer will be stale, but is still waited for
                self.sources[number].outstanding[request] = Part(bundle, part.first, part.last, part.whole)
            part.requests.clear()


def _smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
