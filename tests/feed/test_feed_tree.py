"""Trees of tensors as a description and a block."""

from __future__ import annotations

import random
from collections import OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from feed_data import Point, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError, ProtocolError
from headrace.feed.tree import ALIGNMENT, bytes_of, describe, packed, rebuild, rows_of, write_leaves


def travel(tree: Any, *, copy: bool = False) -> Any:
    """Describes a tree, sends the description through msgpack, and rebuilds the tree."""
    node, leaves, size = describe(tree)
    block = np.full(size, 0xAB, np.uint8)
    write_leaves(leaves, block)
    return rebuild(msgspec.msgpack.decode(msgspec.msgpack.encode(node)), block, copy=copy)


TORCH_DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn,
]  # fmt: skip
NUMPY_DTYPES = ["f2", "f4", "f8", "i1", "i8", "u2", "u8", "?", "c8", "c16", ">i4", ">f8", "S5", "U3", "M8[ns]", "m8[D]"]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_tensors_of_every_dtype_and_shape_travel_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2, (max(1, count),), dtype=torch.uint8)[:count]
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    assert flat(travel(tensor)) == flat(tensor)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_arrays_of_every_dtype_and_shape_travel_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    if array.size:
        array.reshape(-1)[:1] = np.ones(1, "i8").astype(dtype) if dtype[0] not in "Mm" else 1
    got = travel(array)
    assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_views_travel_as_what_they_show() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    views = [base.t(), base[::2, 1::2], base.expand(2, 4, 6), conjugate, torch.tensor([1 + 2j]).conj().imag]
    for view in views:
        assert torch.equal(travel(view), view)
    for array in (np.arange(24).reshape(4, 6)[::-1, ::2], np.arange(4)[::2][:1], np.arange(4)[2:1:-1]):
        assert np.array_equal(travel(array), array)
    assert torch.equal(travel(torch.ones(2, requires_grad=True)), torch.ones(2))


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
    copied = rebuild(node, block, copy=True)
    block[:] = 0
    assert copied.tolist() == [1, 1, 1]


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


def test_other_mappings_and_sequences_become_plain_ones() -> None:
    assert travel(OrderedDict(a=1)) == {"a": 1}
    assert travel(torch.Size([2, 3])) == (2, 3)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"batch\['a'\]\[1\]: a builtins.object cannot travel"),
        ({1, 2}, "batch: a builtins.set cannot travel"),
        (Colour.RED, "Colour cannot travel"),
        (Text("x"), "Text cannot travel"),
        (np.array([object()]), "arrays of dtype object cannot travel"),
        (np.zeros(2, [("a", "i4")]), "cannot travel"),
        (torch.eye(2).to_sparse(), "only dense CPU tensors can travel"),
        (torch.eye(2).to("meta"), "only dense CPU tensors can travel"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(value: object, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        describe(value)


def test_a_tree_that_is_too_deep_is_refused_on_both_sides() -> None:
    deep: Any = 1
    node: Any = ["v", 1]
    for _ in range(40):
        deep, node = [deep], ["l", [node]]
    with pytest.raises(PipelineError, match="nested deeper than 32"):
        describe(deep)
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
    ["s", "<f4", 10**6], ["s", "<f4"], ["s", "<f4", -64],
    ["d", [["v", 1]], []], ["d", [["l", []]], [["v", 1]]], ["d", 1, 2], ["d", [["v", []]], [["v", 1]]],
    ["l", 5], ["l", [5]], ["l"], ["u", None], ["u", [["t"]]],
    ["n", "m:c", ["a"], []], ["n", "m:c", ["a b"], [["v", 1]]], ["n", "m:c", ["class"], [["v", 1]]],
    ["n", 5, [], []], ["n", "os:system", ["a"], [["v", "true"]], 1], ["n", "m:1", ["a"], [["v", 1]]],
    ["n", "m:c", [["a"]], [["v", 1]]], ["n", "m:c", ["a", "a"], [["v", 1], ["v", 1]]],
]  # fmt: skip


@pytest.mark.parametrize("node", MALFORMED, ids=lambda node: repr(node)[:40])
def test_a_malformed_description_is_refused_and_allocates_nothing(node: Any) -> None:
    block = np.zeros(256, np.uint8)
    try:
        made = rebuild(node, block)
    except ProtocolError:
        return
    assert bytes_of(made) == 0, "only a value without a single byte may be made of this"


def test_a_namedtuple_node_calls_nothing_but_namedtuples() -> None:
    made = rebuild(["n", "os:system", ["a"], [["v", "exit 3"]]], np.empty(0, np.uint8))
    assert made._fields == ("a",)


def test_a_description_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.feed.tree.MAX_NODES", 100)
    with pytest.raises(ProtocolError, match="too long"):
        rebuild(["l", [["v", 1]] * 101], np.empty(0, np.uint8))


def test_mutated_descriptions_never_do_more_than_raise_protocol_error() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    node, _, size = describe({"a": [torch.ones(3), np.ones(2)], "b": (Point(1, "x"), np.float32(1), 2**70)})
    atoms = [None, -1, 0, 1, 2**62, 1.5, "t", "a", "l", "d", "n", "float32", "<f4", [], [1, 2], {}, b"x", True]

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
    assert rows_of([torch.tensor(1.0), "x", 3]) == 0


def test_a_small_tree_can_travel_in_a_message() -> None:
    value = [np.int64(3), (1, "x"), torch.tensor([1, 2])]
    node, leaves, size = describe(value)
    block = np.frombuffer(bytearray(packed(leaves, size)), np.uint8)
    assert flat(rebuild(node, block)) == flat(value)
    assert packed([], 0) == b""
