"""Who makes what, and when: the client's side of the feed, as a state machine without I/O.

The session pushes batches in plan order. `exchange` reports which workers there are, what they answered and what time
it is, and gets the next slice to request. There are no sockets, slabs, processes and clocks here.

A `Bundle` is one batch, or several small consecutive ones that are made and stored together. A `Slice` of a bundle is
what one worker is asked for: rows of a single batch, or all batches of the bundle.

Invariants:
* a bundle is complete when every row has been made once; a second answer for a row is dropped;
* batches are handed out in plan order;
* a slice whose worker was lost is requested elsewhere, after a death in smaller ones, at last in single rows. A row
  over which `MAX_DEATHS` executors died while they made it alone fails, and a batch that can only be made whole does
  after `MAX_DEATHS_TOGETHER`: a worker may be killed from outside, and what it was making then is not to blame;
* the first batch in line is asked for before any other.

Placement: the earliest slice goes to the worker that is expected to finish it first, by its measured seconds per row
and what it already has to do. The workers of the trainer's own host are asked when the other hosts have all they can
take, because they take CPU time from the trainer. A worker that is more than `SLOW` times slower than the best (a niced
worker beside a busy trainer) gets the latest slice instead, one at a time: it still helps, and the loader does not wait
for it until the whole window has passed.

Depth: an executor is asked for `DEPTH` slices, so that it never waits for the next one. While the trainer has a batch
nobody asks: so before that, each is asked for as much work as that took lately (`unattended`).

Idle workers go through the slices in plan order. One makes a copy of the first bundle's slice if that is late, also
while others wait: the trainer waits for it. (With executors that hang, simulated, the other order took a tenth longer,
with as many copies.) While no slice waits, one takes the earliest slice that nobody has begun. To take a slice, its
request is cancelled: the worker that has it gives it back, and it waits like any other. A worker that is stuck gives
nothing back, so after `HEDGE_SECONDS` the slice is asked for elsewhere all the same: that is no work done twice, as it
was not begun. Copies are at most a share of `HEDGE_SHARE` of all requests; the first answer counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.feed.client.lane_homes import Holdings, LaneHomes
from headrace.feed.client.work_units import Bundle, Purpose, Request, Slice
from headrace.feed.client.worker_pool import Worker
from headrace.feed.identifiers import RequestNumber, WorkerNumber
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.worker.executor_rules import DEPTH

if TYPE_CHECKING:
    from headrace.feed.client.verifier import Check

MAX_DEATHS = 2
MAX_DEATHS_TOGETHER = 4
MAX_SPLIT = 64  # pieces that a slice is asked for in after a death
MAX_ENDING = 4  # rows of a batch that are found by ending workers, each alone, before the others are made together
SLOW = 2.0
TARGET_SECONDS = 0.1  # worth of one slice of a large batch
BUNDLE_SECONDS = 0.01  # worth of several small batches that travel together
BUNDLE_BATCHES = 64
LEAD = 1.25  # as many times the work that is expected to be done is asked for: estimates are no facts
_SMOOTHING = 0.2


class IdleWork(NamedTuple):
    """What idle workers are to do.

    Attributes:
        taken: requests to cancel: they are taken from workers that have not begun them.
        again: an idle worker, and a slice to ask of it that another one was asked for; None for none.
    """

    taken: list[Request]
    again: tuple[WorkerNumber, Slice] | None = None


class Everywhere:
    """Every worker holds all rows under the same numbers: any may be asked for any. Lanes are placed by `LaneHomes`.

    `RowPlacement` is for workers that hold different rows.

    Attributes:
        bundles: whether several batches may travel together.
        needs_layout: whether it must be known how rows are laid out before a batch is cut, see `LayoutProbe`.
    """

    bundles, needs_layout = True, False

    def cut(self, bundle: Bundle, cost: float, *, stackable: bool) -> None:
        """Cuts a bundle into slices; leaves it when the layout must be learned first.

        Args:
            bundle: that has none.
            cost: seconds that a row takes; 0 while it is not known.
            stackable: whether rows may be asked for one by one: the layout is known.
        """
        rows = bundle.rows
        if len(bundle.plans) > 1 or not stackable or not bundle.plan.batched or cost * rows <= TARGET_SECONDS * 1.5:
            bundle.slices = [Slice(bundle, 0, rows, whole=False)]
        else:
            bundle.split(0, rows, math.ceil(cost * rows / TARGET_SECONDS))

    def place_whole(self, bundle: Bundle) -> None:
        """Finds the workers for a batch that is made whole. If there can be none, the batch fails."""

    def recut(self, bundle: Bundle) -> None:
        """Cuts anew what is not under way: a worker has come or gone."""

    def makers(self, worker: Worker, workers: Mapping[WorkerNumber, Worker]) -> Mapping[WorkerNumber, Worker]:
        """Returns those of some workers that can make again what a worker has made."""
        return workers

    def holders(self, key: object) -> Collection[WorkerNumber]:
        """Returns the workers that hold a row, where layouts must be learned."""
        return ()

    def local(self, worker: Worker, keys: Sequence[Any]) -> Sequence[Any]:
        """Returns what samples are called on a worker."""
        return keys


class Schedule:
    """See the module.

    Args:
        holdings: which lanes a worker can read.
    """

    def __init__(self, holdings: Holdings | None = None) -> None:
        self.workers: dict[WorkerNumber, Worker] = {}
        self.bundles: dict[tuple[int, int], Bundle] = {}
        self.stackable = False  # rows may be asked for one by one: the layout is known
        self.placement = Everywhere()
        self.lanes = LaneHomes(holdings)
        self.requested = 0  # requests so far
        self.hedges = 0
        self._cost_per_row = 0.0
        self._lead = 0.0
        self._quickest: float | None = None  # pace of the quickest worker; None: not looked up since one has changed

    # Batches

    def bundle_size(self, rows: int, size: int, limit: int) -> int:
        """Returns how many batches should travel together.

        Args:
            rows: rows of the next batch.
            size: bytes that a batch is expected to have, 0 when it is not known.
            limit: bytes that they may have together.
        """
        if self._cost_per_row == 0.0 or size == 0 or not self.placement.bundles:
            return 1
        affordable = BUNDLE_SECONDS / (self._cost_per_row * max(1, rows))
        return max(1, min(BUNDLE_BATCHES, int(affordable), limit // size))

    def push(self, plans: Sequence[BatchPlan]) -> None:
        """Adds the next batches in plan order, which travel together: of one epoch and equally many rows."""
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
        bundle = self.bundles.pop((epoch, step))
        _abandon(bundle)
        return bundle

    def clear(self) -> None:
        """Forgets all batches."""
        for bundle in self.bundles.values():
            _abandon(bundle)
        self.bundles.clear()

    # Workers

    def add_worker(self, worker: Worker, now: float) -> None:
        """A worker is ready to be asked."""
        worker.since, worker.lead = now, self._lead
        self.workers[worker.number] = worker
        self.recut()

    def recut(self) -> None:
        """A worker has come or gone: what is not under way may have other holders."""
        for bundle in self.bundles.values():
            self.placement.recut(bundle)

    def makers(self, worker: Worker, slice_: Slice) -> Mapping[WorkerNumber, Worker]:
        """Returns those that can make a slice of a worker again; all that are asked where they hold the same data."""
        if slice_.draw is not None:
            return self.lanes.holdings.readers(slice_.draw.cursor.lane, self.workers)
        return self.placement.makers(worker, self.workers)

    def remove_worker(self, worker: Worker) -> list[Request]:
        """A worker is gone. Returns the requests whose answers it owed; their slices will be requested elsewhere."""
        self.leave(worker)
        owed, worker.outstanding = list(worker.outstanding.values()), {}
        for request in owed:
            if request in request.slice.requests:
                request.slice.requests.remove(request)
        return owed

    def leave(self, worker: Worker) -> None:
        """A worker is to go: it is asked for nothing more, and what it owes is taken."""
        self.workers.pop(worker.number, None)
        self._quickest = None

    def unattended(self, seconds: float) -> None:
        """Workers will be asked for nothing for so long: while the trainer has its batch."""
        self._lead = LEAD * seconds
        for worker in self.workers.values():
            worker.lead = self._lead

    @property
    def executors(self) -> int:
        """Executors of all workers that are asked."""
        return sum(worker.executors for worker in self.workers.values())

    # Asking

    def next_slice(self) -> tuple[WorkerNumber, Slice] | None:
        """Returns the next (worker, slice) to ask for, or None when nothing should be asked now."""
        if not any(worker.has_room for worker in self.workers.values()):
            return None
        for waiting in self.waiting_slices(latest=False):
            chosen = self._choose(waiting)
            if chosen is not None:
                return chosen
            if not waiting.placed:
                break  # no worker could take a later slice either
        return None

    def _choose(self, waiting: Slice) -> tuple[WorkerNumber, Slice] | None:
        """Returns whom to ask for a slice that waits; a slow worker is given the latest slice instead."""
        able = self.able(waiting)
        if not able:
            return None
        finish = {number: self.finish(worker, waiting.rows) for number, worker in able.items()}
        near = SLOW * min(finish.values())
        for own_host in (False, True):
            quick = [
                number
                for number, worker in able.items()
                if worker.own_host is own_host and worker.has_room and finish[number] <= near
            ]
            if quick:
                return min(quick, key=lambda number: (finish[number], len(self.workers[number].outstanding))), waiting
        idle = [number for number, worker in able.items() if not worker.outstanding]
        if not idle:
            return None
        last = waiting if waiting.placed else next(self.waiting_slices(latest=True), None)
        return (min(idle, key=lambda number: finish[number]), last) if last is not None else None

    def able(self, slice_: Slice) -> Mapping[WorkerNumber, Worker]:
        """Returns the workers that hold a slice's samples, or go on with its lane."""
        if slice_.draw is not None:
            return self.lanes.able(slice_.draw.cursor.lane, self.workers)
        if slice_.holders is None:
            return self.workers
        return {number: worker for number, worker in self.workers.items() if number in slice_.holders}

    def waiting_slices(self, *, latest: bool) -> Iterator[Slice]:
        """Yields the slices that nobody has been asked for, those of the earliest, or the latest, batches first."""
        bundles = reversed(self.bundles.values()) if latest else iter(self.bundles.values())
        for bundle in bundles:
            if not bundle.slices and not bundle.failed:
                self.placement.cut(bundle, self._cost_per_row, stackable=self.stackable)
            if bundle.failures and bundle.failed:
                continue
            slices = reversed(bundle.slices) if latest else iter(bundle.slices)
            for slice_ in slices:
                if not slice_.done and not slice_.requests:
                    yield slice_

    def finish(self, worker: Worker, rows: int) -> float:
        """Seconds until the worker would have made `rows` more rows."""
        return self.pace(worker) * (worker.outstanding_rows / worker.executors + rows)

    def pace(self, worker: Worker) -> float:
        """Seconds that a row takes an executor of a worker; of one that has not answered yet, as the quickest one."""
        if worker.seconds_per_row:
            return worker.seconds_per_row
        if self._quickest is None:
            paces = (other.seconds_per_row for other in self.workers.values() if other.seconds_per_row)
            self._quickest = min(paces, default=1.0)
        return self._quickest

    def request(self, number: WorkerNumber, slice_: Slice, now: float) -> Request:
        """Requests the rows of a slice from a worker."""
        purpose: Purpose = "rows"
        if slice_.requests:
            purpose = "hedge" if slice_.requests[0].taken_back is None else "moved"
            self.hedges += purpose == "hedge"
        elif slice_.draw is not None:
            self.lanes.settle(slice_.draw.cursor.lane, number)
        request = self.ask(number, slice_, purpose, now)
        slice_.requests.append(request)
        return request

    def ask(
        self, number: WorkerNumber, slice_: Slice, purpose: Purpose, now: float, check: Check | None = None
    ) -> Request:
        """Asks a worker for a slice; for a ``check`` or ``layout`` it may be none of its bundle's own."""
        self.requested += 1
        worker = self.workers[number]
        expected = self.finish(worker, slice_.rows)
        request = Request(RequestNumber(self.requested), worker, slice_, purpose, now, expected, check)
        if not worker.outstanding:
            worker.since = now
        worker.owe(request)
        return request

    # Answers

    @staticmethod
    def answered(worker: Worker, number: RequestNumber, now: float) -> Request | None:
        """Takes a request off a worker's list. Returns None when it does not owe that answer (any more)."""
        request = worker.answered(number)
        if request is None:
            return None
        worker.since = now
        if request in request.slice.requests:
            request.slice.requests.remove(request)
        return request

    def done(self, request: Request, seconds: float, cpu: float) -> list[Request]:
        """A slice's rows are there. Returns the other requests for it: a hedge, or what was late."""
        slice_, worker = request.slice, request.worker
        slice_.done = True
        if request.purpose == "hedge" and slice_.draw is not None:
            self.lanes.settle(slice_.draw.cursor.lane, worker.number)
        rows = max(1, slice_.rows)
        worker.made += slice_.rows
        worker.seconds_per_row, self._quickest = _smooth(worker.seconds_per_row, seconds / rows), None
        self._cost_per_row = _smooth(self._cost_per_row, max(seconds, cpu) / rows)
        others, slice_.requests = slice_.requests, []
        for other in others:
            other.unwanted = True  # another worker was quicker
        return others

    def died(self, slice_: Slice) -> bool:
        """An executor died over a slice. Returns whether it may be asked for again.

        It will be asked for in smaller slices where that is possible; only rows that are made alone are ever given up.
        """
        slice_.deaths += 1
        bundle = slice_.bundle
        if slice_.requests:
            return True  # the other one that was asked, because it was late, may still make it
        if len(bundle.plans) > 1:
            self._unbundle(bundle, split=self.stackable)
            return True
        if self.stackable and slice_.rows > 1 and (not slice_.whole or (bundle.left_out and not bundle.singly)):
            bundle.singly = True
            self._cut_around(slice_, [row for row in range(slice_.first, slice_.last) if row in bundle.left_out])
            return True
        return slice_.deaths < (MAX_DEATHS if slice_.rows == 1 else MAX_DEATHS_TOGETHER)

    def go_around(self, slice_: Slice, row: int) -> None:
        """A row of a slice is left out: the others are asked for again, in smaller slices."""
        if slice_.rows > 1:
            self._cut_around(slice_, [row])

    def _cut_around(self, slice_: Slice, left_out: Sequence[int]) -> None:
        bundle = slice_.bundle
        bundle.slices.remove(slice_)
        for first, last in itertools.pairwise([slice_.first - 1, *left_out, slice_.last]):
            if last - first > 1:
                bundle.split(first + 1, last, MAX_SPLIT, slice_.holders)
        bundle.slices.sort(key=lambda own: own.first)

    def _unbundle(self, bundle: Bundle, *, split: bool = False) -> list[Bundle]:
        """Replaces a bundle by one of its own for each of its batches.

        Args:
            bundle: of several batches.
            split: ask for each of them in small slices.
        """
        singles = [Bundle((plan,)) for plan in bundle.plans]
        rebuilt: dict[tuple[int, int], Bundle] = {}
        for key, other in self.bundles.items():
            if other is bundle:
                rebuilt |= {(single.plan.epoch, single.plan.step): single for single in singles}
            else:
                rebuilt[key] = other
        self.bundles = rebuilt
        if split:
            for single in singles:
                single.singly = True
                single.split(0, single.rows, MAX_SPLIT)
        return singles

    def make_whole(self, bundle: Bundle) -> None:
        """The bundle's samples do not stack row by row, or rows are left out: it will be asked for whole."""
        deaths = max((slice_.deaths for slice_ in bundle.slices), default=0) if not bundle.left_out else 0
        _abandon(bundle)
        bundle.slices = [Slice(bundle, 0, bundle.rows, whole=True, deaths=deaths)]
        self.placement.place_whole(bundle)

    def singles(self, bundle: Bundle) -> list[Bundle]:
        """Returns the bundles that stand for a bundle's batches one by one; it is replaced by them if need be."""
        return [bundle] if len(bundle.plans) == 1 else self._unbundle(bundle)

    def start_over(self, bundle: Bundle) -> None:
        """Forgets the rows that were made: their slab may still be written to by a lost worker."""
        _abandon(bundle)
        for slice_ in bundle.slices:
            slice_.done = False

    # Workers that have nothing to do

    def idle_work(self, now: float, *, hedge: bool = True) -> IdleWork:
        """Returns what workers that have nothing to do are to do; `hedge`: whether slices may be asked for twice."""
        taken, again = list[Request](), None
        idle = {number: worker for number, worker in self.workers.items() if not worker.outstanding}
        if not idle:
            return IdleWork(taken)
        head, queued = self.head, self._queued(now)
        waits = next(self.waiting_slices(latest=False), None) is not None
        slices = (slice_ for bundle in self.bundles.values() if not bundle.failed for slice_ in bundle.slices)
        for slice_ in slices:
            if slice_.done or len(slice_.requests) != 1:
                continue
            [first] = slice_.requests
            begun, draw, able = first not in queued and first.taken_back is None, slice_.draw, self.able(slice_)
            if begun:
                if not hedge or again is not None or slice_.bundle is not head or not self._may_copy(first, now):
                    continue
                able = able if draw is None else self.lanes.quick(draw, self.workers)
            sooner = {number: self.finish(idle[number], slice_.rows) for number in able if number in idle}
            if not sooner:
                continue
            number = min(sooner, key=sooner.__getitem__)
            if begun:
                again = number, slice_
            elif first.taken_back is None:
                if waits or sooner[number] >= queued[first]:
                    continue
                first.taken_back = now
                taken.append(first)
            elif now > first.taken_back + HEDGE_SECONDS:  # it is not given back
                if not hedge or again is not None:
                    continue
                again = number, slice_
            del idle[number]
            if not idle:
                break
        return IdleWork(taken, again)

    @staticmethod
    def not_begun(worker: Worker) -> list[Request]:
        """Returns the requests of a worker that is to go behind those that it is, or will next be, at work on."""
        behind = list(worker.outstanding.values())[DEPTH * worker.executors :]
        return [request for request in behind if request.purpose == "rows"]

    def _queued(self, now: float) -> dict[Request, float]:
        """Returns what nobody has begun, and in how many seconds its worker will have made it.

        That is what a worker has behind what it is, or will next be, at work on; one that has worked far longer than
        expected on what it is at will come to nothing else. A lane stays where it is.
        """
        queued: dict[Request, float] = {}
        for worker in self.workers.values():
            first = next(iter(worker.outstanding.values()), None)
            if first is None:
                continue
            pace, rows = self.pace(worker), 0
            late = now > _latest(worker.since, pace * first.slice.rows)
            begun = (1 if late else DEPTH) * worker.executors
            for place, request in enumerate(worker.outstanding.values()):
                rows += request.slice.rows if request.taken_back is None else 0
                if place >= begun and request.purpose == "rows" and not request.unwanted and request.slice.draw is None:
                    queued[request] = math.inf if late else pace * rows / worker.executors
        return queued

    def _may_copy(self, first: Request, now: float) -> bool:
        """Whether a slice that was begun, or may have been, is late, and there may be one more copy."""
        return self.hedges <= HEDGE_SHARE * self.requested and now >= _latest(first.asked, first.expected)


def _abandon(bundle: Bundle) -> None:
    """Marks the requests of a bundle as unwanted; their answers are still outstanding."""
    for slice_ in bundle.slices:
        for request in slice_.requests:
            request.unwanted = True
        slice_.requests.clear()


def _smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)


HEDGE_SHARE = 0.05
HEDGE_FACTOR, HEDGE_SECONDS = 2.0, 0.1  # late: that many times the expected time, and that much more


def _latest(since: float, expected: float) -> float:
    """Returns when something is late that was expected to take so many seconds."""
    return since + HEDGE_FACTOR * expected + HEDGE_SECONDS
