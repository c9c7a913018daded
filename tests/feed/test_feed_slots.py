"""Lanes under a global batch: what it holds does not depend on the number of ranks, also on resume."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from effort import SOAK
from feed_data import flat
from feed_servers import Pair, local_executors
from lane_data import LENGTHS, Rows, UnevenRows, UnevenStatefulRows, stateful
from slot_reference import global_batches, of_rank

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader


def _rows_of(lengths: list[int]) -> list[list[int]]:
    return [[1000 * lane + number for number in range(length)] for lane, length in enumerate(lengths)]


def _ranks(world: int, dataset: Any, **options: Any) -> list[DataLoader]:
    shared = {"seed": 5, "uneven": True, "world_size": world} | options
    return [DataLoader(dataset, **shared, rank=rank) for rank in range(world)]


@pytest.mark.parametrize(("lanes", "batch"), [(4, 4), (4, 8), (12, 8), (8, 24), (6, 4), (12, 120)])
def test_global_batches_are_those_of_the_reference_for_every_number_of_ranks(lanes: int, batch: int) -> None:
    for drop_last in (False, True):
        expected = global_batches(_rows_of(LENGTHS[:lanes]), batch, drop_last=drop_last)
        if not drop_last:
            assert sorted(row for slots in expected for part in slots for row in part) == sorted(
                itertools.chain(*_rows_of(LENGTHS[:lanes]))
            )
        bits: dict[int, bytes] = {}
        for world in (1, 2, 4, 6, 12):
            if lanes % world or batch % world:
                continue
            for rank, loader in enumerate(
                _ranks(
                    world, UnevenRows(LENGTHS[:lanes]), global_batch_size=batch, num_shards=lanes, drop_last=drop_last
                )
            ):
                found = list(loader)
                own = of_rank(expected, rank, world)
                assert [made["row"].tolist() for made in found][: len(own)] == own, (world, rank, drop_last)
                assert len(found) == len(own) or drop_last  # there a rank ends with its own slots
                for made in found:
                    for row, noise in zip(made["row"].tolist(), made["noise"], strict=True):
                        assert bits.setdefault(row, flat(noise)) == flat(noise)


@pytest.mark.parametrize("kind", [UnevenRows, UnevenStatefulRows])
def test_it_goes_on_at_every_step_on_another_number_of_ranks(kind: type[UnevenRows]) -> None:
    options = {"global_batch_size": 8, "num_shards": 12}
    whole = {world: [[flat(made) for made in loader] for loader in _ranks(world, kind(LENGTHS), **options)]
             for world in (1, 2, 4)}  # fmt: skip
    saved: list[bool] = []
    for world in (1, 2, 4):
        loaders = _ranks(world, kind(LENGTHS), **options)
        passes = [iter(loader) for loader in loaders]
        for step in range(1, len(whole[1][0]) + 1):
            if any(len(made) < step for made in whole[world]):
                break  # a rank has ended: its epoch is over
            for batches in passes:
                next(batches)
            if not SOAK and step % 2 == 0:
                continue
            states = [json.loads(json.dumps(loader.state_dict(step))) for loader in loaders]
            merged = feed.merge_states(states) if world > 1 else states[0]
            saved.append(bool(merged["lanes"].get("tokens")))
            other = (1, 2, 4)[(step + world) % 3]
            for rank, resumed in enumerate(_ranks(other, kind(LENGTHS), **options)):
                resumed.load_state_dict(merged)
                assert [flat(made) for made in resumed] == whole[other][rank][step:], (world, step, other)
    assert any(saved) is (kind is UnevenStatefulRows), "with or without tokens"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_costs_nothing(workers: int) -> None:
    options: dict[str, Any] = {"global_batch_size": 12, "num_shards": 12, "seed": 5, "rank": 1, "world_size": 2}
    lengths = [6 * length for length in LENGTHS]  # so many that a worker has not made them all when it is killed
    expected = [flat(batch) for batch in DataLoader(UnevenStatefulRows(lengths), **options, uneven=True)]
    with DataLoader(UnevenStatefulRows(lengths), **options, uneven=True, num_workers=workers) as loader:
        found = []
        for step, batch in enumerate(loader):
            found.append(flat(batch))
            if step in (3, len(expected) // 2):
                os.kill(local_executors(loader)[0], signal.SIGKILL)
        assert found == expected
        assert loader.stats()["workers_lost"] >= 2


UNEVEN = [[8, 2, 40, 40], [16, 2, 8, 8], [24, 0, 17, 33]]


@pytest.mark.parametrize(
    ("lengths", "workers"),
    list(itertools.product(UNEVEN, [0, 1, 2])) if SOAK else list(zip(UNEVEN, [0, 1, 2], strict=True)),
)
def test_what_is_held_while_another_slot_is_waited_for_does_not_count_as_consumed(
    lengths: list[int], workers: int
) -> None:
    options: dict[str, Any] = {"global_batch_size": 8, "num_shards": len(lengths)}
    with DataLoader(UnevenRows(lengths), **options, num_workers=workers) as loader:
        found, states = [], []
        for batch in loader:
            found.append(batch["row"].tolist())
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert sorted(itertools.chain(*found)) == sorted(itertools.chain(*_rows_of(lengths)))
    for step, state in enumerate(states[:-1], 1):  # the last one is the beginning of the next epoch
        given = Counter(row // 1000 for row in itertools.chain(*found[:step]))
        assert Counter(dict(state["lanes"]["taken"])) == given, step
        assert all(given[lane] == lengths[lane] for lane in state["lanes"]["ended"]), step
        resumed = DataLoader(UnevenRows(lengths), **options)
        resumed.load_state_dict(state)
        assert [batch["row"].tolist() for batch in resumed] == found[step:], step


def test_hosts_make_the_same_global_batches(pair: Pair) -> None:
    options: dict[str, Any] = {"global_batch_size": 8, "num_shards": 8, "seed": 5, "uneven": True, "world_size": 2}
    for rank in range(2):
        expected = [flat(batch) for batch in DataLoader(stateful().build(), **options, rank=rank)]
        with DataLoader(stateful(), **options, rank=rank, workers=pair.both, secret_file=pair.secret) as loader:
            assert [flat(batch) for batch in loader] == expected
        assert len(expected) > 3


def test_whole_batches_are_made_ahead() -> None:
    options: dict[str, Any] = {"global_batch_size": 64, "num_shards": 8, "num_workers": 1, "prefetch_factor": 2}
    with DataLoader(UnevenRows([50] * 8), **options, seed=5) as loader:
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + 60
        while not batches._batches.queued():  # two draws on their way would never be a batch
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert loader.stats()["queue_depth"] >= 1
        del batches


def test_one_rank_s_state_goes_on_with_another_number_of_ranks_by_a_replay() -> None:
    options: dict[str, Any] = {"global_batch_size": 8, "num_shards": 12}
    two = _ranks(2, UnevenRows(LENGTHS), **options)
    passes = [iter(loader) for loader in two]
    for batches in passes:
        list(itertools.islice(batches, 5))
    whole = [flat(batch) for batch in DataLoader(UnevenRows(LENGTHS), **options, seed=5)]
    one = DataLoader(UnevenRows(LENGTHS), **options, seed=5)
    one.load_state_dict(two[1].state_dict())
    with pytest.warns(UserWarning, match="makes and passes over 5 batches again"):
        assert [flat(batch) for batch in one] == whole[5:]
    other = DataLoader(UnevenRows(LENGTHS), **options | {"global_batch_size": 12}, seed=5)
    other.load_state_dict(two[1].state_dict())
    with pytest.raises(PositionError, match=r"merge_states"):
        next(iter(other))


def test_another_global_batch_goes_on_behind_what_was_consumed() -> None:
    loader = DataLoader(UnevenRows(LENGTHS), global_batch_size=8, num_shards=12, seed=5)
    begun = list(itertools.islice(iter(loader), 5))
    other = DataLoader(UnevenRows(LENGTHS), global_batch_size=24, num_shards=12, seed=5)
    other.load_state_dict(loader.state_dict(5))
    rows = [row for batch in [*begun, *other] for row in batch["row"].tolist()]
    assert sorted(rows) == sorted(itertools.chain(*_rows_of(LENGTHS)))


def test_equal_steps_and_an_exception_of_one_lane() -> None:
    options: dict[str, Any] = {"global_batch_size": 8, "num_shards": 4}
    with DataLoader(UnevenRows([24] * 4), **options, steps_per_epoch=12) as loader:
        assert [len(batch["row"]) for batch in loader] == [8] * 12
    with pytest.raises(
        PipelineError, match=r"this rank has 12 batches, and steps_per_epoch is 13(.|\n)*the slot with the"
    ):
        list(DataLoader(UnevenRows([24] * 4), **options, steps_per_epoch=13))
    with pytest.raises(ValueError, match="num_shards=3 must be a multiple of the 2 ranks"):
        DataLoader(Rows(9), global_batch_size=6, num_shards=3, rank=0, world_size=2, uneven=True)
    for workers in (0, 2):
        rows: list[int] = []
        with DataLoader(Failing([24] * 4), **options, num_workers=workers, seed=5) as loader:
            batches = iter(loader)
            told = 0
            while True:
                try:
                    rows += next(batches)["row"].tolist()
                except StopIteration:
                    break
                except ValueError:
                    told += 1
        assert told == 1
        lane_2 = [row - 2000 for row in rows if row // 1000 == 2]
        assert lane_2 == list(range(len(lane_2)))
        assert 0 < len(lane_2) <= 10
        assert sorted(row for row in rows if row // 1000 != 2) == [
            1000 * lane + n for lane in (0, 1, 3) for n in range(24)
        ]


class Failing(UnevenRows):
    def __iter__(self) -> Iterator[Any]:
        for made in super().__iter__():
            if made["row"] == 2010:
                raise ValueError("row 10 of lane 2")
            yield made
