"""Who holds what: the union of shards, where a sample lies, and what nobody holds any more."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.feed import DataLoader
from headrace.feed.plan import shard_map
from headrace.feed.plan.shard_map import RowRange, ShardMap, declared, in_key_order


def made(*held: list[tuple[str, int]]) -> ShardMap:
    found = ShardMap()
    for worker, announced in enumerate(held, 1):
        found.add(worker, f"host-{worker}", announced)
    found.fix()
    return found


def test_the_global_order_is_that_of_the_sorted_keys_however_they_are_spread() -> None:
    spread = [
        made([("b", 3), ("a", 2)], [("c", 4)]),
        made([("c", 4)], [("a", 2)], [("b", 3)]),
        made([("a", 2), ("c", 4), ("b", 3)]),
    ]
    assert {one.length for one in spread} == {9}
    assert len({one.fingerprint() for one in spread}) == 1
    first = spread[0]
    assert first.local(1, [0, 1]) == [3, 4]  # a stands behind b there
    assert first.local(1, [2, 3, 4]) == [0, 1, 2]
    assert first.local(2, [5, 8]) == [0, 3]
    assert first.fingerprint() != made([("a", 2), ("b", 3), ("c", 5)]).fingerprint()


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_every_run_is_held_by_its_workers_and_by_no_other_and_local_indices_lead_to_the_same_sample(
    data: st.DataObject,
) -> None:
    sizes = data.draw(st.dictionaries(st.text("abcxyz/", min_size=1, max_size=3), st.integers(0, 5), min_size=1))
    hosts = data.draw(st.integers(1, 4))
    held: list[list[tuple[str, int]]] = [[] for _ in range(hosts)]
    for key, samples in sizes.items():
        for host in data.draw(st.sets(st.integers(0, hosts - 1), min_size=1)):
            held[host].append((key, samples))
    held = [data.draw(st.permutations(each)) for each in held]
    union = made(*held)
    content = {w: [(key, at) for key, samples in each for at in range(samples)] for w, each in enumerate(held, 1)}
    whole = [(key, at) for key in sorted(sizes) for at in range(sizes[key])]
    assert union.length == len(whole)
    indices = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)) if whole else []
    end = 0
    for run in union.row_ranges(indices):
        assert run.first == end
        end = run.last
        wanted = [whole[index] for index in indices[run.first : run.last]]
        assert run.holders == {w for w, has in content.items() if set(wanted) <= set(has)}
        assert run.holders == union.holders(indices[run.first : run.last])
        for worker in run.holders:
            local = union.local(worker, indices[run.first : run.last])
            assert [content[worker][at] for at in local] == wanted
    assert end == len(indices)


def test_neighbouring_runs_have_different_holders() -> None:
    union = made([("a", 3), ("b", 3)], [("b", 3), ("c", 3)])
    assert union.row_ranges([0, 1, 4, 5, 8, 0]) == [
        RowRange(0, 2, frozenset({1})),
        RowRange(2, 4, frozenset({1, 2})),
        RowRange(4, 5, frozenset({2})),
        RowRange(5, 6, frozenset({1})),
    ]
    assert union.row_ranges(np.array([3, 4, 5])) == [RowRange(0, 3, frozenset({1, 2}))]
    assert union.row_ranges([]) == [RowRange(0, 0, frozenset({1, 2}))]


def test_when_everybody_holds_everything_in_order_nothing_is_to_be_translated() -> None:
    assert made([("a", 3), ("b", 3)], [("a", 3), ("b", 3)]).uniform
    assert not made([("b", 3), ("a", 3)], [("a", 3), ("b", 3)]).uniform
    assert not made([("a", 3)], [("a", 3), ("b", 3)]).uniform


def test_replicas_of_different_sizes_are_refused_with_key_hosts_and_sizes() -> None:
    with pytest.raises(PipelineError, match=r"shard 'a' has 4 samples on host-2 and 3 on host-1"):
        made([("a", 3)], [("a", 4)])


def test_what_only_a_lost_host_held_is_named_and_comes_back_with_it() -> None:
    union = made([("a", 3), ("b", 3)], [("b", 3), ("c", 4), ("d", 5)])
    assert union.lost() == []
    union.remove(2)
    assert union.lost() == ["c", "d"]
    assert union.describe_lost() == "9 samples of 'c', 'd' were only on host-2"
    assert union.row_ranges([3, 6]) == [RowRange(0, 1, frozenset({1})), RowRange(1, 2, frozenset())]
    union.add(7, "host-2", [("d", 5), ("c", 4)])
    assert union.lost() == []
    assert union.local(7, [6, 10]) == [5, 0]
    union.remove(1)
    union.remove(7)
    assert union.lost() == ["a", "b", "c", "d"]
    many = made([(f"k{n:02}", 1) for n in range(20)], [("z", 1)])
    many.remove(1)
    assert many.describe_lost() == "20 samples of 'k00', 'k01', 'k02', ... 'k19' (20 keys) were only on host-1"


def test_a_shard_that_appears_after_the_union_was_made_is_not_in_it() -> None:
    union = made([("a", 3)])
    union.add(2, "host-2", [("new", 5), ("a", 3)])
    assert union.length == 3
    assert union.unknown == ["new"]
    assert union.local(2, [0, 1, 2]) == [5, 6, 7]


@pytest.mark.parametrize("indices", [[9], [-1], ["a"], [1.5], [[1, 2]]])
def test_only_indices_of_the_union_are_taken(indices: list[Any]) -> None:
    union = made([("a", 9)])
    if indices == [[1, 2]]:
        indices = [(1, "x")]
    with pytest.raises(PipelineError, match=r"indexed with 0\.\.8"):
        union.row_ranges(indices)


class Declares:
    def __init__(self, answer: Any, length: int = 5) -> None:
        self.answer, self.length = answer, length

    def __len__(self) -> int:
        return self.length

    def __shards__(self) -> Any:
        return self.answer


def test_a_dataset_declares_its_shards_or_none() -> None:
    assert declared(Declares([("b", 2), ("a", 3)])) == [("b", 2), ("a", 3)]
    assert declared([1, 2, 3]) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "did not return its shards"),
        ([("a",)], "did not return its shards"),
        ([(1, 5)], "did not return its shards"),
        ([("a", 5.0)], "did not return its shards"),
        ([], "returned no shard"),
        ([("a", 2), ("a", 3)], "names 'a' twice"),
        ([("a", 6), ("b", -1)], "gives 'b' -1 samples"),
        ([("a", 4)], r"counts 4 samples, len\(\) of the dataset 5"),
        ([("a" * 1025, 5)], "the longest 1025; allowed are"),
        ([(str(n), 0) for n in range(shard_map.MAX_SHARDS + 1)], f"{shard_map.MAX_SHARDS + 1} shards"),
    ],
)
def test_a_declaration_that_is_not_sound_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        declared(Declares(answer))


class Files:
    """Samples of the files of a folder, in an order of its own."""

    def __init__(self, files: dict[str, int]) -> None:
        self.files = files

    def __len__(self) -> int:
        return sum(self.files.values())

    def __shards__(self) -> list[tuple[str, int]]:
        return list(self.files.items())

    def __getitem__(self, index: int) -> str:
        return [f"{key}{at}" for key, samples in self.files.items() for at in range(samples)][index]


class ManyFiles(Files):
    def __getitems__(self, indices: list[int]) -> list[str]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Files, ManyFiles])
def test_a_dataset_is_put_into_the_order_of_its_keys_and_stays_itself(kind: type[Files]) -> None:
    sorted_already = kind({"a": 2, "b": 1})
    assert in_key_order(sorted_already) == (sorted_already, [("a", 2), ("b", 1)])
    assert in_key_order("text") == ("text", [])
    found, held = in_key_order(kind({"b": 1, "c": 2, "a": 2}))
    for same in (found, pickle.loads(pickle.dumps(found))):
        assert [same[index] for index in range(5)] == ["a0", "a1", "b0", "c0", "c1"]
        assert len(same) == 5
        assert same.files == {"b": 1, "c": 2, "a": 2}
        assert hasattr(same, "__getitems__") is (kind is ManyFiles)
    assert held == [("a", 2), ("b", 1), ("c", 2)]
    if kind is ManyFiles:
        assert found.__getitems__([4, 0]) == ["c1", "a0"]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_order_does_not_depend_on_that_of_the_files(workers: int) -> None:
    for options in ({"seed": 5, "shuffle": True}, {}, {"sampler": [4, 0, 2]}):
        found = [
            [sample for batch in DataLoader(Files(files), 2, num_workers=workers, **options) for sample in batch]
            for files in ({"a": 2, "b": 3, "c": 1}, {"c": 1, "a": 2, "b": 3})
        ]
        assert found[0] == found[1]
