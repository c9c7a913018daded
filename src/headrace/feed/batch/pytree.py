"""Trees of tensors and arrays as a description and one block of bytes. No pickle.

`describe(tree)` walks nested dict, list, tuple, namedtuple and dataclass with tensors, arrays and plain values at the
leaves and returns a description that msgpack can carry, the leaves' arrays, and the size of a block in which every leaf
has an aligned place. `write_leaves` copies the leaves into a block; `rebuild` makes views of a block into the same tree
again. The description is data from a peer when it is rebuilt, so nothing in it is trusted: depth, number of nodes,
dtypes, shapes and offsets are checked against the block before an array is made; nothing is imported, and no code of a
class that it names is called (see `records`).

Node forms (first element is the kind):
    ["t", dtype, shape, offset]        torch tensor, dtype as in `torch.float32`
    ["a", dtype, shape, offset]        numpy array, dtype as in `<f4`
    ["s", dtype, offset]               numpy scalar
    ["v", value]                       None, bool, int, float, str, bytes
    ["i", digits]                      an int beyond 64 bits, in base 16
    ["x", real, imaginary]             complex, of two floats
    ["m", "l" or "u", length, offset]  list or tuple of many plain values, as msgpack in the block
    ["d", [key nodes], [nodes]]        dict; mappings of other types than the next become one
    ["o", [key nodes], [nodes]]        OrderedDict
    ["l", [nodes]] / ["u", [nodes]]    list / tuple
    ["n", name, [fields], [nodes]]     namedtuple, name as in `module:qualified.name`
    ["c", name, [fields], [nodes]]     dataclass instance
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, ProtocolError
from headrace.feed.batch import records
from headrace.feed.batch.tensors import is_tensor

ALIGNMENT = 64
MAX_DEPTH = 32
MAX_NODES = 1_000_000

_DTYPE = re.compile(r"[<>|=][biufcSUmM][1-9]\d{0,9}(\[([1-9]\d{0,8})?[a-zA-Z]{1,7}\])?")  # what `dtype.str` gives

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
LEAVES = ("t", "a", "s", "m")  # nodes that end with an offset in the block
MANY = 8  # plain values: so many in a list travel in the block
_values = msgspec.msgpack.Decoder(list[bool | int | float | str | None])  # with bytes msgspec takes no such type
_others: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(list)

Node = list[Any]
Bytes = NDArray[np.uint8]


def is_plain_list(value: Any) -> bool:
    """Returns whether a value is a list of nothing but None, bool, int, float, str and bytes."""
    return type(value) is list and set(map(type, value)) <= _PLAIN


def align(size: int) -> int:
    """Rounds up to the alignment of leaves."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Describer:
    def __init__(self) -> None:
        self.leaves: list[tuple[int, Bytes]] = []
        self.size = 0

    def place(self, raw: Bytes) -> int:
        offset = self.size
        self.leaves.append((offset, raw))
        self.size = align(offset + raw.size)
        return offset

    def node(self, value: Any, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise PipelineError(f"{path}: nested deeper than {MAX_DEPTH} levels")
        if is_tensor(value):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return ["a", _numpy_dtype(value.dtype, path), list(value.shape), self.place(_raw(value))]
        if isinstance(value, np.generic):
            return ["s", _numpy_dtype(value.dtype, path), self.place(_raw(np.asarray(value)))]
        if type(value) is int and not -(2**63) <= value < 2**64:
            return ["i", hex(value)]
        if type(value) is complex:
            return ["x", value.real, value.imag]
        if type(value) in _PLAIN:
            return ["v", value]
        if isinstance(value, Mapping):
            keys = [self.node(key, f"{path} key", depth + 1) for key in value]
            kind = "o" if type(value) is OrderedDict else "d"
            return [kind, keys, [self.node(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()]]
        if isinstance(value, (list, tuple)):
            if len(value) >= MANY and set(map(type, value)) <= _PLAIN and not hasattr(value, "_fields"):
                packed = self._values(value)
                if packed is not None:
                    return packed
            nodes = [self.node(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
            if isinstance(value, list):
                return ["l", nodes]
            fields = getattr(value, "_fields", None)
            if fields is None:
                return ["u", nodes]
            return ["n", records.name_of(type(value)), list(fields), nodes]
        if records.is_record(value):
            values = records.checked_values(value, path)
            nodes = [self.node(item, f"{path}.{name}", depth + 1) for name, item in values.items()]
            return ["c", records.name_of(type(value)), list(values), nodes]
        raise PipelineError(
            f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot travel to the trainer",
            hint="return tensors, arrays, numbers, strings, bytes or None, nested in dict, list, tuple or dataclass",
        )

    def _values(self, value: list[Any] | tuple[Any, ...]) -> Node | None:
        """Packs plain values; None when one of them needs a node of its own (an int beyond 64 bits)."""
        try:
            raw = np.frombuffer(msgspec.msgpack.encode(value), np.uint8)
        except (OverflowError, ValueError):
            return None
        return ["m", "l" if isinstance(value, list) else "u", raw.size, self.place(raw)]

    def _tensor(self, value: Any, path: str) -> Node:
        torch = sys.modules["torch"]
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            seen = f"{value.dtype}, {value.layout} on {value.device}"
            raise PipelineError(f"{path}: only dense CPU tensors can travel, got {seen}")
        value = value.resolve_conj().resolve_neg()
        flat = value.detach().reshape(-1)
        if flat.stride(0) != 1:  # of a single element, which `contiguous` takes for contiguous
            flat = flat.clone(memory_format=torch.contiguous_format)
        raw: Bytes = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return ["t", str(value.dtype).removeprefix("torch."), list(value.shape), self.place(raw)]


def _raw(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _numpy_dtype(dtype: np.dtype[Any], path: str) -> str:
    if dtype.kind not in "biufcSUmM":
        raise PipelineError(f"{path}: arrays of dtype {dtype} cannot travel to the trainer")
    return str(dtype.str)


def describe(tree: object, path: str = "batch") -> tuple[Node, list[tuple[int, Bytes]], int]:
    """Describes a tree.

    Args:
        tree: nested dict, list, tuple, namedtuple, dataclass with tensors, arrays and plain values.
        path: name of the tree in error messages.

    Returns:
        The description, the leaves as (offset, bytes), and the size of the block in bytes.

    Raises:
        PipelineError: a value of another type; the message names its place.
    """
    describer = _Describer()
    return describer.node(tree, path, 0), describer.leaves, describer.size


def write_leaves(leaves: Sequence[tuple[int, Bytes]], block: Bytes) -> None:
    """Copies leaves to their places in a block."""
    for offset, raw in leaves:
        block[offset : offset + raw.size] = raw


def packed(leaves: Sequence[tuple[int, Bytes]], size: int) -> bytes:
    """Returns a block of `size` bytes that holds the leaves, for small trees that travel in a message."""
    if not size:
        return b""
    block = np.zeros(size, np.uint8)
    write_leaves(leaves, block)
    return block.tobytes()


def rebuild(node: object, block: Bytes, *, copy: bool = False) -> Any:
    """Makes the described tree of a block's bytes.

    Args:
        node: description, as it came from a peer.
        block: the bytes; the tensors and arrays are views of it.
        copy: whether the leaves are copied to ordinary memory instead.

    Raises:
        ProtocolError: the description is malformed, or reaches outside the block.
    """
    return _Rebuilder(block.copy() if copy else block).tree(node, 0)


def rebuild_measured(node: object, block: Bytes) -> tuple[Any, int]:
    """Makes the described tree as `rebuild` does. Returns it, and what `bytes_of` says of it. Raises as `rebuild`."""
    rebuilder = _Rebuilder(block)
    return rebuilder.tree(node, 0), rebuilder.size


class _Rebuilder:
    def __init__(self, block: Bytes) -> None:
        self.block = block
        self.nodes = 0
        self.size = 0  # of the tensors and arrays

    def tree(self, node: object, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise ProtocolError("a batch description is nested too deep or too long")
        try:
            return self._node(node, depth)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
            raise ProtocolError(f"a malformed batch description: {error}") from error

    def _children(self, nodes: Sequence[object], depth: int) -> list[Any]:
        return [self.tree(child, depth + 1) for child in nodes]

    def _node(self, node: Any, depth: int) -> Any:
        kind, *rest = node
        if kind == "t":
            return self._tensor(*rest)
        if kind == "a":
            return self._array(*rest)
        if kind == "s":
            scalar = self._array(rest[0], [], rest[1])
            self.size -= scalar.nbytes
            return scalar[()]
        if kind == "v":
            return rest[0]
        if kind == "i":
            return int(rest[0], 16)
        if kind == "x":
            real, imaginary = rest
            return complex(real, imaginary)
        if kind == "m":
            return self._values(*rest)
        if kind in ("d", "o"):
            pairs = zip(self._children(rest[0], depth), self._children(rest[1], depth), strict=True)
            return OrderedDict(pairs) if kind == "o" else dict(pairs)
        if kind == "l":
            return self._children(rest[0], depth)
        if kind == "u":
            return tuple(self._children(rest[0], depth))
        if kind == "n":
            return records.make_namedtuple(rest[0], rest[1], self._children(rest[2], depth))
        if kind == "c":
            return records.make_dataclass(rest[0], rest[1], self._children(rest[2], depth))
        raise ProtocolError(f"an unknown kind of node in a batch description: {kind!r}")

    def _bytes(self, itemsize: int, shape: Sequence[int], offset: int) -> Bytes:
        count = itemsize
        for extent in shape:
            if not isinstance(extent, int) or extent < 0:
                raise ProtocolError(f"a bad shape in a batch description: {shape!r}")
            count *= extent
        if not isinstance(offset, int) or offset < 0 or offset % ALIGNMENT or offset + count > self.block.size:
            raise ProtocolError(f"a batch description reaches outside its block: {offset}+{count} of {self.block.size}")
        return self.block[offset : offset + count]

    def _values(self, kind: str, length: int, offset: int) -> list[Any] | tuple[Any, ...]:
        packed = self._bytes(1, [length], offset).data
        try:
            values: list[Any] = _values.decode(packed)
        except msgspec.ValidationError:  # bytes among them, or what is not plain
            values = self._checked_values(packed)
        except (msgspec.DecodeError, RecursionError, MemoryError) as error:
            raise ProtocolError(f"plain values in a batch description that cannot be decoded: {error}") from error
        return values if kind == "l" else tuple(values)

    def _checked_values(self, packed: memoryview) -> list[Any]:
        try:
            values = _others.decode(packed)
        except (msgspec.DecodeError, RecursionError, MemoryError) as error:
            raise ProtocolError(f"plain values in a batch description that cannot be decoded: {error}") from error
        if not set(map(type, values)) <= _PLAIN:
            raise ProtocolError("a list of plain values in a batch description that holds others")
        return values

    def _array(self, dtype: str, shape: Sequence[int], offset: int) -> NDArray[Any]:
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
            raise ProtocolError(f"a dtype that cannot travel in a batch description: {dtype!r}")
        kind = np.dtype(dtype)
        raw = self._bytes(kind.itemsize, shape, offset)
        self.size += raw.size
        return raw.view(kind).reshape(shape)

    def _tensor(self, dtype: str, shape: Sequence[int], offset: int) -> Any:
        import torch

        kind = getattr(torch, dtype)
        if not isinstance(kind, torch.dtype) or dtype.startswith("q"):  # quantized ones are more than their bytes
            raise ProtocolError(f"an unknown torch dtype in a batch description: {dtype!r}")
        raw = self._bytes(kind.itemsize, shape, offset)
        self.size += raw.size
        if raw.size == 0:
            return torch.empty(tuple(shape), dtype=kind)
        return torch.from_numpy(raw).view(kind).reshape(tuple(shape))


def _children(tree: Any) -> Iterable[Any]:
    if type(tree) in _PLAIN:  # most of what is no tensor
        return ()
    if isinstance(tree, Mapping):
        return tree.values()
    if isinstance(tree, (list, tuple)):
        return () if set(map(type, tree)) <= _PLAIN else tree  # a list of strings is not gone through one by one
    return records.values_of(tree).values() if records.is_record(tree) else ()


def mapped(tree: Any, function: Callable[[Any], Any], *, whole: str = "pin_memory") -> Any:
    """Returns a tree of the same containers, with `function` applied to everything else in it.

    Containers are dict, OrderedDict, list, tuple, namedtuples and dataclass instances; the given tree is not changed.

    Args:
        tree: what came of a batch.
        function: applied to tensors, arrays, and all else that is no container.
        whole: name of a method; what has it knows itself what to do with its parts, and is no container.
    """
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, mapped(item, function, whole=whole)) for key, item in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)([mapped(item, function, whole=whole) for item in tree])
    if isinstance(tree, tuple) and hasattr(tree, "_fields") and not hasattr(tree, whole):
        return tuple.__new__(type(tree), [mapped(item, function, whole=whole) for item in tree])
    if records.is_record(tree) and not hasattr(tree, whole):
        return records.replaced(tree, lambda item: mapped(item, function, whole=whole))
    return function(tree)


def shifted(node: Node, offset: int) -> Node:
    """Returns the description of a tree whose block begins at `offset` of a larger one."""
    kind = node[0]
    if kind in LEAVES:
        return [*node[:-1], node[-1] + offset]
    if kind in ("v", "i"):
        return node
    lists = 2 if kind in ("d", "o") else 1
    return [*node[:-lists], *([shifted(child, offset) for child in part] for part in node[-lists:])]


def leaf_names(node: Node) -> list[str]:
    """Lists the places of a description's tensors and arrays, as the user would write them: ``[0]['image']``."""
    return [path for path, child in terminals(node) if child[0] in LEAVES]


def terminals(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yields the leaves and plain values of a description, each with its path, in the order of the description."""
    kind = node[0]
    if kind in LEAVES or kind in ("v", "i"):
        yield path, node
        return
    if kind in ("d", "o"):
        for key in node[1]:
            yield from terminals(key, f"{path} key")
        places = [f"[{key[1]!r}]" if key[0] == "v" else "[?]" for key in node[1]]
    elif kind in ("n", "c"):
        places = [f".{field}" for field in node[2]]
    else:
        places = [f"[{i}]" for i in range(len(node[1]))]
    for place, child in zip(places, node[-1], strict=True):
        yield from terminals(child, path + place)


def rows_of(tree: Any) -> int:
    """Returns the length of the first axis of a tree's first tensor or array that has axes.

    A tree without axes is one sample, as a loader without batches yields it; one without tensors and arrays has 0 rows.
    """
    alone = 0
    for leaf in _arrays(tree):
        if leaf.ndim and leaf.shape[0]:
            return int(leaf.shape[0])
        alone = max(alone, int(not leaf.ndim))
    return alone


def _arrays(tree: Any) -> Iterator[Any]:
    """Goes through a tree's tensors and arrays."""
    if is_tensor(tree) or isinstance(tree, np.ndarray):
        yield tree
        return
    for child in _children(tree):
        yield from _arrays(child)


def bytes_of(tree: Any) -> int:
    """Returns the payload bytes of a tree's tensors and arrays; torch's sparse COO say none, and do not count."""
    if is_tensor(tree):
        return 0 if tree.layout is sys.modules["torch"].sparse_coo else int(tree.nbytes)
    if isinstance(tree, np.ndarray):
        return int(tree.nbytes)
    size = 0
    for child in _children(tree):
        size += bytes_of(child)
    return size
