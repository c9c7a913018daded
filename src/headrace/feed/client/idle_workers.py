"""What workers do that have nothing to do while no slice waits: one rule for all of them, in the order of the plan.

An idle worker takes the earliest slice that nobody has begun; else it makes a copy of the first bundle's slice that is
late.

To take a slice, its request is cancelled: the worker that has it gives it back, and it waits like any other. A worker
that is stuck gives nothing back, so after `HEDGE_SECONDS` the slice is asked for elsewhere all the same: that is no
work done twice, as it was not begun. Copies are at most a share of `HEDGE_SHARE` of all requests; the first answer
counts.

A part of the client's state machine: no I/O and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.work_units import Request, Slice
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.worker.executor_rules import DEPTH

HEDGE_SHARE = 0.05
HEDGE_FACTOR, HEDGE_SECONDS = 2.0, 0.1  # late: that many times the expected time, and that much more


class IdleWork(NamedTuple):
    """What idle workers are to do.

    Attributes:
        taken: requests to cancel: they are taken from workers that have not begun them.
        again: an idle worker, and a slice to ask of it that another one was asked for; None for none.
    """

    taken: list[Request]
    again: tuple[WorkerNumber, Slice] | None = None


class IdleWorkers:
    """See the module.

    Args:
        schedule: who makes what.
        hedge: whether slices may be asked for twice.
    """

    def __init__(self, schedule: Schedule, *, hedge: bool = True) -> None:
        self._schedule, self._hedge = schedule, hedge

    def work(self, now: float) -> IdleWork:
        """Returns what those that have nothing to do are to do now."""
        schedule, taken, again = self._schedule, list[Request](), None
        idle = {number: worker for number, worker in schedule.workers.items() if not worker.outstanding}
        if not idle:
            return IdleWork(taken)
        head, queued = schedule.head, self._queued(now)
        waits = next(schedule.waiting_slices(latest=False), None) is not None
        for slice_ in self._asked_once():
            [first] = slice_.requests
            begun, draw, able = first not in queued and first.taken_back is None, slice_.draw, schedule.able(slice_)
            if begun:
                if again is not None or slice_.bundle is not head or not self._may_copy(first, now):
                    continue
                able = able if draw is None else schedule.lanes.quick(draw, schedule.workers)
            sooner = {number: schedule.finish(idle[number], slice_.rows) for number in able if number in idle}
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
                if not self._hedge or again is not None:
                    continue
                again = number, slice_
            del idle[number]
            if not idle:
                break
        return IdleWork(taken, again)

    def not_begun(self, number: WorkerNumber) -> list[Request]:
        """Returns the requests of a worker that is to go behind those that it is, or will next be, at work on."""
        worker = self._schedule.workers.get(number)
        return [each for each in worker.behind() if each.purpose == "rows"] if worker is not None else []

    def _asked_once(self) -> Iterator[Slice]:
        for bundle in self._schedule.bundles.values():
            for slice_ in bundle.slices if not bundle.failed else ():
                if not slice_.done and len(slice_.requests) == 1:
                    yield slice_

    def _queued(self, now: float) -> dict[Request, float]:
        """Returns what nobody has begun, and in how many seconds its worker will have made it.

        That is what a worker has behind what it is, or will next be, at work on; one that has worked far longer than
        expected on what it is at will come to nothing else. A lane stays where it is.
        """
        queued: dict[Request, float] = {}
        for worker in self._schedule.workers.values():
            first = next(iter(worker.outstanding.values()), None)
            if first is None:
                continue
            pace, rows = self._schedule.pace(worker), 0
            late = now > _latest(worker.since, pace * first.slice.rows)
            begun = (1 if late else DEPTH) * worker.executors
            for place, request in enumerate(worker.outstanding.values()):
                rows += request.slice.rows if request.taken_back is None else 0
                if place >= begun and request.purpose == "rows" and not request.unwanted and request.slice.draw is None:
                    queued[request] = math.inf if late else pace * rows / worker.executors
        return queued

    def _may_copy(self, first: Request, now: float) -> bool:
        """Whether a slice that was begun, or may have been, is late, and there may be one more copy."""
        schedule = self._schedule
        within = schedule.hedges + 1 <= 1 + HEDGE_SHARE * schedule.requested
        return self._hedge and within and now >= _latest(first.asked, first.expected)


def _latest(since: float, expected: float) -> float:
    """Returns when something is late that was expected to take so many seconds."""
    return since + HEDGE_FACTOR * expected + HEDGE_SECONDS
