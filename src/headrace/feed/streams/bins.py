"""Bins of one size: which documents of a block lie together.

Best-fit-decreasing: the longest comes first, and each goes into the bin in which it leaves the least room; if it fits
in none, a new bin is begun. It needs at most 11/9 of the fewest bins possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Puts things into bins.

    Args:
        sizes: of the things, each at least 1 and at most `room`.
        room: of a bin.

    Returns:
        Bins of numbers of things. Things in a bin are in order; the bins come in the order of their largest things, so
        that they are as well mixed as those were.
    """
    bins: list[list[int]] = []
    open_bins: list[tuple[int, int]] = []  # room that is left, and number of the bin; sorted
    for thing in sorted(range(len(sizes)), key=lambda thing: -sizes[thing]):
        at = bisect_left(open_bins, (sizes[thing], -1))
        if at == len(open_bins):
            left, number = room, len(bins)
            bins.append([])
        else:
            left, number = open_bins.pop(at)
        bins[number].append(thing)
        left -= sizes[thing]
        if left:
            open_bins.insert(bisect_left(open_bins, (left, number)), (left, number))
    bins.sort(key=lambda things: things[0])
    return [sorted(things) for things in bins]
