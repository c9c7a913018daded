"""One value of every kind that a batch may hold, by name, and what tells whether two are the same."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.feed import pipeline

Box = namedtuple("Box", ["corner", "score"])


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


class Count(int):
    pass


class Metres(float):
    pass


class Ordered(list[Any]):
    pass


class Pair(tuple[Any, ...]):
    __slots__ = ()


class Row(dict[str, Any]):
    pass


class Encoding(UserDict[str, Any]):
    """As transformers' BatchEncoding: a mapping that keeps its items in an attribute."""

    def __init__(self, data: dict[str, Any], sequences: int) -> None:
        super().__init__(data)
        self.sequences = sequences


class Picture(torch.Tensor):
    """As torchvision's tv_tensors."""

    size_before: tuple[int, int]


@dataclasses.dataclass
class Record:
    x: Any
    note: str = ""


def _picture() -> Picture:
    picture = torch.arange(6.0).reshape(2, 3).as_subclass(Picture)
    picture.size_before = (4, 5)
    return picture


def _arrays() -> Iterator[tuple[str, Any]]:
    codes = [*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "S5", "U3", "M8[ns]", "M8[D]", "m8[us]", "M8"]
    for code in dict.fromkeys(np.dtype(each).newbyteorder(order).str for each in codes for order in "<>"):
        plain = np.arange(6).reshape(2, 3)
        array = plain.astype("i8").astype(code) if code[1] in "Mm" else plain.astype(code)
        yield f"array {code}", array
        yield f"scalar {code}", array[1, 1]
    base = np.arange(24.0).reshape(4, 6)
    forms = {
        "0-d": np.array(5), "0-d text": np.array("ä"), "empty": np.empty((2, 0, 3)), "empty 1-d": np.empty(0, "i4"),
        "strided": base[::2, 1::2], "backwards": base[::-1, ::-1], "transposed": base.T,
        "Fortran": np.asfortranarray(base),
        "spread": np.broadcast_to(np.float32(3), (2, 2)), "read-only": np.frombuffer(b"abcd", "u1"),
        "of one, strided": np.arange(4)[::2][:1], "of one, backwards": np.arange(4)[2:1:-1],
        "0-d swapped": np.array(1.5, ">f8"), "empty swapped": np.empty((2, 0), ">i4"),
        "0-d time": np.array(1, "M8[ns]"),
    }  # fmt: skip
    yield from ((f"array {name}", array) for name, array in forms.items())
    yield from (("scalar empty text", np.str_("")), ("scalar text", np.str_("ä")), ("scalar bytes", np.bytes_(b"a\0")))


def _tensors() -> Iterator[tuple[str, Any]]:
    raw = torch.arange(64, dtype=torch.uint8) % 2
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in sorted(dtypes, key=str):
        if str(dtype).startswith("torch.q"):
            continue  # quantized: refused
        try:
            tensor = raw[: 4 * dtype.itemsize].view(dtype).reshape(2, -1)
        except (RuntimeError, TypeError):
            continue
        yield f"tensor {dtype}", tensor
    base = torch.arange(24.0).reshape(4, 6)
    forms = {
        "0-d": torch.tensor(5), "empty": torch.empty(2, 0, 3), "strided": base[::2, 1::2], "transposed": base.t(),
        "spread": torch.tensor([1.0]).expand(2, 3), "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag, "of one": base[1:2, 1:2],
        "0-d half": torch.tensor(1.5, dtype=torch.bfloat16), "empty half": torch.empty(0, dtype=torch.bfloat16),
        "0-d complex": torch.tensor(1 + 2j), "empty bytes": torch.empty((2, 0, 4), dtype=torch.float8_e4m3fn),
    }  # fmt: skip
    yield from ((f"tensor {name}", tensor) for name, tensor in forms.items())
    yield "subclass of Tensor", _picture()


def _values() -> Iterator[tuple[str, Any]]:
    numbers = [0, -1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**50, 0.0, -0.0, float("nan"), float("-inf"), 5e-324]
    others = [
        None,
        True,
        False,
        1j,
        complex(-0.0, float("nan")),
        "",
        "ä\0本",
        "\ud800",
        "x" * 5000,
        b"",
        b"\xff" * 5000,
    ]
    yield from ((f"value {value!r:.20}", value) for value in (*numbers, *others))
    inner = torch.ones(2)
    everything = [1, 1.0, True, None, "a", b"a", 1j, 2**70]
    containers: dict[str, Any] = {
        "plain": [everything, tuple(everything), {"a": (1, [2, (3,)]), 5: [()], None: {}, 1.5: [[], {}]}],
        "plain and long": [[(float(k), k) for k in range(50)], {"b": [{"c": str(k)} for k in range(50)]}],
        "dict": {"x": inner, 5: 1, True: 2, (1, "a"): 3, np.int64(4): 4, Word("w"): 5, 2**70: 6, "\ud800": 7},
        "list": [inner, [inner, (1, 2)], []],
        "tuple": (inner, (), ((inner,),)),
        "named tuple": Box((1, 2), inner),
        "plain named tuple": [Box((1, 2), 0.5)] * 9,
        "record": Record({"a": [inner]}, "note"),
        "plain record": [Record(1)] * 9,
        "ordered": OrderedDict(b=inner, a=1),
        "counter": Counter("aab"),
        "defaultdict": defaultdict(list, a=[1]),
        "defaultdict of nothing": defaultdict(None, a=inner),
        "UserDict": Encoding({"ids": inner, "text": ["a", "b"]}, 2),
        "size": torch.Size([2, 3]),
        "subclasses": [
            Word("a"),
            Count(3),
            Metres(1.5),
            Ordered([1, inner]),
            Pair((1, 2)),
            Row(a=inner),
            Word("\ud800"),
        ],
        "plain subclasses": [[Row(a=1), Ordered([Count(2**70)])], {"a": Pair()}],
        "enum": [Colour.RED, Level.LOW, {"a": (Level.LOW,)}],
    }
    yield from containers.items()


KINDS: dict[str, Any] = {**dict(_arrays()), **dict(_tensors()), **dict(_values())}


class Kinds:
    """Row i is {"kind": its name, "value": one of that kind}."""

    def __init__(self, rounds: int = 1) -> None:
        self.names = list(KINDS) * rounds

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return {"kind": self.names[index], "value": KINDS[self.names[index]]}


class KindsInLanes(torch.utils.data.IterableDataset[Any]):
    """The same rows, one after the other."""

    def __init__(self, rounds: int = 1) -> None:
        self.rows = Kinds(rounds)

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


@pipeline
def kinds(rounds: int = 1) -> Kinds:
    return Kinds(rounds)


@pipeline
def kinds_in_lanes(rounds: int = 1) -> KindsInLanes:
    return KindsInLanes(rounds)


def rows(samples: list[Any]) -> list[Any]:
    """A collate function."""
    return samples


def content(value: Any) -> Any:
    """Returns what is equal for two values if, and only if, they are the same: type, and bit by bit."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        flat = value.as_subclass(torch.Tensor).resolve_conj().resolve_neg().reshape(-1)
        flat = flat.clone(memory_format=torch.contiguous_format) if flat.stride(0) != 1 else flat
        raw = flat.view(torch.uint8).tolist() if flat.numel() else []
        return kind, str(value.dtype), tuple(value.shape), raw, content(vars(value))
    if isinstance(value, (np.ndarray, np.generic)):
        raw = [*map(repr, value.ravel())] if value.dtype.char in "gG" else value.tobytes()  # whose bytes have gaps
        return kind, value.dtype.str, value.shape, raw
    if isinstance(value, enum.Enum):
        return kind, value.name
    if kind in (float, Metres):
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if dataclasses.is_dataclass(value):
        return kind, content(vars(value))
    if isinstance(value, UserDict):
        return kind, content(vars(value))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return kind, factory, [(content(key), content(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [content(item) for item in value]
    return kind, value
