"""The order of a mixture: which source each plan position takes its row from, and which row, as a pure function.

The weights, and which place belongs to which source, are the business of `weight_history`. A source gives its rows in
an order of its own, as if it were alone: sequential, permuted, or by windows. When it is used up it begins again, in
another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.feed.plan.orders.permutation import permute
from headrace.feed.plan.orders.weight_history import SLOTS, Segment, WeightHistory
from headrace.feed.plan.orders.window import Window
from headrace.feed.wire.mixing import Mixing


class MixedOrder:
    """See the module. It is an `Order`.

    Args:
        mixing: the mixture.
        seed: of the order.
        shuffle: of the sources' own orders: whether they are permuted, or the windows that they are permuted by.
        segments: weights that were set before, as `state` returned them; none for the mixture's own.

    Attributes:
        mixing, seed: as above.
        generation: ranks of another one are not compared with.
        version: see `Order`.
    """

    def __init__(
        self,
        mixing: Mixing,
        seed: int,
        shuffle: bool | Window,
        segments: Sequence[Segment] = (),
    ) -> None:
        self.mixing, self.seed, self.version = mixing, seed, 0
        self.generation, self._shuffle = 0, shuffle
        self._history = WeightHistory(mixing, seed, segments)
        self._offsets = np.cumsum([0, *mixing.rows])

    def rows(self, epoch: int) -> int:
        """Returns the rows of an epoch. They follow from the weights that it begins with."""
        return self._history.rows(epoch)

    # The order

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`. A row is counted through all sources, in their order."""
        found = np.empty_like(positions)
        for stretch in self._history.stretches(epoch):
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

    def agreed(self, epoch: int, position: int) -> tuple[int, str]:
        """See `Order`: the generation, and a digest of all weights up to there."""
        return self.generation, self._history.at(epoch, position).tag

    def settled(self, epoch: int, position: int) -> int:
        """See `Order`."""
        del epoch
        return position

    # Weights

    def weights(self, epoch: int, position: int) -> tuple[float, ...]:
        """Returns the weights at a place."""
        return self._history.weights(epoch, position)

    def taken(self, epoch: int, position: int) -> tuple[int, ...]:
        """Returns how many rows of each source were taken before a place: in this epoch, or in all if they go on."""
        return self._history.at(epoch, position).counts(position)

    def change(self, epoch: int, position: int, weights: tuple[float, ...]) -> None:
        """Sets the weights from a place on, which nobody has asked for yet."""
        self._history = self._history.changed(epoch, position, weights)
        self.version += 1

    def state(self, epoch: int, position: int, kept: int) -> list[Segment]:
        """See `WeightHistory.state`."""
        return self._history.state(epoch, position, kept)
