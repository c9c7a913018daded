"""Trees of tensors as a description and a block."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import random
import re
import sys
import time
import types
from collections import OrderedDict, defaultdict, namedtuple
from enum import Flag, IntEnum
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from feed_data import Point, flat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_convert

from headrace.errors import PipelineError, ProtocolError
from headrace.feed.batch.pytree import (  # fmt: skip
    ALIGNMENT,
    bytes_of,
    copied,
    describe,
    mapped,
    packed,
    rebuild,
    rows_of,
    write_leaves,
)
from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.fetch import stack_arrays


def travel(tree: Any, *, copy: bool = False) -> Any:
    """Describes a tree, sends the description through msgpack, and rebuilds the tree."""
    node, leaves, size = describe(tree)
    block = np.full(size, 0xAB, np.uint8)
    write_leaves(leaves, block)
    memory = copied(block) if copy else None
    return rebuild(msgspec.msgpack.decode(msgspec.msgpack.encode(node)), block, memory)


TORCH_DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn,
]  # fmt: skip
NUMPY_DTYPES = ["f2", "f4", "f8", "i1", "i8", "u2", "u8", "?", "c8", "c16", ">i4", ">f8", "S5", "U3", "M8[ns]", "m8[D]"]


def test_a_tensor_that_requires_gradients_is_refused_as_it_would_arrive_without() -> None:
    leaf = torch.ones(2, requires_grad=True)
    for value, place in ((leaf, "batch"), ({"x": [leaf * 2]}, "batch['x'][0]")):
        with pytest.raises(PipelineError, match=re.escape(place) + ".* requires gradients"):
            travel(value)


def test_leaves_are_aligned_and_writable_views_of_the_block() -> None:
    node, leaves, size = describe([torch.ones(3, dtype=torch.uint8), np.ones(5), torch.ones(2, dtype=torch.float64)])
    assert all(offset % ALIGNMENT == 0 for offset, _ in leaves)
    block = np.zeros(size, np.uint8)
    write_leaves(leaves, block)
    first, second, third = rebuild(node, block)
    third += 1
    second[:] = 7
    assert rebuild(node, block)[2].tolist() == [2.0, 2.0]
    assert rebuild(node, block)[1].tolist() == [7.0] * 5
    assert first.tolist() == [1, 1, 1]


def test_a_copy_does_not_look_at_the_block() -> None:
    node, leaves, size = describe(torch.ones(3))
    block = np.zeros(size, np.uint8)
    write_leaves(leaves, block)
    tensor = rebuild(node, block, copied(block))
    block[:] = 0
    assert tensor.tolist() == [1, 1, 1]


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
)
leaf = (
    plain
    | st.sampled_from(TORCH_DTYPES[:10]).map(lambda dtype: torch.ones(2, 3).to(dtype))
    | st.sampled_from(NUMPY_DTYPES).map(lambda dtype: np.zeros((2, 2), dtype))
    | st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("ä"), np.datetime64("2020-01-01")])
)
key = st.text(max_size=5) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
tree = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(key, inner, max_size=4)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(tree)
def test_a_nested_tree_comes_back_as_it_was(value: Any) -> None:
    assert flat(travel(value)) == flat(value)
    assert flat(travel(value, copy=True)) == flat(value)


def test_an_int_of_any_size_travels() -> None:
    assert travel([10**5000, -(10**5000)]) == [10**5000, -(10**5000)]


def test_a_namedtuple_is_the_class_that_is_known_here_or_one_of_the_same_fields() -> None:
    assert type(travel(Point(1, 2))) is Point
    local = namedtuple("local", ["u", "v"])
    got = travel(local(1, "b"))
    assert (got.u, got.v, got._fields) == (1, "b", ("u", "v"))


@pytest.mark.parametrize("name", ["Text", "Missing", "Colour", "flat", "Point"])
def test_a_subclass_that_is_not_known_here_is_replaced_by_an_equivalent(name: str) -> None:
    got = rebuild(["d", f"no_module:{name}", [["v", "a"]], [["b", f"no_module:{name}", [["v", 4]]]]], np.empty(0, "u1"))
    assert got == {"a": 4}
    assert [(type(value).__name__, type(value).__base__) for value in (got, got["a"])] == [(name, dict), (name, int)]


def test_a_member_of_an_enum_that_is_not_known_here_is_an_error_that_says_so() -> None:
    for name in ("no_module:Colour", f"{__name__}:Text"):
        with pytest.raises(PipelineError, match=r"'RED' of the enum .*, which the trainer has not imported"):
            rebuild(["l", [["e", name, "RED"]]], np.empty(0, np.uint8))
    with pytest.raises(ProtocolError):
        rebuild(["e", f"{__name__}:Colour", "__class__"], np.empty(0, np.uint8))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    sizes: list[int]
    note: str = dataclasses.field(default="", init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    inner: Batch
    text: str = ""


class Heir(Batch):
    pass


@dataclasses.dataclass
class Watchful:
    """Every place where a class can run code of its own."""

    x: int
    calls: dataclasses.InitVar[list[str] | None] = None

    def __new__(cls, *_: object) -> Watchful:
        Watchful.seen.append("new")  # type: ignore[attr-defined]
        return super().__new__(cls)

    def __post_init__(self, calls: list[str] | None) -> None:
        Watchful.seen.append("init")  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: object) -> None:
        Watchful.seen.append("set")  # type: ignore[attr-defined]
        object.__setattr__(self, name, value)

    @functools.cached_property
    def double(self) -> int:
        return 2 * self.x


Watchful.seen = []  # type: ignore[attr-defined]


class Guarded:
    """A field that is a descriptor, which would run when it is set."""

    def __set__(self, instance: object, value: object) -> None:
        raise AssertionError("called")

    def __get__(self, instance: object, owner: object = None) -> int:
        return 3


@dataclasses.dataclass
class Described:
    x: int


Described.x = Guarded()  # type: ignore[assignment]


@dataclasses.dataclass
class Abstract(abc.ABC):
    x: int

    @abc.abstractmethod
    def method(self) -> None: ...


@dataclasses.dataclass
class Odd(ValueError):
    x: int


def test_a_dataclass_instance_travels_at_any_depth_as_its_own_class() -> None:
    batch = Frozen(Batch(torch.arange(6.0).reshape(2, 3), [1, 2]), "text")
    batch.inner.note = "kept"
    got = travel({"a": [batch]})["a"][0]
    assert (type(got), type(got.inner), got.text, got.inner.note) == (Frozen, Batch, "text", "kept")
    assert torch.equal(got.inner.x, batch.inner.x)
    assert got.inner.sizes == [1, 2]
    assert type(travel(Heir(torch.ones(1), []))) is Heir
    assert (rows_of(got), bytes_of(got)) == (2, 24)


@pytest.mark.promise(
    "feed-guarantees", "nothing is unpickled from a socket; a message is checked before memory is taken for it"
)
def test_rebuilding_a_dataclass_runs_no_code_of_its_class() -> None:
    value = Watchful(4)
    assert value.double == 8  # a cached property is no field, and is made again where it is needed
    Watchful.seen.clear()  # type: ignore[attr-defined]
    got = travel(value)
    assert (type(got), got.x, got.double, Watchful.seen) == (Watchful, 4, 8, [])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["Described", "Abstract", "Odd", "Guarded", "travel", "Missing", "<locals>.Batch"])
def test_a_class_that_is_no_plain_dataclass_of_these_fields_is_replaced_by_an_equivalent(name: str) -> None:
    got = rebuild(["c", f"{__name__}:{name}", ["x"], [["v", 4]]], np.empty(0, np.uint8))
    assert (got.x, [field.name for field in dataclasses.fields(got)]) == (4, ["x"])
    assert type(got).__module__ != __name__
    assert type(got).__name__ == name.rpartition(".")[2]
    same = rebuild(["c", f"{__name__}:{name}", ["x"], [["v", 5]]], np.empty(0, np.uint8))
    assert type(same) is type(got)


def test_looking_for_a_class_imports_nothing_and_asks_no_module() -> None:
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # type: ignore[method-assign]
    sys.modules["lazy_module"] = lazy
    try:
        for kind in ("c", "n"):
            rebuild([kind, "lazy_module:Batch", ["x"], [["v", 4]]], np.empty(0, np.uint8))
            rebuild([kind, "antigravity:Batch", ["x"], [["v", 4]]], np.empty(0, np.uint8))
    finally:
        del sys.modules["lazy_module"]
    assert "antigravity" not in sys.modules


def test_a_class_of_the_script_is_found_from_a_spawned_process_too() -> None:
    kind = dataclasses.make_dataclass("InScript", ["x"])
    kind.__module__ = "__mp_main__"
    assert describe(kind(1))[0][1] == "__main__:InScript"


def test_a_dataclass_that_would_lose_something_is_refused() -> None:
    extra = Batch(torch.ones(1), [])
    extra.more = 5  # type: ignore[attr-defined]
    unset = Batch(torch.ones(1), [])
    del unset.sizes
    for value, message in (
        (extra, r"batch\[0\]: a .*Batch with attributes that are no fields: more"),
        (unset, "sizes"),
    ):
        with pytest.raises(PipelineError, match=message):
            describe([value])


def test_a_tree_is_mapped_with_its_containers_kept_and_itself_unchanged() -> None:
    tree = {"a": [1, (2, Point(3, 4))], "b": OrderedDict(c=Frozen(Batch(5, [6]), 7))}  # type: ignore[arg-type]
    got = mapped(tree, str)
    assert got == {"a": ["1", ("2", Point("3", "4"))], "b": OrderedDict(c=got["b"]["c"])}
    assert got["b"]["c"] == Frozen(got["b"]["c"].inner, "7")
    assert (got["b"]["c"].inner.x, got["b"]["c"].inner.sizes) == ("5", ["6"])
    assert tree["a"] == [1, (2, Point(3, 4))]


class Colour(IntEnum):
    RED = 1


class Permission(Flag):
    READ = 1
    WRITE = 2


class Text(str):
    __slots__ = ()


class Tagged(str):
    def __init__(self, _: str) -> None:
        self.tag = "title"


class Slotted(list[int]):
    __slots__ = ("extra",)

    def __init__(self, values: list[int]) -> None:
        super().__init__(values)
        self.extra = 1


class Wrapping(torch.Tensor):
    """As quantized or distributed tensors: it computes with another tensor than its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("called")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"batch\['a'\]\[1\]: a builtins.object cannot travel"),
        ({1, 2}, "batch: a builtins.set cannot travel"),
        ({"a": Tagged("x")}, r"batch\['a'\]: a .*Tagged with attributes, which would be lost: tag"),
        ([Slotted([1])], r"batch\[0\]: a .*Slotted with attributes, which would be lost: extra"),
        (Permission.READ | Permission.WRITE, "no name under which it could travel"),
        (time.struct_time(range(9)), "batch: a time.struct_time"),
        ({"a": defaultdict(lambda: 1, a=torch.ones(1))}, r"batch\['a'\]: a defaultdict that calls <function"),
        (types.MappingProxyType({"a": 2}), "mappingproxy cannot travel"),
        ({"t": [np.ma.array([1.0], mask=[True])]}, r"batch\['t'\]\[0\]: a numpy.ma.MaskedArray would arrive as an ord"),
        (Point(1, np.eye(1).view(np.matrix)), r"batch\.\w+: a numpy.matrix would arrive"),
        (np.zeros(2, [("a", "i4")]).view(np.recarray), "numpy.*recarray would arrive"),
        (np.array(["a"]).view(np.char.chararray), "chararray would arrive"),
        ([torch.nn.Parameter(torch.ones(1))], r"batch\[0\]: a torch.nn.parameter.Parameter is more than its values"),
        (Wrapping(torch.ones(1)), "Wrapping is more than its values"),
        (np.array([object()]), "arrays of dtype object cannot travel"),
        (np.zeros(2, [("a", "i4")]), "(?s)cannot travel.*hint: return a dict of one array a field"),
        (torch.eye(2).to_sparse(), "only dense CPU tensors can travel"),
        (torch.eye(2).to("meta"), "only dense CPU tensors can travel"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(value: object, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        describe(value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"batch\['x'\]: only dense CPU tensors can travel, got .*nested"):
        describe({"x": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])})


def test_a_tree_that_is_too_deep_is_refused_on_both_sides() -> None:
    deep: Any = torch.ones(1)
    node: Any = ["v", 1]
    for _ in range(40):
        deep, node = [deep], ["l", [node]]
    with pytest.raises(PipelineError, match="nested deeper than 32"):
        describe(deep)
    plain: Any = 1
    for _ in range(200):
        plain = [plain]
    assert repr(travel(plain)) == repr(plain)
    for _ in range(100):
        plain = (plain,)
    for value in (plain, [plain]):
        with pytest.raises(PipelineError, match="nested deeper than 256"):
            describe(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PipelineError, match="nested deeper than 256"):
        describe(endless)
    with pytest.raises(ProtocolError, match="too deep"):
        rebuild(node, np.empty(0, np.uint8))


MALFORMED: list[Any] = [
    None, 3, "text", b"bytes", [], {}, [None], ["?"], ["t"], ["v"], ["i"], ["i", "zz"], ["i", 5], ["i", None],
    ["t", "float32", [4], 0, 0], ["t", "float32", [65], 0], ["t", "float32", [-1], 0], ["t", "float32", [1], -64],
    ["t", "float32", [1], 1], ["t", "float32", [1], 2**70], ["t", "float32", [2**40, 2**40], 0],
    ["t", "float32", [2**62, 0], 0], ["t", "float32", [2**62, 4, 0], 0], ["t", "float32", "44", 0],
    ["t", "float32", [1.0], 0], ["t", "float32", None, 0], ["t", "nn", [1], 0], ["t", "no such", [1], 0],
    ["t", "load", [1], 0], ["t", 5, [1], 0], ["t", "qint8", [4], 0], ["t", "float32", [1], None],
    ["a", "O", [1], 0], ["a", "|O8", [1], 0], ["a", "V8", [1], 0], ["a", "f4,f4", [1], 0], ["a", "(2,)f4", [1], 0],
    ["a", "((((", [1], 0], ["a", "", [1], 0], ["a", None, [1], 0], ["a", ["f4"], [1], 0], ["a", {"names": []}, [1], 0],
    ["a", "<U99999999999", [1], 0], ["a", "<U0", [1], 0], ["a", "<f3", [1], 0], ["a", "<f4", [65], 0],
    ["a", "<M8[xx]", [1], 0], ["a", "<M8[0s]", [1], 0], ["a", "<f4", [1] * 70, 0],
    ["x", 1.0], ["x", "1", 2.0], ["x", None, 1.0], ["x", "1+2j"], ["s", "<f4", 10**6], ["s", "<f4"], ["s", "<f4", -64],
    ["d", [["v", 1]], []], ["d", [["l", []]], [["v", 1]]], ["d", 1, 2], ["d", [["v", []]], [["v", 1]]],
    ["l", 5], ["l", [5]], ["l"], ["u", None], ["u", [["t"]]],
    ["n", "m:c", ["a"], []], ["n", "m:c", ["a b"], [["v", 1]]], ["n", "m:c", ["class"], [["v", 1]]],
    ["n", 5, [], []], ["n", "os:system", ["a"], [["v", "true"]], 1], ["n", "m:1", ["a"], [["v", 1]]],
    ["n", "m:c", [["a"]], [["v", 1]]], ["n", "m:c", ["a", "a"], [["v", 1], ["v", 1]]],
    ["o", [["v", 1]], []], ["o", 1, 2], ["o", [["l", []]], [["v", 1]]],
    ["c", "m:c", ["a"], []], ["c", "m:c", [], [["v", 1]]], ["c", "m:c", ["a b"], [["v", 1]]], ["c", 5, [], []],
    ["c", "m:c", ["class"], [["v", 1]]], ["c", "m:c", [["a"]], [["v", 1]]], ["c", "m:c", [5], [["v", 1]]],
    ["c", "m:c", ["a", "a"], [["v", 1], ["v", 1]]], ["c", "m:c"], ["c", "m:c", "ab", [["v", 1]]],
    ["c", None, None, None],
    ["c", "m:c", [f"f{i}" for i in range(1001)], [["v", 1]] * 1001],
    ["n", "m:c", [f"f{i}" for i in range(1001)], [["v", 1]] * 1001],
]  # fmt: skip


@pytest.mark.promise(
    "feed-guarantees", "nothing is unpickled from a socket; a message is checked before memory is taken for it"
)
def test_malformed_descriptions_are_refused_and_allocate_nothing() -> None:
    block = np.zeros(256, np.uint8)
    for node in MALFORMED:
        print(node)
        try:
            made = rebuild(node, block)
        except ProtocolError:
            continue
        assert bytes_of(made) == 0, "only a value without a single byte may be made of this"


def test_a_namedtuple_node_calls_nothing_but_namedtuples() -> None:
    made = rebuild(["n", "os:system", ["a"], [["v", "exit 3"]]], np.empty(0, np.uint8))
    assert made._fields == ("a",)


def test_a_description_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.feed.batch.pytree.MAX_NODES", 100)
    with pytest.raises(ProtocolError, match="too long"):
        rebuild(["l", [["v", 1]] * 101], np.empty(0, np.uint8))


def test_mutated_descriptions_never_do_more_than_raise_protocol_error() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    node, _, size = describe(
        {"a": [torch.ones(3), np.ones(2)], "b": (Point(1, "x"), np.float32(1), 2**70), "c": Batch(torch.ones(2), [1])}
    )
    atoms = [
        None,
        -1,
        0,
        1,
        2**62,
        1.5,
        "t",
        "a",
        "l",
        "d",
        "n",
        "c",
        "o",
        "float32",
        "<f4",
        [],
        [1, 2],
        {},
        b"x",
        True,
    ]

    def mutate(value: Any) -> Any:
        if chance.random() < 0.08:
            return chance.choice(atoms)
        return [mutate(item) for item in value] if isinstance(value, list) else value

    for _ in range(3000):
        try:
            rebuild(mutate(node), np.zeros(size, np.uint8))
        except ProtocolError:
            continue


def test_rows_and_bytes_are_counted() -> None:
    batch = {"x": ["text", torch.ones(5, 2)], "y": np.ones(5)}
    assert rows_of(batch) == 5
    assert bytes_of(batch) == 5 * 2 * 4 + 5 * 8
    assert rows_of([torch.tensor(1.0), torch.ones(5)]) == 5
    assert rows_of([torch.tensor(1.0), "x", 3]) == 1  # without axes it is one sample
    assert rows_of(["x", 3]) == rows_of([np.ones(0)]) == 0


def test_a_small_tree_can_travel_in_a_message() -> None:
    value = [np.int64(3), (1, "x"), torch.tensor([1, 2])]
    node, leaves, size = describe(value)
    block = np.frombuffer(bytearray(packed(leaves, size)), np.uint8)
    assert flat(rebuild(node, block)) == flat(value)
    assert packed([], 0) == b""


def test_a_million_plain_values_are_one_leaf_and_other_values_in_such_numbers_are_refused_with_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = {"polygon": [[float(k), k] for k in range(350_000)]}
    node, leaves, size = describe(points)
    assert (node[0], len(leaves)) == ("m", 1)
    block = np.zeros(size, np.uint8)
    write_leaves(leaves, block)
    assert rebuild(node, block) == points
    monkeypatch.setattr("headrace.feed.batch.pytree.MAX_NODES", 100)
    with pytest.raises(PipelineError, match=r"batch\['a'\]\[97\]: more than 100 values"):
        describe({"a": [np.float32(1)] * 101})


@pytest.mark.parametrize(
    "raw", [b"\xff" * 8, b"\xdd\xff\xff\xff\xff", b"", b"\xc7\x00\x09", b"\xd4\x01\x00", b"\x91" * 5000, b"\x01\x01"]
)
def test_plain_values_from_a_peer_that_are_none_are_refused(raw: bytes) -> None:
    block = np.frombuffer(raw.ljust(64, b"\0"), np.uint8)
    size = block.size + 1
    for node in (
        ["m", [], len(raw), 0],
        ["m", [], size, 0],
        ["m", [], -1, 0],
        ["m", [], "1", 0],
        ["m", []],
        ["p", [], raw],
    ):
        with pytest.raises(ProtocolError):
            rebuild(node, block)


@pytest.mark.parametrize(
    "marks", ["lll", ["u", "u"], [b""], [b"\1\0"], [b"\1", b"\1\1\1"], [5], 5, None, {"u": 1}, ["x"]]
)
def test_marks_from_a_peer_that_do_not_fit_do_no_harm(marks: Any) -> None:
    for value in ([[1], [2]], {"a": [1]}, [], 5):
        node = ["p", marks, msgspec.msgpack.encode(value)]
        with contextlib.suppress(ProtocolError):
            made = repr(rebuild(node, np.empty(0, np.uint8)))
            assert made.replace(",)", "]").replace("(", "[").replace(")", "]") == repr(value)


def test_a_token_that_an_older_headrace_made_is_still_read() -> None:
    block = np.zeros(64, np.uint8)
    raw = msgspec.msgpack.encode(list(range(9)))
    block[: len(raw)] = np.frombuffer(raw, np.uint8)
    old = ["d", [["v", "a"], ["v", "b"]], [["m", "l", len(raw), 0], ["u", [["m", "u", len(raw), 0], ["i", "0x5"]]]]]
    assert rebuild(old, block) == {"a": list(range(9)), "b": (tuple(range(9)), 5)}


@pytest.mark.parametrize(
    "sample",
    [
        ["a", "b", "c"], [], [1, 2.0, None, b"x", True], [1, torch.ones(2)], ["a", np.ones(2)], ["a", ["b", 1]],
        ("a", "b"), [np.float32(1), "a"], {"names": ["a", "b"]},
    ],
)  # fmt: skip
def test_a_list_of_plain_values_is_converted_as_torch_converts_it(sample: Any) -> None:
    [converted] = DataLoader([sample], batch_size=None)
    expected = default_convert(sample)
    assert repr(converted) == repr(expected)
    assert converted is not sample
    [stacked] = DataLoader([[1, 2, 3]], batch_size=None, collate_fn=stack_arrays)
    assert stacked.tolist() == [1, 2, 3]
    assert bytes_of(["a", np.ones(2), "b"]) == 16
