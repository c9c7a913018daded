"""Buckets: batches of rows of similar length, so that little of them is padding, as an order like any other.

An epoch's order is cut into windows of some global batches. The rows of a window are sorted by length and cut into
batches, and the batches are put into a random order; in a batch rows stand as they did before, so that all ranks get
alike ones. Every rank computes a window, whole, from lengths alone: so the batches of a step are of similar length on
all ranks, and nobody tells anybody.

What is left of the last window when it is cut into whole batches stays as it is, at the epoch's end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import PositionError
from headrace.feed.identifiers import positive
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.plan.orders.order import Order, RowOrder, permute
from headrace.feed.plan.state_dict import Position

_KEPT = 2  # windows


@dataclass(frozen=True, eq=False)
class Buckets:
    """Batches of rows of similar length: what `DataLoader(buckets=)` takes.

    Attributes:
        lengths: of every row of the dataset, by its number: integers, in any unit; None for the bytes that the index of
            `feed.tar` and `feed.jsonl` knows.
        batches: global batches of a window, which are sorted together. More of them leave less padding, and fewer
            choices for the order.

    Raises:
        ValueError: no list of integers that are not negative, or no window.
    """

    lengths: Any = None
    batches: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", positive("batches of a bucket's window", self.batches))
        if self.lengths is None:
            return
        lengths = np.asarray(self.lengths)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths.size and int(lengths.min()) < 0):
            raise ValueError(
                f"lengths must be one integer a row, at least 0, got an array of {lengths.dtype} of shape "
                f"{lengths.shape}"
            )
        object.__setattr__(self, "lengths", lengths)

    @property
    def name(self) -> str:
        """A short text that differs when windows differ."""
        return f"windows of {self.batches} batches"


def lengths_digest(lengths: NDArray[Any] | None) -> str:
    """Returns what tells lengths from others: 16 hex digits; empty for None."""
    if lengths is None:
        return ""
    told = np.ascontiguousarray(lengths, "<i8")
    return hashlib.blake2b(told.data, digest_size=8, person=b"lengths").hexdigest()


class BucketedOrder:
    """See the module. It is an `Order`.

    Args:
        inner: the order whose windows are sorted.
        buckets: windows, and the lengths of the rows.
        seed: of the order.
        batch: rows of a global batch.
        size: returns the rows of an epoch.
        shuffled: whether the batches of a window are put into a random order.

    Attributes:
        made_of: inner order and rows of a global batch.
    """

    def __init__(
        self,
        inner: Order,
        buckets: Buckets,
        seed: int,
        batch: int,
        size: Callable[[int], int],
        *,
        shuffled: bool,
    ) -> None:
        self.made_of = (inner, batch)
        self._inner, self._lengths, self._seed, self._shuffled = inner, buckets.lengths, seed, shuffled
        self._batch, self._batches, self._size = batch, buckets.batches, size
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}

    def end_of(self, position: int) -> int:
        """Returns the end of the last window that has rows before a position."""
        rows = self._batch * self._batches
        return -(-position // rows) * rows

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`."""
        rows = self._batch * self._batches
        numbers = positions // rows
        result = np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            result[here] = self._window(epoch, number, rows)[positions[here] - number * rows]
        return result

    def _window(self, epoch: int, number: int, rows: int) -> NDArray[np.int64]:
        place = (epoch, number)
        window = self._windows.get(place)
        if window is None:
            window = self._sorted(epoch, number, np.arange(number * rows, min((number + 1) * rows, self._size(epoch))))
            self._windows[place] = window
            while len(self._windows) > _KEPT:
                del self._windows[next(iter(self._windows))]
        return window

    def _sorted(self, epoch: int, number: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        keys = self._inner.rows_at(epoch, positions)
        batch = self._batch
        count = len(keys) // batch
        whole = keys[: count * batch]
        by_length = np.argsort(self._lengths[whole], kind="stable").reshape(count, batch)
        by_length.sort(axis=1)  # in a batch: as they stood
        if self._shuffled and count:
            key = f"{self._seed}/{epoch}/buckets".encode()
            by_length = by_length[permute(np.arange(count), count, key, np.full(count, number, np.uint64))]
        return np.concatenate([whole[by_length.ravel()], keys[count * batch :]])


class Bucketing:
    """The buckets of a loader: which order they have now.

    Args:
        buckets: as the user asks for them.

    Attributes:
        buckets: as given, with the lengths once they are known.
        digest: of the lengths; empty while they are not known.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._order: BucketedOrder | None = None
        self.take(buckets)

    def take(self, buckets: Buckets) -> None:
        """Takes the buckets with the lengths that the index knows."""
        self.buckets, self.digest = buckets, lengths_digest(buckets.lengths)

    def order(self, inner: MixedOrder | RowOrder, rows: int, batch: int, seed: int, *, shuffled: bool) -> BucketedOrder:
        """Returns the order of the buckets.

        Args:
            inner: the order that they are made of.
            rows: of the dataset.
            batch: rows of a global batch.
            seed: of the order.
            shuffled: whether batches are.

        Raises:
            ValueError: there are not as many lengths as rows.
        """
        if len(self.buckets.lengths) != rows:
            raise ValueError(f"buckets have {len(self.buckets.lengths)} lengths, and the dataset has {rows} rows")
        if self._order is None or self._order.made_of != (inner, batch):
            size = inner.rows if isinstance(inner, MixedOrder) else lambda _: rows
            self._order = BucketedOrder(inner, self.buckets, seed, batch, size, shuffled=shuffled)
        return self._order

    def end_of(self, position: int) -> int:
        """Returns the end of the last window that has rows before a position."""
        return self._order.end_of(position) if self._order is not None else position

    def require_fits(self, loaded: Position, batch: int) -> None:
        """Raises PositionError if the windows of a position under way were of other global batches."""
        if loaded.samples and loaded.bucket_rows not in (0, batch):
            raise PositionError(
                f"the epoch of the state has buckets of global batches of {loaded.bucket_rows} rows, the loader's have "
                f"{batch}",
                "go on with that global batch until the epoch ends; states of an epoch's beginning take any",
            )
