"""Batches whose rows can be written one by one: the layout of a stacked batch.

torch's `default_collate`, and `stack_arrays`, stack equal tensors, arrays and numbers along a new first axis. For such
samples a batch is a set of tables, one a leaf, and any run of rows can be written by any worker straight into its
place. The layout is learned from one collated sample and is the same on every worker; it places the tables of n rows
one after the other, aligned.

Samples that differ from the first in type, dtype or shape, and samples with leaves that do not stack (strings), have
no layout: `Uneven`. Then the whole batch is collated at once, with the collate function's own result or error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, ProtocolError
from headrace.feed.batch.pytree import VALUES, Bytes, Node, align, describe, dtype_of, viewed
from headrace.feed.batch.tensors import is_tensor

MAX_LEAVES = 10_000
_STACK_BYTES = 128 << 10  # small rows are collected up to this size and stacked in one call
_STACKED = "biufc"  # kinds of dtypes of arrays that are stacked
_CONTAINERS = {"l": 2, "u": 2, "d": 3, "n": 4}  # lengths of their nodes: those of a subclass are longer
_EMPTY = (b"\x80", b"\x90")  # a dict, a list or tuple
_PLAIN_ARRAYS = (np.ndarray, np.memmap)  # whose values are just their bytes


class Uneven(Exception):
    """The samples cannot be written row by row; collate the whole batch."""


class Table(msgspec.Struct, frozen=True, array_like=True):
    """One leaf of a stacked batch: dtype (torch's name, or NumPy's as in `<f4`), shape of a row, bytes of a row."""

    dtype: str
    row_shape: tuple[int, ...]
    row_bytes: int

    def rows(self, raw: NDArray[np.uint8], count: int) -> Any:
        """Returns bytes as a tensor or array of `count` rows, a view of them."""
        return viewed(raw, dtype_of(self.dtype), (count, *self.row_shape))


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """Layout of a stacked batch.

    Attributes:
        tree: description of the batch as in `tree`, where a leaf is ["t", k] or ["a", k], k an index into `tables`.
        tables: the leaves.
    """

    tree: list[Any]
    tables: tuple[Table, ...]

    @property
    def row_bytes(self) -> int:
        """Payload bytes of one row over all tables."""
        return sum(table.row_bytes for table in self.tables)

    @property
    def small_rows(self) -> int:
        """How many rows are collected and stacked in one call, at least 1."""
        return max(1, _STACK_BYTES // max(1, self.row_bytes))

    def offsets(self, rows: int) -> list[int]:
        """Returns where each table starts in a block for `rows` rows."""
        offsets, size = [], 0
        for table in self.tables:
            offsets.append(size)
            size = align(size + table.row_bytes * rows)
        return offsets

    def size(self, rows: int) -> int:
        """Returns the size of a block for `rows` rows, bytes."""
        return sum(align(table.row_bytes * rows) for table in self.tables)

    def regions(self, rows: int, first: int, last: int) -> list[tuple[int, int]]:
        """Returns (offset, length) of rows first..last-1 in each table of a block for `rows` rows."""
        return [
            (offset + first * table.row_bytes, (last - first) * table.row_bytes)
            for offset, table in zip(self.offsets(rows), self.tables, strict=True)
        ]

    def describe(self, rows: int, start: int = 0) -> Node:
        """Returns the description of a whole batch of `rows` rows that begins at `start`, for `tree.rebuild`."""
        return self._fill(self.tree, [start + offset for offset in self.offsets(rows)], rows)

    def _fill(self, node: Any, offsets: Sequence[int], rows: int) -> Node:
        kind = node[0]
        if kind in ("t", "a"):
            table = self.tables[node[1]]
            return [kind, table.dtype, [rows, *table.row_shape], offsets[node[1]]]
        if kind in VALUES:
            return list(node)
        return [*node[:-1], [self._fill(child, offsets, rows) for child in node[-1]]]

    def targets(self, block: Bytes, rows: int) -> list[Any]:
        """Returns the rows of each table in the block of a batch, as tensors and arrays: views of it."""
        return [
            table.rows(block[offset : offset + table.row_bytes * rows], rows)
            for table, offset in zip(self.tables, self.offsets(rows), strict=True)
        ]

    def check(self) -> None:
        """Raises ProtocolError if a layout that came from a peer is not sound."""
        if len(self.tables) > MAX_LEAVES or any(
            table.row_bytes < 0 or any(extent < 0 for extent in table.row_shape) for table in self.tables
        ):
            raise ProtocolError("a batch layout with bad tables")
        try:
            self.describe(1)
        except (TypeError, ValueError, LookupError, RecursionError) as error:
            raise ProtocolError(f"a batch layout with a malformed tree: {error}") from error


_layouts = msgspec.msgpack.Decoder(Layout)


@functools.lru_cache(maxsize=256)
def decode_layout(data: bytes) -> Layout:
    """Decodes a layout that came from a peer. Raises ProtocolError if it is not sound."""
    try:
        layout = _layouts.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"a batch layout that cannot be decoded: {error}") from error
    layout.check()
    return layout


def learn(sample: Any, collate: Callable[[list[Any]], Any]) -> Layout:
    """Learns the layout of batches made of samples like this one, from the collate function itself.

    Raises:
        Uneven: batches of such samples are not stacked tensors or arrays throughout.
    """
    layout = _learn(sample, collate, 1)
    if not layout.tables or layout != _learn(sample, collate, 2):  # a list of the samples' values grows with them
        raise Uneven
    return layout


def _learn(sample: Any, collate: Callable[[list[Any]], Any], rows: int) -> Layout:
    tables: list[Table] = []
    try:
        node, _, _ = describe(collate([sample] * rows))
    except (TypeError, ValueError, RuntimeError, PipelineError):
        raise Uneven from None  # its own words, for the whole batch
    return Layout(_tabled(node, tables, rows), tuple(tables))


def _tabled(node: Node, tables: list[Table], rows: int) -> Node:
    """Returns the description of a batch of some rows with its leaves in tables. Raises Uneven."""
    kind, *_, last = node
    if kind in ("t", "a"):
        _, dtype, shape, _ = node
        table = Table(dtype, tuple(shape[1:]), math.prod(shape[1:]) * dtype_of(dtype).itemsize)
        if shape[:1] != [rows] or (kind == "a" and dtype[1] not in _STACKED):
            raise Uneven
        tables.append(table)
        return [kind, len(tables) - 1]
    if node[0] == "p" and last in _EMPTY:
        return node
    if _CONTAINERS.get(kind) != len(node) or (kind == "d" and not {key[0] for key in node[1]} <= VALUES):
        raise Uneven
    return [*node[:-1], [_tabled(child, tables, rows) for child in last]]


class LayoutCache:
    """The layouts of the samples that were seen, so that each is learned once."""

    def __init__(self) -> None:
        self._known: dict[Any, Layout | None] = {}  # None: they do not stack

    def of(self, sample: Any, collate: Callable[[list[Any]], Any]) -> Layout:
        """Returns the layout of batches that `collate` makes of such samples. Raises Uneven."""
        try:
            signature = _signature(sample)
        except RecursionError:
            raise Uneven from None
        if signature not in self._known:
            if len(self._known) >= 64:
                self._known.clear()
            try:
                self._known[signature] = learn(sample, collate)
            except Uneven:
                self._known[signature] = None
        layout = self._known[signature]
        if layout is None:
            raise Uneven
        return layout


class RowWriter:
    """Writes samples as consecutive rows of a stacked batch. Small ones are collected and stacked together.

    Args:
        sample: the first sample; the others must be like it.
        layout: its layout, and that of the batch.
        block: block of the whole batch, uint8.
        rows: rows of the whole batch.
        first: row of the first sample.
    """

    def __init__(self, sample: Any, layout: Layout, block: Bytes, rows: int, first: int) -> None:
        self._most = layout.small_rows
        self._template = sample if self._most > 1 else None  # a large sample is let go of when it is written
        self._signature = _signature(sample) if self._most == 1 else None
        self._samples: list[Any] = []
        self._written = first
        self._targets = layout.targets(block, rows)

    def write(self, sample: Any) -> None:
        """Takes the next sample. Raises Uneven if it, or one before it, differs from the first one."""
        self._samples.append(sample)
        if len(self._samples) >= self._most:
            self.finish()

    def finish(self) -> None:
        """Writes what was collected. Raises Uneven."""
        if not self._samples:
            return
        first, last = self._written, self._written + len(self._samples)
        columns: list[list[Any]] = []
        alone = self._most == 1
        if alone and _signature(self._samples[0]) != self._signature:
            raise Uneven
        if not _columns(self._samples, self._samples[0] if alone else self._template, columns):
            raise Uneven
        stack_rows(columns, [target[first:last] for target in self._targets])
        self._samples.clear()
        self._written = last


def columns_of(samples: list[Any]) -> list[list[Any]]:
    """Lists the samples' leaves, column by column, in the order of the layout's tables. Raises Uneven."""
    columns: list[list[Any]] = []
    if not _columns(samples, samples[0], columns):
        raise Uneven
    return columns


def stack_rows(columns: Sequence[list[Any]], targets: Sequence[Any]) -> None:
    """Writes all rows of a batch: for each table the leaves of all rows, and where they go. Raises Uneven."""
    try:
        for column, target in zip(columns, targets, strict=True):
            _stack(column, target)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Uneven from None  # the collate function's own result, or its own words, for the whole batch


def _stack(column: list[Any], target: Any) -> None:
    """Writes equal leaves as the rows of a tensor or array."""
    leaf = column[0]
    if isinstance(target, np.ndarray):
        if isinstance(leaf, np.ndarray):
            join_arrays(column, target)
        else:
            target[:] = column
        return
    import torch

    if type(leaf) in _PLAIN_ARRAYS and _as_torch_takes(column):
        join_arrays(column, target.numpy())
    elif isinstance(leaf, torch.Tensor):
        if any(tensor.requires_grad for tensor in column):
            raise TypeError("what requires gradients cannot travel")  # told of the whole batch, with its place
        if len(column) == 1:
            target[0].copy_(column[0])
        else:
            torch.stack(column, out=target)
    elif isinstance(leaf, np.ndarray):
        for row, array in zip(target, column, strict=True):
            row.copy_(torch.as_tensor(array))
    else:
        values = [item.item() if isinstance(item, np.generic) else item for item in column]
        target.copy_(torch.tensor(values, dtype=target.dtype))


def join_arrays(column: Sequence[NDArray[Any]], target: NDArray[Any]) -> None:
    """Writes equal arrays as the rows of an array."""
    if type(column[0]) in _PLAIN_ARRAYS and column[0].ndim:
        count, first, *others = target.shape
        np.concatenate(column, out=target.reshape(count * first, *others))  # np.stack makes a view of each first
    else:
        np.stack(column, out=target)


def stacks_at_once(column: Sequence[Any]) -> bool:
    """Whether torch stacks such leaves as NumPy does: equal arrays whose values are numbers."""
    first = column[0]
    if not all(type(array) in _PLAIN_ARRAYS for array in column) or first.dtype.kind not in _STACKED:
        return False
    alike = {array.dtype for array in column} == {first.dtype} and {array.shape for array in column} == {first.shape}
    return alike and first.dtype.isnative and first.size > 0 and _as_torch_takes(column)


def _as_torch_takes(column: Sequence[NDArray[Any]]) -> bool:
    """Whether torch makes tensors of such arrays: not of those that go backwards, or lie askew."""
    size = column[0].itemsize
    return all(step >= 0 and step % size == 0 for strides in {array.strides for array in column} for step in strides)


def _columns(samples: list[Any], template: Any, columns: list[list[Any]]) -> bool:
    """Lists the samples' leaves, column by column, in the order in which `default_collate` lays them out.

    Returns:
        False when a sample is not like the template: structure, types, dtypes or shapes.
    """
    if set(map(type, samples)) != {type(template)}:
        return False
    if is_tensor(template) or isinstance(template, np.ndarray):
        columns.append(samples)
        alike = {value.dtype for value in samples} == {template.dtype}
        return alike and {value.shape for value in samples} == {template.shape}
    if isinstance(template, Mapping):
        keys = tuple(template)
        if any(tuple(value) != keys for value in samples):
            return False
        return all(_columns([value[key] for value in samples], template[key], columns) for key in keys)
    if isinstance(template, (list, tuple)):
        if set(map(len, samples)) != {len(template)}:
            return False
        return all(_columns([value[i] for value in samples], item, columns) for i, item in enumerate(template))
    columns.append(samples)
    return True


def _signature(sample: Any) -> Any:
    """Returns what must be equal for two samples to be stackable: structure, types, dtypes and shapes."""
    if is_tensor(sample):
        return (type(sample), sample.dtype, sample.shape)
    if isinstance(sample, np.ndarray):
        return (type(sample), sample.dtype, sample.shape)
    if isinstance(sample, Mapping):
        return (type(sample), tuple(sample), tuple(_signature(item) for item in sample.values()))
    if isinstance(sample, (list, tuple)):
        return (type(sample), tuple(_signature(item) for item in sample))
    return type(sample)
