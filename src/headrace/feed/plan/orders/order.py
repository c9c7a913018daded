"""Orders: which row of a dataset stands at which plan position of an epoch, as a pure function.

`EpochPlan` cuts positions into batches of ranks and knows nothing of rows; an order maps positions to rows and knows
nothing of batches and ranks. An order is evaluated for the positions that are asked for, whichever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.feed.plan.orders.permutation import permute
from headrace.feed.plan.orders.window import Window


class Order(Protocol):
    """See the module."""

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows at positions of an epoch, int64."""


@dataclass(frozen=True)
class RowOrder:
    """The rows of one dataset: as they are, or shuffled.

    Attributes:
        rows: of the dataset.
        seed: of the order; the epoch is mixed in.
        shuffle: whether the order is permuted, or the windows that it is permuted by.
    """

    rows: int
    seed: int
    shuffle: bool | Window = False

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`."""
        key = f"{self.seed}/{epoch}".encode()
        if isinstance(self.shuffle, Window):
            return self.shuffle.order(positions, self.rows, key)
        return permute(positions, self.rows, key) if self.shuffle else positions
