"""What a feed server has made: sums since its start, and rates over the last ten seconds."""

from __future__ import annotations

import collections

WINDOW = 10.0


class SliceRate:
    """Counts slices.

    Args:
        now: monotonic seconds.

    Attributes:
        slices: slices made.
        bytes: their bytes.
        cpu_seconds: CPU time of the executors that it took.
    """

    def __init__(self, now: float) -> None:
        self.begun = now
        self.slices = 0
        self.bytes = 0
        self.cpu_seconds = 0.0
        self._recent: collections.deque[list[float]] = collections.deque()  # one entry a second: when, slices, bytes

    def add(self, now: float, size: int, cpu: float) -> None:
        """Counts a slice of `size` bytes that took `cpu` seconds."""
        self.slices += 1
        self.bytes += size
        self.cpu_seconds += cpu
        if not self._recent or now - self._recent[-1][0] >= 1.0:
            self._recent.append([now, 0, 0])
        self._recent[-1][1] += 1
        self._recent[-1][2] += size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        """Returns slices a second and bytes a second over the last ten seconds, or since the start if that is less."""
        self._forget(now)
        span = max(1.0, min(WINDOW, now - self.begun))
        return sum(entry[1] for entry in self._recent) / span, sum(entry[2] for entry in self._recent) / span
