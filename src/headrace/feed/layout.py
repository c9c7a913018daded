"""Batches whose rows can be written one by one: the layout of a stacked batch.

torch's `default_collate` stacks equal tensors, arrays and numbers along a new first axis. For such samples a batch is
a set of tables, one a leaf, and any run of rows can be written by any worker straight into its place. The layout is
learned from one collated sample and is the same on every worker; it places the tables of n rows one after the other,
aligned.

Samples that differ from the first in type, dtype or shape, and samples with leaves that do not stack (strings), have
no layout: `Uneven`. Then the whole batch is collated at once, by torch, with torch's own result or torch's own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ProtocolError
from headrace.feed.tree import Bytes, Node, align, is_tensor

MAX_LEAVES = 10_000


class Uneven(Exception):
    """The samples cannot be written row by row; collate the whole batch."""


class Table(msgspec.Struct, frozen=True, array_like=True):
    """One leaf of a stacked batch: torch dtype name, shape of a row, bytes of a row."""

    dtype: str
    row_shape: tuple[int, ...]
    row_bytes: int


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """Layout of a stacked batch.

    Attributes:
        tree: description of the batch as in `tree`, where a leaf is ["t", k], k an index into `tables`.
        tables: the leaves.
    """

    tree: list[Any]
    tables: tuple[Table, ...]

    @property
    def row_bytes(self) -> int:
        """Payload bytes of one row over all tables."""
        return sum(table.row_bytes for table in self.tables)

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

    def describe(self, rows: int) -> Node:
        """Returns the description of a whole batch of `rows` rows, for `tree.rebuild`."""
        return self._fill(self.tree, self.offsets(rows), rows)

    def _fill(self, node: Any, offsets: Sequence[int], rows: int) -> Node:
        kind = node[0]
        if kind == "t":
            table = self.tables[node[1]]
            return ["t", table.dtype, [rows, *table.row_shape], offsets[node[1]]]
        children = [self._fill(child, offsets, rows) for child in node[-1]]
        return [*node[:-1], children]

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


def decode_layout(data: bytes) -> Layout:
    """Decodes a layout that came from a peer. Raises ProtocolError if it is not sound."""
    try:
        layout = _layouts.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"a batch layout that cannot be decoded: {error}") from error
    layout.check()
    return layout


def learn(sample: Any) -> Layout:
    """Learns the layout of batches made of samples like this one, from torch's own `default_collate`.

    Raises:
        Uneven: batches of such samples are not stacked tensors throughout.
    """
    from torch.utils.data import default_collate

    tables: list[Table] = []
    tree = _node(default_collate([sample]), tables)
    if not tables:
        raise Uneven
    return Layout(tree, tuple(tables))


def _node(value: Any, tables: list[Table]) -> Node:
    if is_tensor(value):
        if value.ndim == 0 or value.shape[0] != 1 or value.device.type != "cpu" or not _is_strided(value):
            raise Uneven
        shape = tuple(value.shape[1:])
        tables.append(Table(str(value.dtype).removeprefix("torch."), shape, value[0].numel() * value.element_size()))
        return ["t", len(tables) - 1]
    if type(value) is dict and all(isinstance(key, (str, int)) for key in value):
        return ["d", [["v", key] for key in value], [_node(item, tables) for item in value.values()]]
    if type(value) is list:
        return ["l", [_node(item, tables) for item in value]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return ["n", name, list(value._fields), [_node(item, tables) for item in value]]
    raise Uneven


def _is_strided(tensor: Any) -> bool:
    import torch

    return tensor.layout is torch.strided


class RowWriter:
    """Writes samples as rows of a stacked batch.

    Args:
        sample: the first sample of the slice; the others must be like it.
        layout: layout of the batch.
        block: block of the whole batch, uint8.
        rows: rows of the whole batch.

    Raises:
        Uneven: the sample does not fit the layout.
    """

    def __init__(self, sample: Any, layout: Layout, block: Bytes, rows: int) -> None:
        import torch

        own = learn(sample)
        if own != layout:
            raise Uneven
        self._signature = _signature(sample)
        self._targets = []
        for table, offset in zip(layout.tables, layout.offsets(rows), strict=True):
            raw: NDArray[np.uint8] = block[offset : offset + table.row_bytes * rows]
            shape = (rows, *table.row_shape)
            dtype = getattr(torch, table.dtype)
            view = torch.from_numpy(raw).view(dtype).reshape(shape) if raw.size else torch.empty(shape, dtype=dtype)
            self._targets.append(view)

    def write(self, row: int, sample: Any) -> None:
        """Writes one sample. Raises Uneven if it differs from the first one."""
        import torch

        if _signature(sample) != self._signature:
            raise Uneven
        try:
            for target, leaf in zip(self._targets, _leaves(sample), strict=True):
                if isinstance(leaf, torch.Tensor):
                    target[row].copy_(leaf.detach())
                elif isinstance(leaf, np.ndarray):
                    target[row].copy_(torch.as_tensor(leaf))
                else:
                    target[row] = leaf.item() if isinstance(leaf, np.generic) else leaf
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise Uneven from None  # torch's own result, or torch's own words, for the whole batch


def _leaves(sample: Any) -> list[Any]:
    """Lists a sample's leaves in the order in which `default_collate` lays them out."""
    if isinstance(sample, Mapping):
        return [leaf for item in sample.values() for leaf in _leaves(item)]
    if isinstance(sample, (list, tuple)):
        return [leaf for item in sample for leaf in _leaves(item)]
    return [sample]


def _signature(sample: Any) -> Any:
    """Returns what must be equal for two samples to be stackable: structure, types, dtypes and shapes."""
    if is_tensor(sample):
        return ("t", sample.dtype, sample.shape)
    if isinstance(sample, np.ndarray):
        return ("a", sample.dtype, sample.shape)
    if isinstance(sample, Mapping):
        return ("d", tuple(sample), tuple(_signature(item) for item in sample.values()))
    if isinstance(sample, (list, tuple)):
        return (type(sample), tuple(_signature(item) for item in sample))
    return type(sample)
