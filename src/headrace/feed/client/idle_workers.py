"""What workers do that have nothing to do while no slice waits: the work of others that is late, or lies in a queue.

Hedging: when the first bundle in line is late, its slice is asked a second time of a worker that is idle; at most
`HEDGE_SHARE` of all requests, and the first answer counts.

Taking back: what a worker would come to later than an idle one could have made it is cancelled, and is asked for
elsewhere when it was. A worker that is stuck does not answer, so such a slice is then asked for twice: that is no work
done twice, as it was not begun.

A part of the client's state machine: no I/O and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.feed.client.request import Request
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.work_units import DEPTH, Slice, WorkerLoad
from headrace.feed.identifiers import WorkerNumber

HEDGE_SHARE = 0.05
HEDGE_FACTOR, HEDGE_SECONDS = 2.0, 0.1  # late: that many times the expected time, and that much more


class IdleWorkers:
    """See the module.

    Args:
        schedule: who makes what.
        hedge: whether slices may be asked for twice.
    """

    def __init__(self, schedule: Schedule, *, hedge: bool = True) -> None:
        self._schedule, self._hedge = schedule, hedge

    def next_slice(self, now: float) -> tuple[WorkerNumber, Slice] | None:
        """Returns an idle worker, and the slice to ask of it, which another one has been asked for."""
        return self._late_slice(now) or self._held_slice(now)

    def take_back(self, now: float) -> list[Request]:
        """Returns requests to cancel, because a worker that has nothing to do would make their rows sooner.

        The answer `Cancelled` makes the slice one that waits. A lane stays where it is.
        """
        schedule, idle = self._schedule, _idle(self._schedule.workers)
        if not idle or next(schedule.waiting_slices(latest=False), None) is not None:
            return []
        found = []
        for worker in sorted(schedule.workers.values(), key=lambda worker: -schedule.finish(worker, 0)):
            late = self._is_late(worker, now)
            left = math.inf if late else schedule.finish(worker, 0)
            for request in reversed(worker.behind(1 if late else DEPTH)):
                if request.purpose != "rows" or request.unwanted or request.slice.draw is not None:
                    continue
                rows, able = request.slice.rows, schedule.able(request.slice).keys() & idle.keys()
                if not able:
                    continue
                quickest = min(able, key=lambda number: schedule.finish(idle[number], rows))
                if schedule.finish(idle[quickest], rows) >= left:
                    break
                if request.taken_back is None:
                    request.taken_back = now
                    found.append(request)
                del idle[quickest]
                left -= schedule.pace(worker) * rows / worker.executors
                if not idle:
                    return found
        return found

    def not_begun(self, number: WorkerNumber) -> list[Request]:
        """Returns the requests of a worker that is to go behind those that it is, or will next be, at work on."""
        worker = self._schedule.workers.get(number)
        return [each for each in worker.behind() if each.purpose == "rows"] if worker is not None else []

    def _late_slice(self, now: float) -> tuple[WorkerNumber, Slice] | None:
        """Returns the slice of the first bundle that is late, and an idle worker other than those that have it."""
        schedule = self._schedule
        head = schedule.head
        if head is None or head.failed or not self._hedge:
            return None
        if schedule.hedges + 1 > 1 + HEDGE_SHARE * schedule.requested:
            return None
        for slice_ in head.slices:
            if slice_.done or len(slice_.requests) != 1:
                continue
            [first] = slice_.requests
            if now < _latest(first.asked, first.expected):
                continue
            draw = slice_.draw
            idle = _idle(schedule.able(slice_) if draw is None else schedule.lanes.quick(draw, schedule.workers))
            if idle:
                return _quickest(idle), slice_
        return None

    def _held_slice(self, now: float) -> tuple[WorkerNumber, Slice] | None:
        """Returns a slice that was taken back and is not given back, and an idle worker for it."""
        schedule = self._schedule
        if not self._hedge or not _idle(schedule.workers):
            return None
        for bundle in schedule.bundles.values():
            for slice_ in bundle.slices if not bundle.failed else ():
                taken_back = slice_.requests[0].taken_back if len(slice_.requests) == 1 else None
                if slice_.done or taken_back is None or now <= taken_back + HEDGE_SECONDS:
                    continue
                idle = _idle(schedule.able(slice_))
                if idle:
                    return _quickest(idle), slice_
        return None

    def _is_late(self, worker: WorkerLoad, now: float) -> bool:
        """Whether it has worked far longer than expected on what it is at."""
        first = next(iter(worker.outstanding.values()), None)
        return first is not None and now > _latest(worker.since, self._schedule.pace(worker) * first.slice.rows)


def _latest(since: float, expected: float) -> float:
    """Returns when something is late that was expected to take so many seconds."""
    return since + HEDGE_FACTOR * expected + HEDGE_SECONDS


def _idle(workers: Mapping[WorkerNumber, WorkerLoad]) -> dict[WorkerNumber, WorkerLoad]:
    """Returns those that have nothing to do."""
    return {number: worker for number, worker in workers.items() if not worker.outstanding}


def _quickest(workers: Mapping[WorkerNumber, WorkerLoad]) -> WorkerNumber:
    return min(workers, key=lambda number: workers[number].seconds_per_row)
