"""Down-sampling: rows of seconds, however many, become at most some hundred buckets of equal width. Pure.

A bucket holds what its rows sum up to, and the least and the greatest of them, so no peak is lost by looking from
afar. A bucket without rows has no value (NaN); it is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.insight.figures.columns import Floats

MOST_POINTS = 2000
"""Buckets in one answer, at most."""

_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def width_for(seconds: float, points: int) -> float:
    """Returns the least round width, 1 s or more, in which so many buckets cover a stretch of time.

    >>> width_for(90, 100), width_for(36_000, 600)
    (1.0, 60.0)
    """
    wanted = seconds / max(1, points)
    return float(next((width for width in _WIDTHS if width >= wanted), np.ceil(wanted / 86400) * 86400))


@dataclass(frozen=True)
class Grid:
    """Buckets of equal width.

    Attributes:
        start: beginning of the first, seconds since the epoch.
        width: seconds.
        count: how many.
    """

    start: float
    width: float
    count: int

    @classmethod
    def over(cls, start: float, end: float, points: int = 600) -> Grid:
        """Returns the grid on round times that covers ``[start, end]`` with at most `points` buckets and one more.

        The width is round, too, so that the buckets stay the same ones while a run grows.
        """
        points = max(1, min(points, MOST_POINTS - 1))
        width = width_for(max(0.0, end - start), points)
        first = float(np.floor(start / width) * width)
        return cls(first, width, int((end - first) // width) + 1)

    @classmethod
    def fitted(cls, start: float, end: float, points: int) -> Grid:
        """Returns the grid of at most `points` buckets, 1 s wide or more, that begins at `start` and takes `end`, too.

        No bucket reaches beyond a long stretch: for an axis that begins and ends with it.
        """
        width = max(1.0, (end - start) / points * (1 + 1e-9))  # a little more, so that `end` is in the last one
        return cls(start, width, int((end - start) // width) + 1)

    @property
    def times(self) -> list[float]:
        """Beginnings of the buckets."""
        return [self.start + index * self.width for index in range(self.count)]

    def index(self, t: Floats) -> npt.NDArray[np.int64]:
        """Returns the bucket of each time; -1 outside the grid."""
        found = np.floor((t - self.start) / self.width)
        inside = (found >= 0) & (found < self.count)
        return np.where(inside, found, -1).astype(np.int64)


def sums(grid: Grid, t: Floats, values: Floats) -> Floats:
    """Returns the sum of each bucket; 0 where there is no row. Rows that are NaN count as 0."""
    index = grid.index(t)
    kept = index >= 0
    weights = np.nan_to_num(values[kept], nan=0.0)
    return np.asarray(np.bincount(index[kept], weights, grid.count), dtype=np.float64)


def ratio(grid: Grid, t: Floats, above: Floats, below: Floats) -> Floats:
    """Returns sum(above) / sum(below) of each bucket over the rows where both were measured; NaN without any."""
    both = ~(np.isnan(above) | np.isnan(below))
    numerator, denominator = sums(grid, t[both], above[both]), sums(grid, t[both], below[both])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def extremes(grid: Grid, t: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Returns the least of `low` and the greatest of `high` in each bucket; NaN without any."""
    index = grid.index(t)
    kept = (index >= 0) & ~np.isnan(low) & ~np.isnan(high)
    index, low, high = index[kept], low[kept], high[kept]
    least, greatest = np.full(grid.count, np.nan), np.full(grid.count, np.nan)
    if index.size:
        order = np.argsort(index, kind="stable")
        index = index[order]
        starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
        least[index[starts]] = np.minimum.reduceat(low[order], starts)
        greatest[index[starts]] = np.maximum.reduceat(high[order], starts)
    return least, greatest


def present(grid: Grid, streams: Sequence[Floats]) -> Floats:
    """Returns how many of some streams wrote in each bucket.

    A stream writes about once a second, so a bucket of a second may fall between two of its rows: one that wrote in
    the bucket before or after counts, too.
    """
    count = np.zeros(grid.count)
    for t in streams:
        index = grid.index(t)
        here = np.zeros(grid.count, dtype=bool)
        here[index[index >= 0]] = True
        if grid.width < 3:
            here = here | np.r_[here[1:], False] | np.r_[False, here[:-1]]
        count += here
    return count
