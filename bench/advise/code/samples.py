"""Samples whose cost is set: seconds of waiting, as for a disk, and CPU seconds of computing."""

from __future__ import annotations

import time

import numpy as np

from headrace import feed


def burn(seconds: float) -> None:
    """Computes for so many CPU seconds of this thread, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Rows:
    """Rows of bytes. A row is `wait` seconds of waiting and `burnt` CPU seconds of computing."""

    def __init__(self, length: int, wait: float, burnt: float, size: int) -> None:
        self.length, self.wait, self.burnt, self.size = length, wait, burnt, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        burn(self.burnt)
        if self.wait:
            time.sleep(self.wait)
        return np.full(self.size, index % 256, np.uint8)


@feed.pipeline
def rows(length: int, wait: float, burnt: float, size: int) -> Rows:
    """The rows of a workload."""
    return Rows(length, wait, burnt, size)


def stacked(samples: list[np.ndarray]) -> np.ndarray:
    """Stacks the rows: a batch without torch, which would take seconds to import in every worker."""
    return np.stack(samples)
