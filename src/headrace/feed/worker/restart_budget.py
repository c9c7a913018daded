"""How often workers may be replaced: a budget of restarts within a window of time."""

from __future__ import annotations

import collections

RESTARTS, WINDOW = 20, 60.0


class RestartBudget:
    """Counts the workers that ended lately."""

    def __init__(self) -> None:
        self._ends: collections.deque[float] = collections.deque()

    def spend(self, now: float) -> bool:
        """A worker has ended at monotonic time `now`. Returns whether it may be replaced."""
        self._ends.append(now)
        while self._ends[0] < now - WINDOW:
            self._ends.popleft()
        return len(self._ends) <= RESTARTS

    def describe(self, who: str) -> str:
        """Returns in words how many ended, e.g. of ``worker processes``."""
        return f"{len(self._ends)} {who} ended within {WINDOW:.0f} s"
