"""Batches whose rows are written one by one: equal to torch's, or left to torch."""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from feed_data import Point, flat
from torch.utils.data import default_collate

from headrace.errors import ProtocolError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch.pytree import rebuild
from headrace.feed.batch.row_layout import Layout, RowWriter, Table, Uneven, decode_layout, learn
from headrace.feed.pipelines.fetch import Built, RowBlock, SampleAddresses, make_rows

with tempfile.TemporaryFile() as file:
    MAPPED = np.memmap(file, np.float32, "w+", shape=(16, 40))
    MAPPED[:] = np.arange(640).reshape(16, 40)


def samples_of(i: int) -> dict[str, Any]:
    """Returns the i-th sample of every kind."""
    return {
        "scalar tensor": torch.tensor(i * 1.5),
        "matrix": torch.arange(6.0).reshape(2, 3) + i,
        "half": torch.full((3,), i, dtype=torch.float16),
        "bfloat16": torch.full((3,), i, dtype=torch.bfloat16),
        "uint8": torch.full((2, 2), i, dtype=torch.uint8),
        "bool tensor": torch.tensor([bool(i % 2), True]),
        "complex": torch.full((2,), complex(i, 1)),
        "no bytes": torch.empty(3, 0),
        "transposed": (torch.arange(6.0) + i).reshape(2, 3).t(),
        "requires grad": torch.ones(2, requires_grad=True) * i,
        "array": np.arange(6, dtype=np.float32).reshape(3, 2) * i,
        "array int16": np.full(3, i, np.int16),
        "array fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3) + i),
        "array, every second": (np.arange(12.0) * i)[::2],
        "array of no bytes": np.empty((3, 0), np.float32),
        "memory-mapped array": MAPPED[i],
        "0-d array": np.array(i * 2.0),
        "np.float32": np.float32(i),
        "np.int64": np.int64(i),
        "np.bool": np.bool_(i % 2),
        "int": i,
        "bool": bool(i % 2),
        "float": i / 3,
        "tuple": (torch.ones(2) * i, i),
        "list": [np.ones(2) * i, float(i)],
        "dict": {"x": torch.ones(1) * i, "y": {"z": i, 3: np.ones(2)}},
        "empty containers": {"x": torch.ones(1) * i, "boxes": [], "meta": {}, "pair": ()},
        "other keys": {None: torch.ones(1) * i, (1, "a"): i, 2**70: i, 0.5: [i]},
        "namedtuple": Point(torch.ones(2) * i, i),
        "deep": {"a": [(torch.ones(2), {"b": i}), [i, i / 2]], "c": Point(i, [np.float64(i)])},
        "big-endian array": np.full(3, i, ">f4"),
        "complex number": complex(i, 1),
        "arrays alone": {"x": (np.ones(2) * i, [i / 2]), 3: {"y": Point(np.int8(i), i)}},
    }


def by_rows(samples: list[Any], cuts: list[int], collate: Any = default_collate) -> Any:
    """Writes a batch in parts, each by a writer of its own, in reverse order."""
    layout = learn(samples[0], collate)
    block = np.full(layout.size(len(samples)), 0xAB, np.uint8)
    edges = [0, *cuts, len(samples)]
    for first, last in reversed(list(itertools.pairwise(edges))):
        writer = RowWriter(samples[first], decode_layout(msgspec.msgpack.encode(layout)), block, len(samples), first)
        for row in range(first, last):
            writer.write(samples[row])
        writer.finish()
    return rebuild(layout.describe(len(samples)), block)


@pytest.mark.parametrize(("collate", "kinds"), [(default_collate, 30), (stack_arrays, 17)])
@pytest.mark.parametrize(("rows", "cuts"), [(1, []), (7, [2, 3]), (16, [8])])
def test_rows_that_are_written_one_by_one_make_the_batch_that_collate_makes(
    collate: Any, kinds: int, rows: int, cuts: list[int]
) -> None:
    every = [samples_of(i) for i in range(rows)]
    written = 0
    for kind in every[0]:
        samples = [of_kind[kind] for of_kind in every]
        try:
            got = by_rows(samples, cuts, collate)
        except Uneven:  # such a batch is collated as a whole
            continue
        expected = collate(samples)
        assert flat(got) == flat(expected), kind
        written += 1
    assert written == kinds


@pytest.mark.parametrize("value", ["text", b"bytes", [], {}, {"a": "text"}, [1, "x"]])
def test_samples_that_torch_does_not_stack_throughout_are_left_to_torch(value: Any) -> None:
    with pytest.raises(Uneven):
        learn(value, default_collate)


@pytest.mark.parametrize("value", [None, object(), np.array(["x"]), {"a": None}])
def test_samples_that_torch_refuses_are_refused_in_torch_s_words(value: Any) -> None:
    with pytest.raises(TypeError) as expected:
        default_collate([value])
    with pytest.raises(Uneven):
        learn(value, default_collate)
    with pytest.raises(TypeError) as got:
        next(iter(DataLoader([value], num_workers=1)))
    assert str(expected.value) in str(got.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), np.ones(2, np.float32)),
        (1, 2.0),
        (1, True),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}),
        ([1, 2], [1, 2, 3]),
        ([1, 2], (1, 2)),
        (1, 2**70),
        (np.arange(3), np.arange(3)[::-1]),
    ],
)
def test_a_sample_unlike_the_first_is_uneven(first: Any, second: Any) -> None:
    layout = learn(first, default_collate)
    writer = RowWriter(first, layout, np.zeros(layout.size(2), np.uint8), 2, 0)
    writer.write(first)

    def write() -> None:
        writer.write(second)
        writer.finish()

    with pytest.raises(Uneven):
        write()


def test_rows_of_another_layout_than_the_batch_s_are_uneven() -> None:
    built = Built([torch.ones(3)], default_collate, True)
    block = np.zeros(64, np.uint8)
    with pytest.raises(Uneven):
        make_rows(
            built,
            SampleAddresses(0, 0, 0, [0], [0]),
            learn(torch.ones(2), default_collate),
            lambda _: RowBlock(block, 2, 0),
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x91" * 5000,
        b"\xa2\xff\xfe",
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode([["t", 0], []]),
        msgspec.msgpack.encode([["t", 0], [["float32", [-1], 4]]]),
        msgspec.msgpack.encode([["t", 0], [["float32", [1], -4]]]),
        msgspec.msgpack.encode([["t", "x"], [["float32", [1], 4]]]),
        msgspec.msgpack.encode([["l", [5]], [["float32", [1], 4]]]),
        msgspec.msgpack.encode([[], [["float32", [1], 4]]]),
        msgspec.msgpack.encode([["t", 0], [["float32", [], 0]] * 10_001]),
    ],
)
def test_a_layout_from_a_peer_that_is_not_sound_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_layout(data)


def test_a_layout_that_lies_about_its_sizes_cannot_reach_outside_the_block() -> None:
    lying = Layout(["t", 0], (Table("float32", (1000,), 4),))
    with pytest.raises(ProtocolError, match="outside its block"):
        rebuild(lying.describe(4), np.zeros(lying.size(4), np.uint8))


class Random:
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2) + index


def test_a_slice_without_samples_has_no_layout() -> None:
    with pytest.raises(Uneven):
        make_rows(
            Built(Random(), default_collate, True),
            SampleAddresses(0, 0, 0, [], []),
            None,
            lambda _: pytest.fail("there is no row"),
        )


class Planes:
    """Rows of 186,624 bytes, of a size and a type that `vary` may change."""

    def __init__(self, count: int, vary: Any = lambda index: (36, np.float32)) -> None:
        self.count, self.vary = count, vary

    def row(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        edge, dtype = self.vary(index)
        return np.full((edge, 36, 36), index, dtype), index


class Lane(Planes, torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from map(self.row, range(self.count))


class Fetched(Planes):
    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.row(index)

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self.row(key) for key in keys]


@pytest.mark.promise(
    "feed-guarantees", "large rows that a dataset makes at once are copied once, to where their batch lies"
)
@pytest.mark.parametrize("kind", [Lane, Fetched])
def test_large_rows_that_are_made_at_once_are_stacked_where_the_batch_lies(
    kind: type[Planes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are forked: with a stacking of their own that fails, batches come only without it."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("stacked first, and copied then")

    expected = [default_collate([kind(10).row(index) for index in range(at, min(10, at + 4))]) for at in (0, 4, 8)]
    monkeypatch.setattr("headrace.feed.worker.slices.collated", refuse)
    with DataLoader(kind(10), 4, num_workers=1, verify=0) as loader:
        batches = list(loader)
    assert [flat(batch) for batch in batches] == [flat(batch) for batch in expected]


def test_large_rows_that_do_not_stack_alike_are_left_to_torch() -> None:
    mixed = Lane(8, lambda index: (36, (np.float32, np.int8)[index % 2]))
    with DataLoader(mixed, 2, num_workers=1, verify=0) as loader:
        assert [flat(batch) for batch in loader] == [
            flat(default_collate([mixed.row(at), mixed.row(at + 1)])) for at in range(0, 8, 2)
        ]
    uneven = Lane(8, lambda index: (36 + index % 2, np.float32))
    with (
        DataLoader(uneven, 2, num_workers=1, verify=0) as loader,
        pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"),
    ):
        list(loader)
