"""How often workers may be replaced: within a window of time, and in a row while none gets as far as to answer.

A worker that was killed is replaced and goes on. One that cannot start ends again and again, however long each attempt
takes, so those that end without an answer are counted until one answers.
"""

from __future__ import annotations

import collections

RESTARTS, WINDOW = 20, 60.0
STARTS = 4  # in a row that end before they have answered


class RestartBudget:
    """Counts the workers that ended lately, and those that ended in a row before they had begun."""

    def __init__(self) -> None:
        self._ends: collections.deque[float] = collections.deque()
        self._vain = 0

    def begun(self) -> None:
        """A worker has answered: workers can be started."""
        self._vain = 0

    def spend(self, now: float, *, begun: bool) -> bool:
        """A worker has ended.

        Args:
            now: monotonic seconds.
            begun: whether it had ever answered.

        Returns:
            Whether it may be replaced.
        """
        self._vain = 0 if begun else self._vain + 1
        self._ends.append(now)
        return self.left(now)

    def left(self, now: float) -> bool:
        """Returns whether a worker may be replaced."""
        while self._ends and self._ends[0] < now - WINDOW:
            self._ends.popleft()
        return len(self._ends) <= RESTARTS and not self.cannot_start

    @property
    def cannot_start(self) -> bool:
        """Whether so many have ended before they had begun that no further one is tried."""
        return self._vain >= STARTS

    def describe(self, who: str) -> str:
        """Returns in words how many ended, e.g. of ``worker processes``."""
        if self.cannot_start:
            return f"{self._vain} {who} ended before they had begun"
        return f"{len(self._ends)} {who} ended within {WINDOW:.0f} s"
