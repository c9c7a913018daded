"""Every kind of value, through everything that goes through a batch: it arrives as it was, or is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from feed_servers import Pair
from leaf_kinds import KINDS, Kinds, KindsInLanes, content, kinds, kinds_in_lanes, rows
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

from headrace.errors import PipelineError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch import pytree, row_layout
from headrace.feed.loader.device import PlainDevice, _mapped
from headrace.feed.pipelines.fetch import collate_as_torch, uneven_field

ROUNDS = 3


def described(value: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Returns a description as it comes out of a message, and its block."""
    node, leaves, size = pytree.describe(value)
    block = np.full(size, 0xAB, np.uint8)
    pytree.write_leaves(leaves, block)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(node)), block


def test_a_value_of_every_kind_goes_through_every_walk() -> None:
    for name, value in KINDS.items():
        expected = content(value)
        for tree in (value, [value], {"a": (value, torch.ones(1))}):
            node, block = described(tree)
            behind = np.concatenate([np.zeros(192, np.uint8), block])
            made, size = pytree.rebuild_measured(pytree.shifted(node, 192), behind)
            walked = [
                pytree.rebuild(node, block), pytree.rebuild(node, block, pytree.copied(block)), made,
                pytree.mapped(tree, lambda leaf: leaf), _mapped(tree, PlainDevice(torch.device("cpu")).start),
            ]  # fmt: skip
            assert [content(other) for other in walked] == [content(tree)] * len(walked), name
            assert size == pytree.bytes_of(tree) == pytree.bytes_of(made), name
            assert pytree.rows_of(made) == pytree.rows_of(tree), name
            places = [place for place, _ in pytree.fields_of(tree)]
            assert len(places) == len(set(places)), f"each has a place of its own: {name}"
        assert content(value) == expected, f"the value itself was changed: {name}"


def kinds_of(node: Any) -> set[str]:
    """Returns the kinds of all nodes of a description."""
    if node[0] in pytree.LEAVES | pytree.VALUES:
        return {node[0]}
    lists = 2 if node[0] in pytree._MAPPINGS else 1
    return {node[0]}.union(*(kinds_of(child) for part in node[-lists:] for child in part))


def test_every_kind_of_node_has_a_value_that_goes_through_every_walk() -> None:
    seen = set[str]().union(*(kinds_of(pytree.describe(value)[0]) for value in KINDS.values()))
    assert seen == pytree.LEAVES | pytree.VALUES | {
        kind for kind, container in pytree._CONTAINERS.items() if container.join
    }


@pytest.mark.filterwarnings("ignore")  # torch's own, once a process
@pytest.mark.parametrize("collate", [stack_arrays, collate_as_torch])
def test_rows_of_every_kind_that_are_written_one_by_one_are_the_batch(collate: Any) -> None:
    written = 0
    for name, value in KINDS.items():
        samples = [{"a": value, "b": [value, 1.5]}] * 3
        try:
            layout = row_layout.learn(samples[0], collate)
            expected = content(collate(samples))
        except (row_layout.Uneven, TypeError, RuntimeError):  # such a batch is collated as a whole
            continue
        layout = row_layout.decode_layout(msgspec.msgpack.encode(layout))
        block = np.zeros(layout.size(3), np.uint8)
        try:
            writer = row_layout.RowWriter(samples[0], layout, block, 3, 0)
            for sample in samples:
                writer.write(sample)
            writer.finish()
        except row_layout.Uneven:  # likewise
            continue
        written += 1
        assert content(pytree.rebuild(layout.describe(3), block)) == expected, name
    assert written > 40


@pytest.mark.filterwarnings("ignore")  # torch's own, once a process
@pytest.mark.parametrize("collate", [stack_arrays, default_collate])
def test_the_field_that_keeps_rows_from_being_stacked_is_told_beside_every_kind(collate: Any) -> None:
    stacked = 0
    for name, value in KINDS.items():
        try:
            collate([value, value])
        except (TypeError, RuntimeError, ValueError):
            continue
        stacked += 1
        assert uneven_field([{"a": value, "b": [value]}] * 2, collate) == "", name
        assert uneven_field([{"a": value, "b": 1}, {"a": value}], collate) == "batch['b'] is not in every sample", name
        pair = [{"a": value, "b": [np.ones(size), 1]} for size in (2, 3)]
        assert uneven_field(pair, collate) == "batch['b'][0] has the shapes (2,) and (3,)", name
    assert stacked > 40


@pytest.mark.parametrize("workers", [0, 1])
def test_values_that_are_listed_keep_their_list_also_where_each_has_one_row(workers: int) -> None:
    """`stack_arrays` lists tensors: a batch of one-row tensors is no tensor of their rows."""
    dataset = [{"a": torch.tensor([float(row)]), "n": row} for row in range(4)]
    [batch] = DataLoader(dataset, 4, num_workers=workers, collate_fn=stack_arrays)
    assert content(batch) == content(stack_arrays(dataset))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", ["f16", "c32"])
def test_the_gaps_of_long_doubles_are_not_sent(code: str, order: str) -> None:
    one, other = np.arange(6).astype(order + code), np.arange(6).astype(order + code)
    gaps = one.view(np.uint8).reshape(-1, 16)
    if np.finfo(np.longdouble).nmant == 63:  # other kinds have no gaps
        (gaps[:, 10:] if order == "<" else gaps[:, :6])[:] = 0xAB
    first, second = (pytree.packed(leaves, size) for _, leaves, size in map(pytree.describe, (one, other)))
    assert first == second


def check(batches: Any, rounds: int = ROUNDS) -> None:
    """Compares rows that came with those that were made."""
    came = [row for batch in batches for row in batch]
    assert [row["kind"] for row in came] == list(KINDS) * rounds
    for row in came:
        assert content(row["value"]) == content(KINDS[row["kind"]]), row["kind"]


@pytest.mark.parametrize(("workers", "size"), [(0, 16), (1, 1), (2, 16)])
def test_every_kind_arrives_from_local_workers(workers: int, size: int) -> None:
    check(DataLoader(Kinds(ROUNDS), size, num_workers=workers, collate_fn=list, pin_memory=False))


def test_every_kind_arrives_from_lanes() -> None:
    for size in (1, 16):
        check(DataLoader(KindsInLanes(ROUNDS), size, num_workers=1, num_shards=1, collate_fn=list))


def test_every_kind_arrives_from_a_feed_server(pair: Pair) -> None:
    where: dict[str, Any] = {"workers": pair.a.tcp, "secret_file": pair.secret, "collate_fn": rows}
    for size in (1, 16):
        check(DataLoader(kinds(rounds=ROUNDS), size, **where))
    check(DataLoader(kinds_in_lanes(rounds=ROUNDS), 16, num_shards=1, **where))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
def test_every_kind_arrives_with_pin_memory() -> None:
    check(DataLoader(Kinds(ROUNDS), 16, num_workers=1, collate_fn=list, pin_memory=True))


@pytest.mark.filterwarnings("ignore")  # torch's own, once a process
def test_what_torch_makes_of_a_batch_is_made_here_too() -> None:
    def made(loader: Any) -> Any:
        try:
            return content(next(iter(loader)))
        except Exception as error:  # noqa: BLE001 - whatever torch raises
            return type(error)

    for name in (name for name in KINDS if not name.startswith("value") and " " in name):
        pair = [{"a": KINDS[name], "b": [KINDS[name], 1]}] * 2
        assert made(DataLoader(pair, 2, num_workers=0)) == made(TorchLoader(pair, 2)), name


def masked(index: int) -> Any:
    return {"label": index, "t": [np.ma.array([20.5, -9999.0], mask=[False, True])]}


@pytest.mark.parametrize("lanes", [False, True])
def test_an_array_that_would_lose_its_mask_is_refused_with_its_place(lanes: bool) -> None:
    dataset = [masked(index) for index in range(4)]
    if lanes:
        loader = DataLoader(Streamed(dataset), 2, num_workers=1, num_shards=1, collate_fn=list)
    else:
        loader = DataLoader(dataset, 2, num_workers=1, collate_fn=list)
    with pytest.raises(
        PipelineError, match=r"batch\[0\]\['t'\]\[0\]: a numpy.ma.MaskedArray would arrive as an ordinary"
    ):
        next(iter(loader))
    assert next(iter(DataLoader(dataset, 2, num_workers=0, collate_fn=list)))[0]["t"][0].mean() == 20.5


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "array", [np.ma.array([1.0, 2.0], mask=[0, 1]), np.eye(2).view(np.matrix)], ids=["mask", "matrix"]
)
def test_stack_arrays_refuses_what_would_lose_its_meaning(array: Any, workers: int) -> None:
    with pytest.raises(TypeError, match=r"a numpy\.(ma\.MaskedArray|matrix) would be stacked as an ordinary array"):
        next(iter(DataLoader([{"t": (array, 1)}] * 2, 2, num_workers=workers, collate_fn=stack_arrays)))
