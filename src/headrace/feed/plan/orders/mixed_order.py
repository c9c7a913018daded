"""The order of a mixture: which source each plan position takes its row from, and which row, as a pure function.

The weights, and which place belongs to which source, are the business of `weight_schedule`. A source gives its rows in
an order of its own, as if it were alone: sequential, permuted, or by windows. When it is used up it begins again, in
another order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.feed.plan.orders.permutation import permute
from headrace.feed.plan.orders.weight_schedule import SLOTS, WeightSchedule
from headrace.feed.plan.orders.window import Window
from headrace.feed.wire.messages import Mixing


class MixedOrder:
    """See the module. It is an `Order`.

    Args:
        mixing: the mixture.
        seed: of the order.
        shuffle: of the sources' own orders: whether they are permuted, or the windows that they are permuted by.

    Attributes:
        mixing, seed: as above.
        schedule: of the weights.
    """

    def __init__(self, mixing: Mixing, seed: int, shuffle: bool | Window) -> None:
        self.mixing, self.seed, self._shuffle = mixing, seed, shuffle
        self.schedule = WeightSchedule(mixing, seed)
        self._offsets = np.cumsum([0, *mixing.rows])

    def rows(self, epoch: int) -> int:
        """Returns the rows of an epoch. They follow from the weights that it begins with."""
        return self.schedule.rows(epoch)

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`. A row is counted through all sources, in their order."""
        found = np.empty_like(positions)
        for stretch in self.schedule.stretches(epoch):
            here = (positions >= stretch.begin) & (positions < stretch.end)
            if here.any():
                inside = positions[here] - stretch.begin
                windows, place = np.unique(inside // SLOTS, return_inverse=True)
                sources, before = stretch.sources(windows)
                slots = inside % SLOTS
                found[here] = self._own_rows(epoch, sources[place, slots], before[place, slots])
        return found

    def _own_rows(self, epoch: int, sources: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.empty_like(sources)
        for source in np.unique(sources).tolist():
            here = sources == source
            found[here] = self._offsets[source] + self._row(epoch, source, before[here])
        return found

    def _row(self, epoch: int, source: int, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows of one source, of which so many were taken before."""
        rows, name = self.mixing.rows[source], self.mixing.names[source]
        turns = before // rows
        inside = before - turns * rows
        if not self._shuffle:
            return inside
        key = f"{self.seed}/source/{name}" if self.mixing.epoch_rows else f"{self.seed}/{epoch}/source/{name}"
        if isinstance(self._shuffle, Window) and rows > self._shuffle.rows:
            found = np.empty_like(inside)
            for turn in np.unique(turns).tolist():
                here = turns == turn
                found[here] = self._shuffle.order(inside[here], rows, f"{key}/{turn}".encode())
            return found
        return permute(inside, rows, key.encode(), turns.astype(np.uint64))

    def taken(self, epoch: int, position: int) -> tuple[int, ...]:
        """Returns how many rows of each source were taken before a place: in this epoch, or in all if they go on."""
        return self.schedule.at(epoch, position).counts(position)
