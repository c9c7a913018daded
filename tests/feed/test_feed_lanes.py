"""Datasets without a count: lanes decide what comes, the workers do not; torch is the oracle."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import re
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from effort import SOAK
from feed_data import flat
from feed_servers import Pair, Server, local_executors
from lane_data import ByRank, Rows, StatefulRows, Stopping, by_rank, function, rows, stateful, stream
from source_data import fill_tars
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, get_worker_info

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader
from headrace.feed.pipelines.seeds import PreservedGenerators, set_generators, stream_key
from headrace.feed.plan.lane_pass import LaneCursor, LaneDraw, Lanes
from headrace.feed.plan.state_dict import LaneToken
from headrace.feed.worker import lane_reader

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_shards": 3, "seed": 5}
Made = Callable[[], Any]


@pytest.fixture
def tars_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fill_tars(tmp_path / "data", {"a": 40, "b": 33})
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
    return folder


KINDS: dict[str, Made] = {
    "iterable": lambda: Rows(101),
    "stateful": lambda: StatefulRows(101),
    "function": lambda: function,
    "stream": stream,
    "pipeline": rows,
}


def _all(dataset: Any, **options: Any) -> list[bytes]:
    with DataLoader(dataset, **OPTIONS | options) as loader:
        return [flat(batch) for batch in loader]


@pytest.mark.promise(
    "feed-lanes", "batches of an `IterableDataset` are torch's with as many workers as there are lanes"
)
def test_batches_are_those_of_torch_with_as_many_workers_as_there_are_lanes() -> None:
    with pytest.warns(UserWarning, match="worker processes"):
        expected = [batch["row"].tolist() for batch in TorchLoader(Rows(101), batch_size=4, num_workers=3)]
    with DataLoader(Rows(101), batch_size=4, num_workers=3) as loader:  # as many lanes by default
        assert [batch["row"].tolist() for batch in loader] == expected


@pytest.mark.promise(
    "feed-lanes", "data without a count: the same batches under any number of workers, and on other hosts"
)
@pytest.mark.usefixtures("tars_of_two")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_under_any_number_of_workers(kind: str) -> None:
    shuffle: dict[str, Any] = {"shuffle": feed.Window(4, 3)} if kind == "stream" else {}
    with DataLoader(KINDS[kind](), **OPTIONS, **shuffle) as loader:
        expected = [[flat(batch) for batch in loader] for _ in range(2)]
    assert expected[0] != expected[1]  # the random numbers follow from the epoch
    assert len(expected[0]) >= 10
    for workers in (1, 4) if SOAK else (2,):
        with DataLoader(KINDS[kind](), **OPTIONS, **shuffle, num_workers=workers, verify=1) as loader:
            assert [[flat(batch) for batch in loader] for _ in range(2)] == expected
            assert loader.stats()["purity_failures"] == 0
            assert workers == 1 or loader.stats()["slices_verified"] > 0


@pytest.mark.promise(
    "feed-lanes", "data without a count: resume is exact at every step; the dataset's states only save time"
)
@pytest.mark.usefixtures("tars_of_two")
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_at_every_step_and_tokens_only_save_time(kind: str) -> None:
    options = {"shuffle": True} if kind == "stream" else {}
    whole = _all(KINDS[kind](), **options)
    loader = DataLoader(KINDS[kind](), **OPTIONS, **options)
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        assert bool(state["lanes"].get("tokens")) is (kind in ("stateful", "stream"))
        for tokens in (True, False) if SOAK else (step % 2 == 1,):
            if not tokens:
                state["lanes"] |= {"tokens": [], "ended": []}
            resumed = DataLoader(KINDS[kind](), **OPTIONS, **options)
            resumed.load_state_dict(state)
            assert [flat(batch) for batch in resumed] == whole[step:], (step, tokens)
    assert loader.state_dict(5)["lanes"]["taken"]
    resumed = DataLoader(KINDS[kind](), **OPTIONS, **options)
    resumed.load_state_dict(loader.state_dict(5))
    assert [flat(batch) for batch in resumed] == whole[5:]


class StatefulAndOdd(StatefulRows):
    """Its length is nobody's business, as that of many an IterableDataset; `state` tells whether it has one."""

    state = True

    def __len__(self) -> int:
        raise TypeError("it has none")

    def state_dict(self) -> Any:
        return super().state_dict() if self.state else None


@pytest.mark.parametrize("state", [True, False])
def test_a_state_is_what_the_dataset_gives_whatever_it_says_of_its_length_and_none_is_none(state: bool) -> None:
    def made() -> StatefulAndOdd:
        dataset = StatefulAndOdd(101)
        dataset.state = state
        return dataset

    whole = _all(made())
    loader = DataLoader(made(), **OPTIONS)
    list(itertools.islice(loader, 7))
    assert bool(loader.state_dict()["lanes"].get("tokens")) is state
    resumed = DataLoader(made(), **OPTIONS)
    resumed.load_state_dict(loader.state_dict())
    assert [flat(batch) for batch in resumed] == whole[7:]


def test_a_draw_takes_the_nearest_token_that_is_not_behind_it() -> None:
    cursor = LaneCursor(2, 0, tokens=[LaneToken(4, b"four"), LaneToken(8, b"eight"), LaneToken(12, b"twelve")])
    taken = {first: LaneDraw(cursor, Lanes(3), first, 4).request() for first in (0, 4, 11, 12, 99)}
    assert {first: draw.token for first, draw in taken.items()} == {
        0: b"", 4: b"four", 11: b"eight", 12: b"twelve", 99: b"twelve",
    }  # fmt: skip
    assert all(draw.at <= first for first, draw in taken.items())


def test_a_token_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _all(stateful())
    loader = DataLoader(stateful(), **OPTIONS)
    list(itertools.islice(loader, 15))
    opened = iter(loader)
    list(itertools.islice(opened, 15))
    state = loader.state_dict()
    made = 0
    one = lane_reader._Reader.next

    def counted(reader: Any, *given: Any) -> None:
        nonlocal made
        made += 1
        one(reader, *given)

    monkeypatch.setattr(lane_reader._Reader, "next", counted)
    resumed = DataLoader(stateful(), **OPTIONS)
    resumed.load_state_dict(state)
    assert state["epoch"] == 1
    assert len(list(resumed)) == len(whole) - 15
    assert made <= 101 - 15 * 4 + 3 + 3  # the rest, and the ends of three lanes


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"global_batch_size": 6}], ids=["of a lane", "of slots"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_gone_when_the_user_lets_go_of_it_without_the_garbage_collector(
    options: dict[str, Any], workers: int
) -> None:
    alive: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        with DataLoader(Rows(101), num_shards=3, seed=5, num_workers=workers, collate_fn=list, **options) as loader:
            for batch in loader:
                alive += [weakref.ref(output["noise"]) for output in batch]
                del batch
            assert len(alive) == 101
            assert sum(output() is not None for output in alive) == 0
    finally:
        gc.enable()


@pytest.mark.promise(
    "feed-lanes", "data without a count: a worker that is killed in the middle of a lane costs nothing"
)
def test_a_worker_that_is_killed_in_a_lane_costs_nothing(tmp_path: Path) -> None:
    expected = _all(Rows(101))
    (tmp_path / "killer").touch()
    with DataLoader(Rows(101, str(tmp_path / "killer")), **OPTIONS, num_workers=2) as loader:
        assert [flat(batch) for batch in loader] == expected
        assert loader.stats()["workers_lost"] == 1
    with DataLoader(StatefulRows(101), **OPTIONS, num_workers=2, persistent_workers=True) as loader:
        expected = _all(StatefulRows(101))
        found = []
        for step, batch in enumerate(loader):
            found.append(flat(batch))
            if step % 8 == 5:
                os.kill(local_executors(loader)[0], signal.SIGKILL)
        assert found == expected


def test_a_long_replay_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _all(Rows(101))
    loader = DataLoader(Rows(101), **OPTIONS)
    batches = iter(loader)
    list(itertools.islice(batches, 20))
    monkeypatch.setattr(lane_reader, "REPLAY_SECONDS", 0.0)  # each answer replays one row
    for workers in (0, 2):
        with DataLoader(Rows(101), **OPTIONS, num_workers=workers) as resumed:
            resumed.load_state_dict(loader.state_dict())
            assert [flat(batch) for batch in resumed] == whole[20:]


@pytest.mark.promise("feed-lanes", "a dataset's `state_dict()` that is wrong is noticed")
def test_a_wrong_state_dict_is_noticed() -> None:
    with (
        pytest.warns(feed.PurityWarning, match="two workers made different data"),
        DataLoader(StatefulRows(101, wrong=True), **OPTIONS, num_workers=2, verify=1) as loader,
    ):
        list(loader)


class Forgetful(StatefulRows):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise IndexError(f"state {state['at']}")


def test_a_state_that_cannot_be_loaded_costs_a_replay_and_is_told() -> None:
    whole = _all(Forgetful(101))
    loader = DataLoader(Forgetful(101), **OPTIONS)
    batches = iter(loader)
    list(itertools.islice(batches, 9))
    for workers in (0, 1):
        resumed = DataLoader(Forgetful(101), **OPTIONS, num_workers=workers)
        resumed.load_state_dict(loader.state_dict())
        with pytest.warns(UserWarning, match=r"cannot go on from its own state(.|\n)*IndexError: state 12"), resumed:
            found = [flat(batch) for batch in resumed]
        assert found == whole[9:]


@pytest.mark.promise(
    "feed-lanes", "data without a count: the same batches under any number of workers, and on other hosts"
)
def test_other_hosts_make_the_same_batches_and_an_executor_may_be_killed(
    own_server: Callable[..., Server], tars_of_two: Path
) -> None:
    del tars_of_two
    server = own_server("host")
    where = {"workers": server.tcp, "secret_file": str(server.secret), "verify": 1}
    for named in (rows, stateful, stream):
        expected = _all(named())
        with DataLoader(named(), **OPTIONS, **where) as loader:
            found = []
            for step, batch in enumerate(loader):
                found.append(flat(batch))
                if step == 6 and named is stateful:
                    server.executors()[0].kill()
            assert found == expected
    with (
        DataLoader(rows(), batch_size=4, workers=server.tcp, secret_file=where["secret_file"]) as loader,
        pytest.raises(PipelineError, match=r"no rows by number(.|\n)*num_shards="),
    ):
        next(iter(loader))


# Ranks


@pytest.mark.promise(
    "feed-lanes-ranks", "ranks that share lanes have equal steps if told, and an error instead of a hang if not"
)
def test_ranks_share_the_lanes_and_have_equal_steps_if_told() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_shards": 4, "seed": 5, "world_size": 2}
    with pytest.raises(PipelineError, match=r"cannot know how many batches(.|\n)*steps_per_epoch="):
        next(iter(DataLoader(Rows(101), **options, rank=0)))
    uneven = [list(DataLoader(Rows(101), **options, rank=rank, uneven=True)) for rank in range(2)]
    assert sorted(row for batch in itertools.chain(*uneven) for row in batch["row"].tolist()) == list(range(101))
    assert {row % 4 for batch in uneven[1] for row in batch["row"].tolist()} == {1, 3}
    even = [DataLoader(Rows(101), **options, rank=rank, steps_per_epoch=10) for rank in range(2)]
    assert [len(list(loader)) for loader in even for _ in range(2)] == [10] * 4
    assert len(even[0]) == 10
    assert [batch["row"].tolist() for batch in even[1]] == [batch["row"].tolist() for batch in uneven[1][:10]]
    with pytest.raises(PipelineError, match="this rank has 14 batches, and steps_per_epoch is 15"):
        list(DataLoader(Rows(101), **options, rank=0, steps_per_epoch=15))
    with pytest.raises(ValueError, match="num_shards=3 must be a multiple of the 2 ranks"):
        DataLoader(Rows(101), **options | {"num_shards": 3}, rank=0, steps_per_epoch=1)


def test_states_of_all_ranks_go_on_with_another_number_of_ranks_and_one_rank_s_is_replayed() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_shards": 4, "seed": 5, "uneven": True}
    two = [DataLoader(Rows(101), **options, rank=rank, world_size=2) for rank in range(2)]
    passes = [iter(loader) for loader in two]
    begun = [next(batches) for _ in range(5) for batches in passes]
    states = [loader.state_dict() for loader in two]
    merged = json.loads(json.dumps(feed.merge_states(states)))
    for world in (1, 2, 4):
        rest = []
        for rank in range(world):
            loader = DataLoader(Rows(101), **options, rank=rank, world_size=world)
            loader.load_state_dict(merged)
            rest += list(loader)
        assert sorted(row for batch in begun + rest for row in batch["row"].tolist()) == list(range(101))
    expected = [flat(batch) for batch in passes[1]]
    loader = DataLoader(Rows(101), **options, rank=1, world_size=2)
    loader.load_state_dict(states[0])
    with pytest.warns(UserWarning, match="makes and passes over 5 batches again"):
        found = [flat(batch) for batch in loader]
    assert found == expected
    loader = DataLoader(Rows(101), **options, rank=0, world_size=1)
    loader.load_state_dict(states[0])
    with pytest.raises(PositionError, match=r"merge_states"):
        next(iter(loader))
    with pytest.raises(PositionError, match="no state knows lane 1"):
        feed.merge_states(states[:1])
    other = DataLoader(Rows(101), **options | {"num_shards": 8}, rank=0, world_size=2)
    told = r"num_shards=4, the loader has num_shards=8(.|\n)*give the loader num_shards=4(.|\n)*begin an epoch"
    with pytest.raises(PositionError, match=told):
        other.load_state_dict(states[0])
    fewer = DataLoader(Rows(101), 4, num_workers=2, seed=5)  # as many lanes as workers
    with pytest.raises(PositionError, match=r"num_shards=4, the loader has num_shards=2(.|\n)*num_workers times"):
        fewer.load_state_dict(states[0])
    other.load_state_dict({})
    other.set_epoch(1)
    assert next(iter(other)) is not None, "what the hint says"


@pytest.mark.promise(
    "feed-lanes-ranks", "where ranks share the lanes, workers show a dataset one rank: none divides itself twice"
)
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_show_one_rank_where_ranks_share_the_lanes(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        found = []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            options: dict[str, Any] = {"num_shards": 4, "num_workers": workers, "rank": rank, "world_size": 2}
            with DataLoader(ByRank(), 3, **options, uneven=True) as loader:
                found += [row for batch in loader for row in batch.tolist()]
            with DataLoader(ByRank(), 3, num_workers=workers) as loader:  # shares nothing: it may divide as it likes
                assert sorted(row for batch in loader for row in batch.tolist()) == list(range(rank, 40, 2))
        assert sorted(found) == list(range(40))
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


def test_without_workers_the_variables_show_one_rank_while_a_batch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        for batch in DataLoader(ByRank(), 3, num_shards=4, rank=rank, world_size=2, uneven=True):
            found += batch.tolist()
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), "2")
        alone = DataLoader(ByRank(), 3)
        assert sorted(row for batch in alone for row in batch.tolist()) == list(range(rank, 40, 2))
    assert sorted(found) == list(range(40))


@pytest.mark.promise(
    "feed-lanes-ranks", "where ranks share the lanes, workers show a dataset one rank: none divides itself twice"
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_feed_servers_read_a_dataset_that_asks_for_its_rank(ranks: int, pair: Pair) -> None:
    options: dict[str, Any] = {"workers": pair.both, "secret_file": pair.secret, "num_shards": 4, "uneven": True}
    found = []
    for rank in range(ranks):
        with DataLoader(by_rank(), 3, **options, rank=rank, world_size=ranks) as loader:
            found += [row for batch in loader for row in batch.tolist()]
    assert sorted(found) == list(range(40))


@pytest.mark.promise(
    "feed-lanes-ranks", "where ranks share the lanes, workers show a dataset one rank: none divides itself twice"
)
def test_a_dataset_of_a_library_that_divides_itself_among_ranks_is_refused_where_ranks_share_the_lanes() -> None:
    inner = type("WebDataset", (Rows,), {"__module__": "webdataset.compat"})(8)
    for dataset in (inner, Around(inner)):
        assert list(DataLoader(dataset, 2, num_shards=2))  # alone it has nothing to divide
        loader = DataLoader(dataset, 2, rank=0, world_size=2, num_shards=2, steps_per_epoch=1)
        with pytest.raises(PipelineError, match=r"a WebDataset of webdataset divides its shards among ranks by itself"):
            next(iter(loader))


class Around(IterableDataset[int]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


# What is told


class Raises(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for at in range(8):
            if info.id == 1 and at == 5:
                raise KeyError("row 5 of lane 1")
            yield 10 * info.id + at


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_is_told_once_and_the_other_lanes_go_on(workers: int) -> None:
    with DataLoader(Raises(), batch_size=2, num_shards=3, num_workers=workers, verify=0) as loader:
        batches = iter(loader)
        found: list[Any] = []
        errors: list[str] = []
        while True:
            try:
                found.append(next(batches).tolist())
            except StopIteration:
                break
            except KeyError as error:
                errors.append(str(error.args[0]))
        assert len(errors) == 1
        assert "row 5 of lane 1" in errors[0]
        assert [batch for batch in found if batch[0] // 10 == 1] == [[10, 11], [12, 13]]
        assert len(found) == 10


class Blind(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_lanes_that_nobody_asks_for_are_told() -> None:
    for workers in (0, 1):
        with (
            pytest.warns(UserWarning, match=r"did not ask get_worker_info\(\) which of the 2 lanes"),
            DataLoader(Blind(), batch_size=6, num_shards=2, num_workers=workers) as loader,
        ):
            assert len(list(loader)) == 2
    assert len(list(DataLoader(Blind(), batch_size=6, num_shards=1))) == 1


class Range(IterableDataset[int]):
    """As in torch's documentation: `worker_init_fn` gives each worker's copy its part."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last))


def init(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    whole: Any = info.dataset
    step = (whole.last - whole.first) // info.num_workers
    whole.first += worker * step
    whole.last = whole.first + step


@pytest.mark.parametrize("workers", [0, 2])
def test_worker_init_fn_sees_a_lane_s_own_copy(workers: int) -> None:
    dataset = Range(3, 15)
    with DataLoader(dataset, batch_size=2, num_shards=3, num_workers=workers, worker_init_fn=init) as loader:
        found = [batch.tolist() for batch in loader]
    assert found == [[3, 4], [7, 8], [11, 12], [5, 6], [9, 10], [13, 14]]
    assert (dataset.first, dataset.last) == (3, 15)


class Unplain(StatefulRows):
    def state_dict(self) -> dict[str, Any]:
        return {"where": {"file": object()}}


class Uncopied(Rows):
    def __init__(self) -> None:
        super().__init__(8)
        self.source = iter(function())


def test_what_cannot_be_is_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineError, match=r"read once(.|\n)*DataLoader\(rows\), not DataLoader\(rows\(\)\)"):
        DataLoader(function())
    with pytest.raises(ValueError, match="expected unspecified shuffle option, but got shuffle=True"):
        DataLoader(Rows(8), shuffle=True)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        DataLoader(Rows(8), sampler=[1])
    with pytest.raises(ValueError, match="num_shards= is for datasets without a count"):
        DataLoader([1, 2], num_shards=2)
    with pytest.raises(ValueError, match="num_shards must be an integer of at least 1, got 0"):
        DataLoader(Rows(8), num_shards=0)
    with pytest.raises(ValueError, match=r'on_error="skip" leaves out rows that \.map'):
        DataLoader(Rows(8), on_error="skip")
    with pytest.raises(PipelineError, match=r"made a Rows, which has no count(.|\n)*num_shards="):
        next(iter(DataLoader(rows())))
    with pytest.raises(PipelineError, match="has rows by number"):
        next(iter(DataLoader(lane_data_tensors(), num_shards=2)))
    with pytest.raises(TypeError, match=r"object of type 'Rows' has no len\(\)"):
        len(DataLoader(Rows(8)))
    for workers in (0, 1):
        with (
            DataLoader(Unplain(8), num_workers=workers) as loader,
            pytest.raises(PipelineError, match=r"state_dict\(\).*\['where'\]\['file'\]: a builtins.object"),
        ):
            next(iter(loader))
    with pytest.raises(PipelineError, match=r"cannot be copied(.|\n)*in __iter__"):
        next(iter(DataLoader(Uncopied())))


@feed.pipeline
def lane_data_tensors() -> Any:
    return [1, 2, 3]


def test_a_stream_is_what_python_s_own_filter_makes(tars_of_two: Path) -> None:
    source = feed.tar(tars_of_two)
    kept = source.filter(_kept).flat_map(_twice).map(str)
    assert list(kept) == [str(row) for row in source if _kept(row) for _ in range(2)]
    with pytest.raises(TypeError, match=r"\.filter\(\) takes a function of one row, got 3"):
        source.filter(3)  # type: ignore[arg-type]
    one = [row for batch in DataLoader(kept, batch_size=8, num_shards=1) for row in batch]
    assert one == list(kept)
    shuffled = [row for batch in DataLoader(kept, batch_size=8, num_shards=4, shuffle=True, seed=1) for row in batch]
    assert shuffled != one
    assert sorted(shuffled) == sorted(one)


def _kept(row: Any) -> bool:
    return int(row["cls"]) % 3 == 0


def _twice(row: Any) -> Iterator[Any]:
    yield row
    yield row


def _with_noise(row: int) -> tuple[int, float]:
    return row, random.random()


def _even(row: tuple[int, float]) -> bool:
    return row[0] % 2 == 0


def test_a_row_that_gives_nothing_may_draw_random_numbers_before_one_that_gives_several(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(str, range(60))) + "\n")
    kept = feed.jsonl(tmp_path).map(_with_noise).filter(_even).flat_map(_twice)
    whole = _all(kept, batch_size=3)
    loader = DataLoader(kept, **OPTIONS | {"batch_size": 3})
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        resumed = DataLoader(kept, **OPTIONS | {"batch_size": 3})
        resumed.load_state_dict(loader.state_dict())
        assert [flat(batch) for batch in resumed] == whole[step:], step


def test_a_lane_without_torch_s_worker_info_is_known_too() -> None:
    assert feed.lane() is None
    with DataLoader(lanes_by_name, batch_size=2, num_shards=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 2], [1, 3]]


def lanes_by_name() -> Iterator[int]:
    info = feed.lane()
    assert info is not None
    return iter(range(info.id, 4, info.num_workers))


@pytest.mark.promise("feed-lanes", "data without a count: a lane whose worker is stopped goes on elsewhere")
def test_a_lane_whose_worker_is_stopped_goes_on_elsewhere(tmp_path: Path) -> None:
    once = tmp_path / "once"
    dataset, options = Stopping(800, 640, str(once)), {"num_shards": 4, "seed": 3}
    expected = [flat(batch) for batch in feed.DataLoader(dataset, 4, num_workers=0, **options)]
    once.touch()
    with feed.DataLoader(dataset, 4, num_workers=2, prefetch_factor=2, slice_timeout=600, **options) as loader:
        assert [flat(batch) for batch in loader] == expected
        stats = loader.stats()
    assert not once.exists()
    assert stats["hedges_won"] >= 1
    assert stats["slices_timed_out"] == 0
    once.touch()
    with (
        feed.DataLoader(dataset, 4, num_workers=2, slice_timeout=600, hedge=False, timeout=1, **options) as loader,
        pytest.raises(RuntimeError, match="timed out after 1"),
    ):
        list(loader)


DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "numpy": lambda: float(np.random.random_sample()),
    "numpy's normal": lambda: float(np.random.standard_normal()),
    "torch": lambda: float(torch.rand((), dtype=torch.float64)),
    "feed.rng": lambda: float(feed.rng().random()),
}


class Rarely(IterableDataset[tuple[int, float]]):
    """Draws for some of its outputs only, and writes down that it was opened."""

    def __init__(self, kind: str, at: Sequence[int], log: Path) -> None:
        self.kind, self.at, self.log = kind, at, log

    def __iter__(self) -> Iterator[tuple[int, float]]:
        with self.log.open("a") as log:
            log.write("opened\n")
        for number in range(80):
            yield number, DRAWS[self.kind]() if number in self.at else 0.0


def drawn_at(kind: str, number: int, epoch: int) -> float:
    """What an output draws whose generators are set from its own key."""
    with PreservedGenerators():
        set_generators(stream_key(7, epoch, number, b"lane output"))
        return DRAWS[kind]()


SOON, LATE = (3, 50, 51), (50, 51, 79)


@pytest.mark.parametrize(
    ("kind", "at", "workers"),
    [
        (kind, at, workers)
        for turn, kind in enumerate(DRAWS)
        for at in (SOON, LATE)
        for workers in (0, 2)
        if SOAK or not workers or (at is LATE and turn % 2)
    ],
)
def test_outputs_hold_the_random_numbers_of_their_own_key_whenever_the_first_is_drawn(
    kind: str, at: tuple[int, ...], workers: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    torch.manual_seed(1)
    loader = DataLoader(Rarely(kind, at, log), 8, num_workers=workers, num_shards=1, seed=7, verify=0)
    for epoch in range(2):
        found = [(int(number), float(value)) for batch in loader for number, value in zip(*batch, strict=True)]
        assert [number for number, _ in found] == list(range(80))
        assert [value for _, value in found] == [
            drawn_at(kind, number, epoch) if number in at else 0.0 for number in range(80)
        ]
    if not workers:  # each pass has a reader of its own; it is opened again only for what is drawn late
        again = at[0] > 16
        assert log.read_text().split() == ["opened"] * (4 if again else 2)


def test_an_output_that_raises_as_it_has_drawn_is_made_again_with_its_own_random_numbers(tmp_path: Path) -> None:
    class Fails(Rarely):
        def __iter__(self) -> Iterator[tuple[int, float]]:
            for number, value in super().__iter__():
                if number == 50:
                    raise ValueError(f"drew {random.random()}")
                yield number, value

    batches = iter(DataLoader(Fails("random", (), tmp_path / "log"), 8, num_shards=1, seed=7))
    with pytest.raises(ValueError, match=re.escape(f"drew {drawn_at('random', 50, 0)}")):
        list(batches)


class Raising(IterableDataset[int]):
    """Counts, and raises over one number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[int]:
        for number in range(40):
            if number == self.at:
                raise ValueError(f"number {number}")
            yield number


@pytest.mark.parametrize("at", [3, 16, 27, 39])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_lane_raises_ends_it_and_what_it_gave_before_comes(at: int, workers: int) -> None:
    batches = iter(DataLoader(Raising(at), 4, num_shards=1, num_workers=workers, seed=7))
    for first in range(0, at - at % 4, 4):
        assert next(batches).tolist() == list(range(first, first + 4))
    with pytest.raises(ValueError, match=f"number {at}"):
        next(batches)
    assert list(batches) == []
