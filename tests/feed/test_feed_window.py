"""The shuffle by windows of runs: an order that is a permutation, is pinned, stays near, and is as good as it says."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PositionError
from headrace.feed import DataLoader, Window, jsonl
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.planner import plan_fingerprint
from headrace.feed.plan.state_dict import Position


def order(window: Window, n: int, key: bytes = b"7/0") -> Any:
    return window.order(np.arange(n, dtype=np.int64), n, key)


PINNED = [0, 20, 18, 12, 13, 14, 19, 17, 15, 22, 16, 21, 11, 3, 7, 8, 4, 6, 5, 1, 2, 9, 10]
FAR = [351296988, 206080131, 564598294]
WINDOWS = st.builds(Window, st.integers(1, 40), st.integers(1, 12))


@pytest.mark.promise(
    "feed-shards", "a shuffle by windows takes each row once, in its window, and is as good as documented"
)
@settings(deadline=None, max_examples=200)
@given(window=WINDOWS, n=st.integers(1, 2000), key=st.binary(max_size=8))
def test_every_row_comes_once_and_a_place_does_not_depend_on_what_is_asked_with_it(
    window: Window, n: int, key: bytes
) -> None:
    whole = order(window, n, key)
    assert np.array_equal(np.sort(whole), np.arange(n))
    some = np.random.default_rng(n).permutation(n)[:50]
    assert np.array_equal(window.order(some, n, key), whole[some])


@pytest.mark.promise(
    "feed-shards", "a shuffle by windows takes each row once, in its window, and is as good as documented"
)
@settings(deadline=None, max_examples=100)
@given(window=WINDOWS, n=st.integers(1, 5000))
def test_a_window_is_read_from_at_most_so_many_places(window: Window, n: int) -> None:
    whole = order(window, n)
    size = -(-n // -(-n // window.rows))
    assert size <= window.rows
    for begin in range(0, n, size):
        rows = np.sort(whole[begin : begin + size])
        places = 1 + int((np.diff(rows) > 1).sum())
        assert places <= window.runs + 2


@pytest.mark.promise(
    "feed-shards", "a shuffle by windows takes each row once, in its window, and is as good as documented"
)
def test_it_is_as_good_a_shuffle_as_the_docs_say() -> None:
    """Lag-1 correlation about 1 / runs; a batch of 64 draws from runs * (1 - (1 - 1 / runs) ** 64) neighbourhoods."""
    n = 1 << 20
    for runs, near in ((64, 40.6), (256, 56.7), (8, 8.0)):
        whole = order(Window(1024, runs), n)
        correlation = float(np.corrcoef(whole[:-1], whole[1:])[0, 1])
        assert abs(correlation - 1 / runs) < 0.02 + 0.2 / runs
        batches = (whole[:64_000] // 1024).reshape(-1, 64).tolist()
        neighbourhoods = float(np.mean([len(set(batch)) for batch in batches]))
        assert abs(neighbourhoods - near) < 1.0
    # Inside a window all orders are alike: rows stand anywhere, and neighbours of a run are far apart.
    window = order(Window(1024, 64), n)[:65_536]
    places = np.argsort(window)
    assert 0.3 < float(np.mean(np.abs(np.diff(places)))) / 65_536 < 0.37  # a third: as of independent places
    # And epochs differ, as do windows of one epoch.
    first, second = order(Window(1024, 64), n, b"7/0"), order(Window(1024, 64), n, b"7/1")
    assert float(np.mean(first == second)) < 0.001
    assert abs(float(np.corrcoef(window % 1024, order(Window(1024, 64), n)[65_536:131_072] % 1024)[0, 1])) < 0.02


def test_the_order_is_pinned_so_that_a_run_can_be_resumed_by_a_later_version() -> None:
    assert order(Window(4, 3), 23).tolist() == PINNED
    far = np.array([0, 123_456_789, 999_999_999], np.int64)
    assert Window().order(far, 10**9, b"7/5").tolist() == FAR


def test_ranks_share_it_and_what_is_left_is_cut_anew() -> None:
    window = Window(8, 4)
    whole = [key for batch in EpochPlan(301, 12, 7, window).epoch(2) for key in batch.keys]
    assert sorted(whole) == list(range(301))
    four = [EpochPlan(301, 3, 7, window, rank=rank, world_size=4) for rank in range(4)]
    steps = zip(*(plan.epoch(2) for plan in four), strict=True)
    assert [key for step in steps for batch in step for key in batch.keys] == whole
    rest = EpochPlan(301, 5, 7, window, offset=96, first_step=8)
    assert [key for batch in rest.epoch(2) for key in batch.keys] == whole[96:]
    prints = {
        plan_fingerprint("p", Position(0, 0, 0, "headrace", bool(runs), False, seed=1, global_batch=8, window=runs))
        for runs in (None, (8, 4), (4, 8))
    }
    assert len(prints) == 3


def test_a_loader_takes_it_and_goes_on_in_it() -> None:
    data = list(range(100))
    whole = [batch.tolist() for batch in DataLoader(data, 8, Window(4, 3), seed=1)]
    assert sorted(itertools.chain(*whole)) == data
    loader = DataLoader(data, 8, Window(4, 3), seed=1, num_workers=2)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(5)] == whole[:5]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    assert state["window"] == [4, 3]
    again = DataLoader(data, 8, Window(4, 3), seed=1)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == whole[5:]
    for other in (True, Window(3, 4)):
        with pytest.raises(PositionError, match="window"):
            DataLoader(data, 8, other, seed=1).load_state_dict(state)
    assert len(DataLoader(data, 8, Window(4, 3), global_batch_size=8, rank=0, world_size=1).state_dict()) > 5


@pytest.mark.parametrize(("arguments", "told"), [((0, 1), "run of a Window"), ((4, True), "runs of a Window")])
def test_a_window_of_nothing_is_refused(arguments: tuple[int, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Window(*arguments)


@pytest.mark.promise("feed-shards", "ten million rows of shards are entered at 99 % of an epoch within 50 ms")
def test_ten_million_rows_are_entered_at_99_percent_within_50_ms(tmp_path: Path) -> None:
    """Another world size than the one that saved; from the index, that is on disk, to the first batch."""
    shard = b"".join(b"%d\n" % (row % 10) for row in range(100_000))
    for number in range(100):
        (tmp_path / f"{number:03}.jsonl").write_bytes(shard)
    assert len(jsonl(tmp_path)) == 10_000_000
    saved = DataLoader(jsonl(tmp_path), shuffle=Window(), seed=7, global_batch_size=64, rank=1, world_size=2)
    state = saved.state_dict() | {"step": 154_687, "samples": 9_900_000 - 9_900_000 % 64}
    assert len(json.dumps(state)) < 1000
    took = []
    for _ in range(5):
        began = time.process_time(), time.perf_counter()
        source = jsonl(tmp_path)
        loader = DataLoader(source, shuffle=Window(), seed=7, global_batch_size=96, rank=0, world_size=3)
        loader.load_state_dict(state)
        first = next(iter(loader))
        took.append((time.process_time() - began[0], time.perf_counter() - began[1]))
        assert len(first) == 32
    assert min(cpu for cpu, _ in took) < 0.05, took
