"""What a step is, for `headrace.feed.metrics.step_meter` and for the probe of `headrace doctor`.

A step lasts from one `next()` to the following one of the same pass; its wait is the time blocked in `next()`. The
last step of a pass ends with the `next()` that finds no batch. A step whose loop was left before has no known end and
is not counted, and the time between two passes belongs to no step.

Times in, steps out: no clock, and the standard library only, because the probe loads this file into scripts whose
environment has no headrace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar


class Step:
    """One step. Times in seconds. A loop makes one for every batch: what is not known yet are the class's own values.

    Attributes:
        begun: when `next()` was called; earlier where making the iterator is counted too.
        first: it is the first of a pass.
        wait: blocked in `next()`.
        cpu: CPU time in `next()`.
        rows: samples.
        length: the whole step; 0 before its end.
    """

    wait = 0.0
    rows = 0
    length = 0.0

    def __init__(self, begun: float, cpu: float, first: bool) -> None:
        self.begun = begun
        self.cpu = -cpu
        self.first = first


S = TypeVar("S", bound=Step)


class StepTiming(Generic[S]):
    """The steps of one loop, one at a time.

    Args:
        make: makes a step from when it begins, the CPU time then, and whether it is the first of a pass.

    Attributes:
        asked: the step whose batch was asked for last.
        under_way: the step whose batch was handed over and whose end is not known yet.
    """

    def __init__(self, make: Callable[[float, float, bool], S]) -> None:
        self._make = make
        self._first = True
        self.asked = make(0.0, 0.0, True)
        self.under_way: S | None = None

    def begin_pass(self) -> None:
        """A pass begins. The end of a step that was under way is unknown: its loop was left."""
        self.under_way = None
        self._first = True

    def ask(self, now: float, cpu: float) -> None:
        """`next()` was called: a step begins. The one under way must have been ended."""
        self.asked = self._make(now, cpu, self._first)

    def got(self, now: float, cpu: float, rows: int) -> S:
        """`next()` returns a batch of so many rows. Returns its step, which is under way now."""
        step = self.under_way = self.asked
        step.wait = now - step.begun
        step.cpu += cpu
        step.rows = rows
        return step

    def end(self, now: float) -> S | None:
        """Returns the step under way, which ends; None without one."""
        step, self.under_way = self.under_way, None
        if step is not None:
            step.length = now - step.begun
            self._first = False
        return step
