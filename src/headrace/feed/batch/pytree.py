"""Trees of tensors and arrays as a description and one block of bytes. No pickle.

`describe(tree)` walks a tree of containers with tensors, arrays and plain values at the leaves and returns a
description that msgpack can carry, the leaves' arrays, and the size of a block in which every leaf has an aligned
place. `write_leaves` copies the leaves into a block; `rebuild` makes the same tree again, of views of a block. The
description is data from a peer when it is rebuilt, so nothing in it is trusted: depth, number of nodes, dtypes, shapes
and offsets are checked against the block before an array is made; nothing is imported, and no code of a class that it
names is called (see `records`). What would arrive as another type, or without a part of its meaning, is refused with
its place.

A node of a description is a list that begins with its kind. There are three forms, and whoever goes through a
description tells them apart by `LEAVES` and `VALUES` alone:

leaves, which end with an offset in the block:
    ["t", dtype, shape, offset]        torch tensor, dtype as in `torch.float32`
    ["a", dtype, shape, offset]        numpy array, dtype as in `<f4`
    ["s", dtype, offset]               numpy scalar
    ["m", marks, length, offset]       a plain tree, see `plain_values`
values:
    ["v", value]                       None, bool, int, float, str, bytes
    ["i", digits]                      an int beyond 64 bits, in base 16
    ["x", real, imaginary]             complex, of two floats
    ["p", marks, bytes]                a small plain tree
    ["e", class, name]                 member of an enum, class as in `module:qualified.name`
containers, which end with the nodes of what they hold, dicts with those of their keys before:
    ["l" or "u", [nodes]]              list, tuple; of a subclass: ["l", class, [nodes]]
    ["d" or "o", [nodes], [nodes]]     dict, OrderedDict; likewise
    ["f", factory, [nodes], [nodes]]   defaultdict
    ["n", class, [fields], [nodes]]    namedtuple
    ["c" or "w", class, [fields], [nodes]]  dataclass instance, UserDict
    ["k", class, [attributes], [nodes]]  subclass of Tensor: the tensor, and its attributes
    ["b", class, [node]]               subclass of str, int, float, complex or bytes
"""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import re
import sys
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, ProtocolError
from headrace.feed.batch import plain_values, records
from headrace.feed.batch.plain_values import CONTAINERS, SCALARS
from headrace.feed.batch.records import Refusal
from headrace.feed.batch.tensors import is_tensor

ALIGNMENT = 64
MAX_DEPTH = 32  # of containers that hold more than plain values
MAX_NODES = 1_000_000

_DTYPE = re.compile(r"[<>|=][biufcSUmM][1-9]\d{0,9}(\[([1-9]\d{0,8})?[a-zA-Z]{1,7}\])?")  # what `dtype.str` gives

_PLAIN = SCALARS | CONTAINERS
DIGEST_BYTES = 8
INLINE = 512  # bytes of plain values that stand in the description; more lie in the block

Node = list[Any]
Bytes = NDArray[np.uint8]
Memory = Callable[[int, int], Bytes]  # given offset and length, the memory of a leaf


class _Container(NamedTuple):
    """A kind of container: how it is described, and how another one is made.

    Attributes:
        facts: what stands in the description between the kind and the nodes. Raises Refusal.
        parts: the values; of a mapping its keys and its values.
        join: makes one of what came from a peer: the facts, and lists of what it holds. None: none comes.
        like: makes one of the user's own like a given one, with other values. None: `mapped` sees no container in it.
    """

    facts: Callable[[Any], list[Any]]
    parts: Callable[[Any], tuple[list[Any], ...]]
    join: Callable[..., Any] | None
    like: Callable[[Any, list[Any]], Any] | None = None


def _name_of(base: type) -> Callable[[Any], list[Any]]:
    return lambda value: [] if type(value) is base else [records.subclass_name(value)]


def _factory_of(value: Any) -> list[Any]:
    factory = value.default_factory
    name = "" if factory is None else getattr(factory, "__name__", "?")
    if type(value) is not defaultdict or _FACTORIES.get(name, value) is not factory:
        raise Refusal(f"a defaultdict that calls {factory!r} cannot travel between processes", "return dict(it)")
    return [name]


def _refused(value: Any) -> list[Any]:
    kind = type(value)
    raise Refusal(
        f"a {kind.__module__}.{kind.__qualname__} cannot travel between processes",
        "return tensors, arrays, numbers, strings, bytes or None, nested in dict, list, tuple or dataclass",
    )


def _record_facts(value: Any) -> list[Any]:
    return [records.name_of(type(value)), list(records.checked_values(value))]


def _items(value: Any) -> tuple[list[Any], ...]:
    return ([*value],)


def _pairs(value: Any) -> tuple[list[Any], ...]:
    return [*value], [*value.values()]


def _fields(value: Any) -> tuple[list[Any], ...]:
    return ([*records.values_of(value).values()],)


def _like_list(value: Any, items: list[Any]) -> Any:
    if type(value) is list:
        return items
    clone = copy.copy(value)
    clone[:] = items
    return clone


def _like_tuple(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    try:
        return tuple.__new__(kind, items)
    except TypeError:  # one of C makes its instances itself
        return kind(items)


def _like_dict(value: Any, items: list[Any]) -> Any:
    if type(value) is dict:
        return dict(zip(value, items, strict=True))
    clone = copy.copy(value)
    update = partial(dict.update, clone) if isinstance(value, dict) else clone.update  # a Counter's own adds
    update(zip([*value], items, strict=True))
    return clone


_FACTORIES: dict[str, Any] = {
    "": None, **{kind.__name__: kind for kind in (list, dict, tuple, set, int, float, complex, bool, str, bytes)}
}  # fmt: skip
_PLAINLY: dict[type, Callable[[Any], Any]] = {  # the value of an instance of a subclass, which may say what it likes
    str: str.__str__,
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}


def _tensor_facts(value: Any) -> list[Any]:
    torch, kind = sys.modules["torch"], type(value)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or value.requires_grad:
        raise Refusal(
            f"a {kind.__module__}.{kind.__qualname__} is more than its values, and would lose it on the way",
            "return its plain tensor: .detach(), or .as_subclass(torch.Tensor)",
        )
    return [records.name_of(kind), [*vars(value)]]


def _tensor_parts(value: Any) -> tuple[list[Any], ...]:
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        return ([value.as_subclass(torch.Tensor), *vars(value).values()],)


def _scalar_parts(value: Any) -> tuple[list[Any], ...]:
    return ([next(plain(value) for base, plain in _PLAINLY.items() if isinstance(value, base))],)


def _joined(base: Any, *rest: Any) -> Any:
    """Makes a container of a type of Python's own, or of a subclass whose name comes first."""
    name, parts = (rest[0], rest[1:]) if isinstance(rest[0], str) else (None, rest)
    content = base(zip(*parts, strict=True)) if issubclass(base, dict) else base(*parts)
    return content if name is None else records.make_subclass(base, name, content)


def _defaultdict(factory: str, keys: list[Any], items: list[Any]) -> Any:
    return defaultdict(_FACTORIES[factory], zip(keys, items, strict=True))


def _scalar(name: str, values: list[Any]) -> Any:
    [value] = values
    return records.make_subclass(type(value), name, value)


_CONTAINERS = {
    "l": _Container(_name_of(list), _items, partial(_joined, list), _like_list),
    "u": _Container(_name_of(tuple), _items, partial(_joined, tuple), _like_tuple),
    "d": _Container(_name_of(dict), _pairs, partial(_joined, dict), _like_dict),
    "o": _Container(_name_of(OrderedDict), _pairs, partial(_joined, OrderedDict), _like_dict),
    "f": _Container(_factory_of, _pairs, _defaultdict, _like_dict),
    "n": _Container(
        lambda value: [records.subclass_name(value), [*value._fields]], _items, records.make_namedtuple, _like_tuple
    ),
    "c": _Container(_record_facts, _fields, records.make_record, records.replaced),
    "w": _Container(_record_facts, _fields, records.make_mapping, records.replaced),
    "k": _Container(_tensor_facts, _tensor_parts, records.make_tensor),
    "b": _Container(_name_of(object), _scalar_parts, _scalar),
    "?": _Container(_refused, _pairs, None, _like_dict),  # mappings of other types
}
_MAPPINGS = frozenset("dof?")
_EXACT: dict[Any, str] = {list: "l", tuple: "u", dict: "d", OrderedDict: "o", defaultdict: "f"}


def _kind_of(value: Any) -> str:
    """Returns the kind of a container; empty for everything else."""
    kind = type(value)
    if kind in _EXACT or kind in SCALARS:
        return _EXACT.get(kind, "")
    if is_array(value) or isinstance(value, np.generic):
        return ""
    for base, code in ((OrderedDict, "o"), (defaultdict, "f"), (dict, "d"), (list, "l")):
        if isinstance(value, base):
            return code
    if isinstance(value, tuple):
        return "n" if hasattr(value, "_fields") else "u"
    if records.is_record(value):
        return "w" if isinstance(value, UserDict) else "c"
    return "?" if isinstance(value, Mapping) else ""


def _place(kind: str, facts: Sequence[Any], keys: Sequence[Any], number: int) -> str:
    """Returns how the user would write the place of a value in its container: ``[0]``, ``['image']``, ``.field``."""
    if kind in _MAPPINGS:
        return f"[{keys[number]!r}]"
    if kind in ("n", "c", "w"):
        return f".{facts[1][number]}"
    if kind == "k":
        return f".{facts[1][number - 1]}" if number else ""
    return "" if kind == "b" else f"[{number}]"


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or an array."""
    return is_tensor(value) or isinstance(value, np.ndarray)


def is_plain_list(value: Any) -> bool:
    """Returns whether a value is a list of nothing but None, bool, int, float, complex, str and bytes."""
    return type(value) is list and set(map(type, value)) <= SCALARS


def align(size: int) -> int:
    """Rounds up to the alignment of leaves."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Describer:
    def __init__(self) -> None:
        self.leaves: list[tuple[int, Bytes]] = []
        self.size = 0
        self.nodes = 0

    def place(self, raw: Bytes) -> int:
        offset = self.size
        self.leaves.append((offset, raw))
        self.size = align(offset + raw.size)
        return offset

    def node(self, value: Any, depth: int) -> Node:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_NODES} values"
            raise Refusal(what, "make arrays or tensors of them, or plain Python values throughout")
        kind = type(value)
        if kind in SCALARS:
            return self._scalar(value)
        if is_tensor(value):
            return self._tensor(value, depth)
        if isinstance(value, np.ndarray):
            if kind not in (np.ndarray, np.memmap):
                raise Refusal(
                    f"a {kind.__module__}.{kind.__qualname__} would arrive as an ordinary array",
                    "return np.asarray of it, and what else belongs to it (as a mask) as another field",
                )
            return ["a", _numpy_dtype(value.dtype), list(value.shape), self.place(_raw(value))]
        if isinstance(value, np.generic) and kind not in (np.str_, np.bytes_):  # of arrays, which drop zeros at the end
            array = np.asarray(value)
            return ["s", _numpy_dtype(array.dtype), self.place(_raw(array))]
        if kind in CONTAINERS:
            plain = self._plain(value)
            if plain is not None:
                return plain
        if isinstance(value, enum.Enum):
            return self._member(value)
        code = _kind_of(value) or ("b" if isinstance(value, tuple(_PLAINLY)) else "?")
        return self._container(code, value, depth)

    def _nodes(self, values: Sequence[Any], depth: int, place: Callable[[int], str]) -> list[Node]:
        nodes: list[Node] = []
        try:
            for value in values:
                nodes.append(self.node(value, depth))
        except Refusal as refusal:
            refusal.place = place(len(nodes)) + refusal.place
            raise
        return nodes

    def _container(self, kind: str, value: Any, depth: int) -> Node:
        facts, parts = _CONTAINERS[kind].facts(value), _CONTAINERS[kind].parts(value)
        keys = [self._nodes(parts[0], depth + 1, lambda _: " key")] if len(parts) == 2 else []
        return [kind, *facts, *keys, self._nodes(parts[-1], depth + 1, partial(_place, kind, facts, parts[0]))]

    def _scalar(self, value: Any) -> Node:
        kind = type(value)
        if kind is int and not -(2**63) <= value < 2**64:
            return ["i", hex(value)]
        if kind is complex:
            return ["x", value.real, value.imag]
        if kind in (str, bytes) and (len(value) > INLINE or (kind is str and plain_values.is_broken(value))):
            return self._packed(plain_values.encode(value), [])
        return ["v", value]

    def _plain(self, value: Any) -> Node | None:
        """Packs a plain tree; None if it is none."""
        try:
            marks = plain_values.marks_of(value)
            raw = None if marks is None else plain_values.encode(value)
        except (PipelineError, RecursionError) as error:
            raise Refusal(str(error)) from None
        return None if marks is None or raw is None else self._packed(raw, marks)

    def _packed(self, raw: bytes | None, marks: plain_values.Marks) -> Node:
        assert raw is not None, "a scalar has no keys"
        if len(raw) <= INLINE:
            return ["p", marks, raw]
        return ["m", marks, len(raw), self.place(np.frombuffer(raw, np.uint8))]

    def _member(self, value: enum.Enum) -> Node:
        kind = type(value)
        if value.name not in kind.__members__:  # several flags
            raise Refusal(f"{value!r} has no name under which it could travel", "return its value")
        return ["e", records.name_of(kind), value.name]

    def _tensor(self, value: Any, depth: int) -> Node:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor:
            return self._container("k", value, depth)
        if value.is_nested or value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            seen = f"{value.dtype}, {'nested' if value.is_nested else value.layout} on {value.device}"
            raise Refusal(f"only dense CPU tensors can travel, got {seen}")
        if value.requires_grad:
            raise Refusal("a tensor that requires gradients would lose that on the way", "return its .detach()")
        value = value.resolve_conj().resolve_neg()
        flat = value.reshape(-1)
        if flat.stride(0) != 1:  # of a single element, which `contiguous` takes for contiguous
            flat = flat.clone(memory_format=torch.contiguous_format)
        raw: Bytes = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return ["t", str(value.dtype).removeprefix("torch."), list(value.shape), self.place(raw)]


def _raw(array: NDArray[Any]) -> Bytes:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if array.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63:  # 10 bytes of each 16; the rest is chance
        raw = raw.copy()
        gaps = raw.reshape(-1, 16)
        (gaps[:, 10:] if array.dtype.isnative else gaps[:, :6])[:] = 0
    return raw


def _numpy_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.kind not in "biufcSUmM" or not dtype.itemsize:
        raise Refusal(
            f"arrays of dtype {dtype} cannot travel between processes",
            "return a dict of one array a field (a void's bytes as uint8), of objects .tolist() or an array of numbers",
        )
    return str(dtype.str)


def describe(tree: object, path: str = "batch") -> tuple[Node, list[tuple[int, Bytes]], int]:
    """Describes a tree.

    Args:
        tree: containers with tensors, arrays and plain values.
        path: name of the tree in error messages.

    Returns:
        The description, the leaves as (offset, bytes), and the size of the block in bytes.

    Raises:
        PipelineError: a value of another type, or one that would lose something; the message names its place.
    """
    describer = _Describer()
    try:
        return describer.node(tree, 0), describer.leaves, describer.size
    except Refusal as refusal:
        raise PipelineError(f"{path}{refusal.place}: {refusal.text}", hint=refusal.hint) from None


def write_leaves(leaves: Sequence[tuple[int, Bytes]], block: Bytes) -> None:
    """Copies leaves to their places in a block."""
    for offset, raw in leaves:
        block[offset : offset + raw.size] = raw


def digest_of_bytes(node: Node, leaves: Sequence[tuple[int, Bytes]]) -> bytes:
    """Returns what tells a tree that was described from others: `DIGEST_BYTES` of its description and its leaves."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(node), digest_size=DIGEST_BYTES)
    for _, raw in leaves:
        digest.update(raw.data)
    return digest.digest()


def packed(leaves: Sequence[tuple[int, Bytes]], size: int) -> bytes:
    """Returns a block of `size` bytes that holds the leaves, for small trees that travel in a message."""
    if not size:
        return b""
    block = np.zeros(size, np.uint8)
    write_leaves(leaves, block)
    return block.tobytes()


def rebuild(node: object, block: Bytes, memory: Memory | None = None) -> Any:
    """Makes the described tree of a block's bytes.

    Args:
        node: description, as it came from a peer.
        block: the bytes.
        memory: returns the memory of a tensor or array, by its offset and length; by default that is the block's own.

    Raises:
        ProtocolError: the description is malformed, or reaches outside the block.
        PipelineError: it holds the member of an enum that is not known here.
    """
    return rebuild_measured(node, block, memory)[0]


def rebuild_measured(node: object, block: Bytes, memory: Memory | None = None) -> tuple[Any, int]:
    """Makes the described tree as `rebuild` does. Returns it, and what `bytes_of` says of it. Raises as `rebuild`."""
    rebuilder = _Rebuilder(block, memory)
    return rebuilder.tree(node, 0), rebuilder.size


def copied(block: Bytes) -> Memory:
    """Returns what gives each leaf of a block memory of its own, so that none keeps the others in memory."""
    return lambda offset, length: block[offset : offset + length].copy()


class _Rebuilder:
    def __init__(self, block: Bytes, memory: Memory | None) -> None:
        self.block = block
        self.memory = memory
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

    def _node(self, node: Any, depth: int) -> Any:
        kind, *rest = node
        if kind in _LEAVES:
            return _LEAVES[kind](self, *rest)
        if kind in _VALUES:
            return _VALUES[kind](*rest)
        join = _CONTAINERS[kind].join if kind in _CONTAINERS else None
        if join is None:
            raise ProtocolError(f"an unknown kind of node in a batch description: {kind!r}")
        lists = 2 if kind in _MAPPINGS else 1
        parts = [[self.tree(child, depth + 1) for child in part] for part in rest[-lists:]]
        return join(*rest[:-lists], *parts)

    def _bytes(self, itemsize: int, shape: Sequence[int], offset: int, memory: Memory | None = None) -> Bytes:
        count = itemsize
        for extent in shape:
            if not isinstance(extent, int) or extent < 0:
                raise ProtocolError(f"a bad shape in a batch description: {shape!r}")
            count *= extent
        if not isinstance(offset, int) or offset < 0 or offset % ALIGNMENT or offset + count > self.block.size:
            raise ProtocolError(f"a batch description reaches outside its block: {offset}+{count} of {self.block.size}")
        return self.block[offset : offset + count] if memory is None else memory(offset, count)

    def _plain(self, marks: plain_values.Marks, length: int, offset: int) -> Any:
        return plain_values.decode(self._bytes(1, [length], offset).data, marks)

    def _array(self, dtype: str, shape: Sequence[int], offset: int) -> Any:
        kind = dtype_of(dtype)
        raw = self._bytes(kind.itemsize, shape, offset, self.memory)
        self.size += raw.size
        return viewed(raw, kind, shape)

    def _scalar(self, dtype: str, offset: int) -> Any:
        kind = dtype_of(dtype)
        return self._bytes(kind.itemsize, [], offset).view(kind)[0]


_LEAVES: dict[str, Callable[..., Any]] = {  # makes a leaf of what came from a peer, and of the block
    "t": _Rebuilder._array,
    "a": _Rebuilder._array,
    "s": _Rebuilder._scalar,
    "m": _Rebuilder._plain,
}
_VALUES: dict[str, Callable[..., Any]] = {  # makes a value of what came from a peer
    "v": lambda value: value,
    "i": lambda digits: int(digits, 16),
    "x": complex,
    "p": lambda marks, raw: plain_values.decode(raw, marks),
    "e": records.make_member,
}
LEAVES, VALUES = frozenset(_LEAVES), frozenset(_VALUES)


@functools.lru_cache(maxsize=256)
def dtype_of(name: str) -> Any:
    """Returns NumPy's or torch's dtype of a name in a description. Raises ProtocolError if there is none."""
    if name[0] in "<>|=":
        if not _DTYPE.fullmatch(name):
            raise ProtocolError(f"a dtype that cannot travel in a batch description: {name!r}")
        return np.dtype(name)
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name.startswith("q"):  # quantized ones are more than their bytes
        raise ProtocolError(f"an unknown torch dtype in a batch description: {name!r}")
    return dtype


def viewed(raw: Bytes, dtype: Any, shape: Sequence[int]) -> Any:
    """Returns bytes as an array or tensor of a dtype: a view of them."""
    if isinstance(dtype, np.dtype):
        return raw.view(dtype).reshape(shape)
    import torch

    return (
        torch.from_numpy(raw).view(dtype).reshape(tuple(shape)) if raw.size else torch.empty(tuple(shape), dtype=dtype)
    )


# Descriptions


def shifted(node: Node, offset: int) -> Node:
    """Returns the description of a tree whose block begins at `offset` of a larger one."""
    kind = node[0]
    if kind in LEAVES:
        return [*node[:-1], node[-1] + offset]
    if kind in VALUES:
        return node
    lists = 2 if kind in _MAPPINGS else 1
    return [*node[:-lists], *([shifted(child, offset) for child in part] for part in node[-lists:])]


# Trees


def mapped(tree: Any, function: Callable[[Any], Any], *, whole: str = "pin_memory") -> Any:
    """Returns a tree of the same containers, with `function` applied to everything else in it.

    The given tree is not changed.

    Args:
        tree: what came of a batch.
        function: applied to tensors, arrays, and all else that is no container.
        whole: name of a method; what has it knows itself what to do with its parts, and is no container.
    """
    kind = _kind_of(tree)
    if not kind or hasattr(tree, whole) or (kind == "?" and not isinstance(tree, MutableMapping)):
        return function(tree)
    container = _CONTAINERS[kind]
    assert container.like is not None, "of what `_kind_of` knows"
    return container.like(tree, [mapped(item, function, whole=whole) for item in container.parts(tree)[-1]])


def fields_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields everything in a tree that is no container, and empty containers, each with its path."""
    kind = _kind_of(tree)
    parts = _CONTAINERS[kind].parts(tree) if kind else ()
    if not parts or not parts[-1]:
        yield path, tree
        return
    facts = _CONTAINERS[kind].facts(tree)
    for number, item in enumerate(parts[-1]):
        yield from fields_of(item, path + _place(kind, facts, parts[0], number))


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
    if is_array(tree):
        yield tree
        return
    kind = _kind_of(tree)
    items = _CONTAINERS[kind].parts(tree)[-1] if kind else []
    if not {*map(type, items)} <= SCALARS:
        for item in items:
            yield from _arrays(item)


def bytes_of(tree: Any) -> int:
    """Returns the payload bytes of a tree's tensors and arrays; torch's sparse COO say none, and do not count."""
    size = 0
    level = [tree]
    for _ in range(plain_values.MAX_LEVELS):
        types = {*map(type, level)}
        if types <= SCALARS:
            break
        below: list[Any] = []
        if not types <= _PLAIN:
            for value in level:
                if is_tensor(value):
                    size += 0 if value.layout is sys.modules["torch"].sparse_coo else int(value.nbytes)
                elif isinstance(value, np.ndarray):
                    size += value.nbytes
                elif kind := _kind_of(value):
                    below += _CONTAINERS[kind].parts(value)[-1]
        else:  # there may be thousands
            below = [*plain_values.items_of(*plain_values.split(level, types))]
        level = below
    return size
