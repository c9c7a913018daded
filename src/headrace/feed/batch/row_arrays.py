"""Arrays in the slab itself: what `feed.empty` gives a dataset while a worker makes one of its rows.

An array that ends up as the row that it lies in need not be copied. Everything else that a dataset may do with it is
as harmless as with an ordinary array: if somebody still holds it when other data are to be written where it lies, or
when the row is done, then what he holds becomes ordinary memory with the same content (see `Slab.detach`) before
anything is written, the dataset is called again, or the batch is handed on.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.feed.batch.row_layout import Layout
from headrace.feed.batch.slab import Slab
from headrace.feed.batch.tensors import is_tensor

LEAST_BYTES = 64 << 10  # of a row; smaller ones are collected and stacked in one call, which costs less
ALIGNED = 16  # bytes; what malloc promises

_HELD = (
    "feed.empty saves nothing here, so the dataset gets ordinary arrays from now on. Its batches are right. It kept an "
    "array of feed.empty when it had returned the sample (in a cache, or as a buffer to be filled again), or returned "
    "it as another field, in another row, or with its axes in another order"
)


def empty(shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
    """Returns an array to be filled, as `numpy.empty` does; in a worker one that need not be copied into the batch.

    Called by a dataset's `__getitem__`, `__getitems__` or `__iter__`, or by a function of `.map`, it lies in shared
    memory where this row of the batch will be, if the sample has a field of as many bytes. Otherwise it is an ordinary
    array; the documentation of the feed says when. Batches are the same either way. Do not keep it when the sample is
    returned: that is harmless, but ends the saving.

    Args:
        shape, dtype: as in `numpy.empty`; those that the field has in the sample.
    """
    _making.asked = True
    array = _making.rows.take(shape, dtype) if _making.rows is not None else None
    return np.empty(shape, dtype) if array is None else array


class _Making(threading.local):
    """The rows that this thread makes. A dataset's own threads, and processes that it forks, get ordinary arrays."""

    rows: RowArrays | None = None
    asked = False


_making = _Making()


def asked() -> bool:
    """Returns whether `empty` was ever called in this thread: what only it gains by need not be done before."""
    return _making.asked


def _forget() -> None:
    _making.rows = None


os.register_at_fork(after_in_child=_forget)


class RowArrays:
    """The arrays that the dataset of one pipeline was given; see the module.

    Rows are offered one by one (`begin`), or all rows of a batch that the dataset makes at once (`begin_batch`); then
    they are given in their order, and one that was dropped is given again.

    Attributes:
        learned: layout of the latest batch that was made at once; None before.
        unstackable: whether samples that were made at once have no layout.
    """

    def __init__(self) -> None:
        self._held = False
        self._slab: Slab | None = None
        self._layout: Layout | None = None
        self._offsets: list[int] = []  # in the slab, of the tables
        self._rows = range(0)  # of which arrays may be given
        self._given: dict[tuple[int, int], tuple[weakref.ref[NDArray[np.uint8]], int, int]] = {}  # by row and table
        self.learned: Layout | None = None
        self.unstackable = False
        self._moved: Callable[[], None] | None = None

    def open(self, slab: Slab | None, start: int, layout: Layout, rows: int, moved: Callable[[], None]) -> None:
        """Offers the rows of a batch.

        Args:
            slab: it lies there; None if it is not in a slab.
            start: where its block begins.
            layout: of the batch.
            rows: of the batch.
            moved: called when the slab was mapped anew, so that rows are not written to the old mapping.
        """
        if slab is None or self._held or layout.row_bytes <= LEAST_BYTES:
            return
        self._slab, self._layout, self._moved = slab, layout, moved
        self._offsets = [start + offset for offset in layout.offsets(rows)]
        _making.rows = self

    def begin(self, row: int) -> None:
        """Says which row of the batch is made next."""
        self._rows = range(row, row + 1)

    def begin_batch(self, rows: int) -> None:
        """Says that the first `rows` rows of the batch are made next, at once."""
        self._rows = range(rows)

    def _is_held(self, row: int, table: int) -> bool:
        return (row, table) in self._given and self._given[row, table][0]() is not None

    def take(self, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any] | None:
        """Returns an array in a row that is made; None if there is no place for one like this."""
        assert self._slab is not None
        assert self._layout is not None
        kind = np.dtype(dtype)
        try:
            extents = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
        except TypeError:
            return None
        size = math.prod(extents) * kind.itemsize
        if kind.hasobject or any(extent <= 0 for extent in extents):
            return None
        tables = self._layout.tables
        fitting = [number for number, table in enumerate(tables) if table.row_bytes == size]
        alike = {
            number for number in fitting
            if tables[number].row_shape == extents and tables[number].dtype in (kind.str, kind.name)
        }  # fmt: skip
        for row in self._rows:
            free = [number for number in fitting if not self._is_held(row, number)]
            for number in [number for number in free if number in alike] or free:
                offset = self._offsets[number] + row * size
                if offset % ALIGNED:
                    continue
                root = np.frombuffer(self._slab.memory(offset, size), np.uint8)
                self._given[row, number] = (weakref.ref(root), offset, size)
                return root.view(kind).reshape(extents)
        return None

    def placed(self, columns: Sequence[Sequence[Any]], targets: Sequence[Any]) -> set[tuple[int, int]]:
        """Returns which leaves of a batch that was made at once are in their places, by row and table.

        Args:
            columns: for each table, the leaves of all rows.
            targets: for each table, the rows of the batch, tensors or arrays.
        """
        found = {
            (row, number)
            for row, number in self._given
            if row < len(columns[number]) and _lies_in(columns[number][row], targets[number][row])
        }
        if any(self._is_held(*place) for place in self._given.keys() - found):
            self._release()
        return found

    def missing(self, leaves: Sequence[tuple[int, NDArray[np.uint8]]]) -> list[tuple[int, NDArray[np.uint8]]]:
        """Returns the leaves of a tree without rows that are not in their places, as `pytree.describe` lists them."""
        if not self._given or self._slab is None or len(leaves) != len(self._offsets):
            self.close()
            return list(leaves)
        start, address = self._offsets[0], self._slab.address
        found = {
            number for number, (offset, raw) in enumerate(leaves)
            if (0, number) in self._given and raw.size == self._given[0, number][2]
            and start + offset == self._given[0, number][1] and _address(raw) == address + start + offset
        }  # fmt: skip
        if any(self._is_held(row, number) for row, number in self._given if number not in found):
            self._release()
        return [leaf for number, leaf in enumerate(leaves) if number not in found]

    def unwritten(self, leaves: list[Any], targets: Sequence[Any]) -> list[int]:
        """Returns which leaves of the row that was made are not in their places, by number.

        Args:
            leaves: of the sample, in the order of the tables.
            targets: their rows in the batch, tensors or arrays.
        """
        left = list(range(len(leaves)))
        if self._given:
            left = [number for number in left if not _lies_in(leaves[number], targets[number])]
            if any(self._is_held(self._rows.start, number) for number in left):
                self._release()
        return left

    def end(self) -> None:
        """Ends the row, whose sample was let go of."""
        if self._given:
            self._release()

    def close(self) -> None:
        """Takes the offer back. An exception on its way may hold arrays, which says nothing about the next rows."""
        if self._given and self._slab is not None:
            self._detach(self._slab)
        self._stop()

    def _release(self) -> None:
        """Makes arrays that are still held ordinary memory. It costs more than it saves, so no more are given."""
        if self._slab is None or not self._detach(self._slab):
            return
        assert self._moved is not None
        self._moved()
        self._held = True
        self._stop()
        warnings.warn(_HELD, RuntimeWarning, stacklevel=2)

    def _detach(self, slab: Slab) -> bool:
        held = [(offset, size) for root, offset, size in self._given.values() if root() is not None]
        self._given.clear()
        if held:
            slab.detach(held)
        return bool(held)

    def _stop(self) -> None:
        self._slab = self._layout = self._moved = _making.rows = None
        self._rows = range(0)


def _address(leaf: Any) -> int:
    if is_tensor(leaf):
        return int(leaf.data_ptr())
    return int(leaf.__array_interface__["data"][0])


def _lies_in(leaf: Any, target: Any) -> bool:
    """Returns whether a leaf is its row already: the same memory, read in the same way."""
    if is_tensor(leaf):
        import torch

        if type(leaf) is not torch.Tensor or not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg():
            return False
    elif type(leaf) is not np.ndarray or not leaf.flags.c_contiguous:
        return False
    alike = tuple(leaf.shape) == tuple(target.shape) and _kind(leaf) == _kind(target)
    return alike and _address(leaf) == _address(target)


def _kind(leaf: Any) -> str:
    """Returns the name of a dtype; torch and NumPy have the same names for those that both have."""
    return str(leaf.dtype).removeprefix("torch.")
