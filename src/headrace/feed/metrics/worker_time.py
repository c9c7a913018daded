"""What executors spend their time on, from what they were asked and what they answered. No clock, no I/O.

An executor makes its slices one after the other, in the order asked. It tells how long each took, so it is known when
it was at work even if its answers are read late: a slice begins when it was asked for, or when the one before it was
done, whichever is later. Time that is no work is *blocked* as long as something is *held*: results that wait to be
sent, or work that waits for memory. Each of them keeps one executor from being asked. All other time is *idle*.

So produce + blocked + idle = executors * seconds, in every window.
"""

from __future__ import annotations

import collections
from typing import NamedTuple


class WindowTime(NamedTuple):
    """Executor seconds of one window of `seconds`."""

    seconds: float
    produce: float
    blocked: float
    idle: float


class WorkTime:
    """See the module. Times are monotonic seconds.

    Args:
        executors: how many there are.
        now: when the first window begins.

    Attributes:
        executors: how many there are; may change between windows.
    """

    def __init__(self, executors: int, now: float) -> None:
        self.executors = executors
        self._asked: dict[int, collections.deque[float]] = {}  # of each executor: when it was asked what it owes
        self._since: dict[int, float] = {}  # since when those that work do so
        self._since_sum = 0.0
        self._closed = 0.0  # work on slices that are done
        self._told = 0.0  # work that windows before this one had
        self._begun = self._settled = now
        self._settled_work = 0.0
        self._held = 0
        self._blocked = 0.0

    def asked(self, executor: int, now: float) -> None:
        """An executor was asked for one more slice."""
        owed = self._asked.setdefault(executor, collections.deque())
        owed.append(now)
        if len(owed) == 1:
            self._settle(now)
            self._begin(executor, now)

    def answered(self, executor: int, now: float, seconds: float | None) -> None:
        """An executor has answered what it was asked first.

        Args:
            executor: which.
            now: when the answer was read.
            seconds: how long it worked on it; None where it did not tell: until now.
        """
        owed = self._asked.get(executor)
        if not owed:
            return
        self._settle(now)
        owed.popleft()
        end = self._end(executor, now if seconds is None else min(now, self._since[executor] + seconds))
        if owed:
            self._begin(executor, max(end, owed[0]))

    def lost(self, executor: int, now: float) -> None:
        """An executor has ended; no answer of it is outstanding any more."""
        if self._asked.pop(executor, None):
            self._settle(now)
            self._end(executor, now)

    def hold(self, count: int, now: float) -> None:
        """Says how many results or slices are held from now on."""
        if count != self._held:
            self._settle(now)
            self._held = count

    def take(self, now: float) -> WindowTime:
        """Ends a window, and begins the next one."""
        self._settle(now)
        seconds = max(0.0, now - self._begun)
        whole = self.executors * seconds
        produce = min(whole, max(0.0, self._work(now) - self._told))
        blocked = min(whole - produce, self._blocked)
        self._told += produce
        self._begun, self._blocked = now, 0.0
        return WindowTime(seconds, produce, blocked, whole - produce - blocked)

    def _begin(self, executor: int, since: float) -> None:
        self._since[executor] = since
        self._since_sum += since

    def _end(self, executor: int, end: float) -> float:
        since = self._since.pop(executor)
        self._since_sum = self._since_sum - since if self._since else 0.0
        self._closed += end - since
        return end

    def _work(self, now: float) -> float:
        return self._closed + len(self._since) * now - self._since_sum

    def _settle(self, now: float) -> None:
        """Adds up what was blocked since the last time; what is held has not changed since then."""
        if self._held:
            span, work = now - self._settled, self._work(now) - self._settled_work
            free = self.executors * span - work
            self._blocked += max(0.0, min(free, self._held * span))
        self._settled, self._settled_work = now, self._work(now)
