"""Buckets: rows of similar length in a batch, each once, the same for any ranks, resumed at every step."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feed_data import Noise, flat
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from keyed_order import keyed_order
from source_data import fill_tars, tar_rows

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import Buckets, DataLoader, Window
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.orders.length_buckets import BucketedOrder
from headrace.feed.plan.orders.order import RowOrder

LENGTHS = [random.Random(row).randrange(1, 400) for row in range(97)]
PINNED = [2, 16, 7, 21, 15, 1, 12, 18, 9, 6, 3, 17, 22, 5, 8, 13, 20, 4, 10, 14, 11, 19, 0]
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "buckets": Buckets(LENGTHS, 4)}


def bucketed(order: list[int], lengths: list[int], batch: int, batches: int, seed: int | None, epoch: int) -> list[int]:
    """The documented order, written again: one window after the other."""
    found: list[int] = []
    for number, begin in enumerate(range(0, len(order), batch * batches)):
        window = order[begin : begin + batch * batches]
        count = len(window) // batch
        ranked = sorted(range(count * batch), key=lambda place: (lengths[window[place]], place))
        cut = [sorted(ranked[first : first + batch]) for first in range(0, len(ranked), batch)]
        if seed is not None and count:
            cut = [cut[at] for at in keyed_order(count, f"{seed}/{epoch}/buckets".encode(), number)]
        found += [window[place] for places in cut for place in places] + window[count * batch :]
    return found


@pytest.mark.promise("feed-packing", "buckets: every row once, rows of a step are of similar length, resume is exact")
@settings(deadline=None, max_examples=60, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=200), batch=st.integers(1, 12), batches=st.integers(1, 9),
    seed=st.integers(0, 2**63), epoch=st.integers(0, 9), shuffle=st.sampled_from([False, True, Window(3, 4)]),
)  # fmt: skip
def test_the_order_is_the_one_that_is_described_and_every_row_comes_once(
    lengths: list[int], batch: int, batches: int, seed: int, epoch: int, shuffle: bool | Window
) -> None:
    n = len(lengths)
    inner = RowOrder(n, seed, shuffle)
    order = BucketedOrder(inner, Buckets(lengths, batches), seed, batch, lambda _: n, shuffled=bool(shuffle))
    found = order.rows_at(epoch, np.arange(n)).tolist()
    assert sorted(found) == list(range(n))
    before = inner.rows_at(epoch, np.arange(n)).tolist()
    assert found == bucketed(before, lengths, batch, batches, seed if shuffle else None, epoch)
    some = np.random.default_rng(n).permutation(n)[:20]
    assert order.rows_at(epoch, some).tolist() == [found[place] for place in some.tolist()]


def test_the_order_is_pinned_so_that_a_run_can_be_resumed_by_a_later_version() -> None:
    lengths = np.arange(23) * 7 % 11
    order = BucketedOrder(RowOrder(23, 7, True), Buckets(lengths, 3), 7, 4, lambda _: 23, shuffled=True)
    assert order.rows_at(1, np.arange(23)).tolist() == PINNED


@pytest.mark.promise("feed-packing", "buckets: every row once, rows of a step are of similar length, resume is exact")
def test_all_ranks_of_a_step_have_rows_of_similar_length_and_little_is_padding() -> None:
    chance = np.random.default_rng(5)
    lengths = chance.lognormal(5, 1, 20_000).astype(int) + 1

    def padding(order: Any) -> tuple[float, float]:
        filled = missing = 0
        ratios = []
        for step in range(100):
            ranks = [
                EpochPlan(20_000, 16, 7, True, rank=rank, world_size=4, order=order).batch(0, step) for rank in range(4)
            ]
            longest = [int(lengths[list(rank.keys)].max()) for rank in ranks]
            ratios.append(max(longest) / min(longest))
            filled += sum(int(lengths[list(rank.keys)].sum()) for rank in ranks)
            missing += sum(16 * most for most in longest)
        return 1 - filled / missing, float(np.mean(ratios))

    plain = padding(RowOrder(20_000, 7, True))
    order = BucketedOrder(RowOrder(20_000, 7, True), Buckets(lengths), 7, 64, lambda _: 20_000, shuffled=True)
    sorted_ = padding(order)
    assert plain[0] > 0.6
    assert sorted_[0] < 0.15
    assert plain[1] > 1.5
    assert sorted_[1] < 1.2


@pytest.mark.promise("feed-packing", "buckets: every row once, rows of a step are of similar length, resume is exact")
def test_it_goes_on_at_every_step_on_any_ranks() -> None:
    with DataLoader(Noise(97), **OPTIONS) as loader:
        batches, whole, states = iter(loader), [], []
        for batch in batches:
            whole.append(batch)
            states.append(loader.state_dict())
        following = [flat(batch) for batch in loader]
    rows = [batch[1].tolist() for batch in whole]
    order = list(itertools.chain(*rows))
    assert sorted(order) == list(range(97))
    for step, state in enumerate(states, 1):
        text = json.dumps(state)
        assert len(text) < 500
        with DataLoader(Noise(97), **OPTIONS) as loader:
            loader.load_state_dict(json.loads(text))
            assert loader.state_dict() == state
            assert [flat(batch) for batch in loader] == [flat(batch) for batch in whole[step:]]
            assert [flat(batch) for batch in loader] == following
    ranks = [DataLoader(Noise(97), **OPTIONS | {"batch_size": 2, "world_size": 4}, rank=rank) for rank in range(4)]
    for loader in ranks:
        loader.load_state_dict(states[4])
    passes = [iter(loader) for loader in ranks]
    assert [row for _ in range(3) for each in passes for row in next(each)[1].tolist()] == order[40:64]


def test_other_global_batches_begin_with_an_epoch() -> None:
    with DataLoader(Noise(97), **OPTIONS) as loader:
        next(iter(loader))
        state = loader.state_dict()
        list(loader)
        whole = loader.state_dict()
    for other in ({"batch_size": 2, "world_size": 3, "rank": 1}, {"batch_size": 5}):
        loader = DataLoader(Noise(97), **OPTIONS | other)
        loader.load_state_dict(state)
        with pytest.raises(PositionError, match=r"buckets of global batches of 8 rows, the loader's have [56]"):
            iter(loader)
        loader.load_state_dict(whole)
        assert len(next(iter(loader))[1]) == other["batch_size"]


def test_lengths_come_from_the_index_of_tar_files_and_of_lines(tmp_path: Path) -> None:
    tars = feed.tar(fill_tars(tmp_path / "tars", {"a": 10, "b": 31}))
    expected = [
        len(row["bin"]) + len(row["cls"]) for shard, count in (("a", 10), ("b", 31)) for row in tar_rows(shard, count)
    ]
    assert tars.map(len).lengths().tolist() == expected
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "0.jsonl").write_text('"a"\n"bcd"\n[1]\n')
    lines = feed.jsonl(tmp_path / "lines")
    assert lines.lengths().tolist() == [4, 6, 4]
    assert feed.mix({"l": lines, "t": tars}, {"l": 1, "t": 1}).lengths().tolist() == [4, 6, 4, *expected]
    loader = DataLoader(tars.map(lambda row: len(row["bin"]) + len(row["cls"])), 4, seed=1, buckets=Buckets(batches=10))
    sizes = [batch.tolist() for batch in loader]
    assert [max(each) for each in sizes[:10]] == sorted(expected[:40])[3::4]
    with pytest.raises(PipelineError, match="lengths of the rows of this source are not known without reading"):
        len(DataLoader(lines.batch(2), 4, seed=1, buckets=Buckets()))


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: Buckets([1.5]), ValueError, "one integer a row, at least 0, got an array of float64"),
        (lambda: Buckets([-1]), ValueError, "at least 0"),
        (lambda: Buckets([[1]]), ValueError, r"of shape \(1, 1\)"),
        (lambda: Buckets([1], 0), ValueError, "batches of a bucket's window"),
        (lambda: DataLoader([1], buckets=[1]), TypeError, "buckets must be a feed.Buckets"),
        (lambda: DataLoader([1], sampler=[0], buckets=Buckets([1])), ValueError, "so does a sampler"),
        (lambda: DataLoader([1], None, buckets=Buckets([1])), ValueError, "batch_size=None"),
        (lambda: DataLoader([1], generator=torch.Generator(), buckets=Buckets([1])), ValueError, "excludes sharding"),
        (lambda: DataLoader(lambda: iter([1]), buckets=Buckets([1])), ValueError, "have none"),
        (lambda: len(DataLoader([1, 2], seed=1, buckets=Buckets([1]))), ValueError, "1 lengths, .* has 2 rows"),
        (lambda: len(DataLoader([1, 2], seed=1, buckets=Buckets())), PipelineError, "rows of a list are not known"),
    ],
)
def test_buckets_that_cannot_be_say_what_is_wrong(make: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        make()


def test_a_state_of_other_buckets_is_refused() -> None:
    state = DataLoader(Noise(97), **OPTIONS).state_dict()
    for other, told in (
        (Buckets(LENGTHS, 5), "saved with buckets='windows of 4 batches'"),
        (Buckets([*LENGTHS[1:], 1], 4), "saved with lengths="),
        (None, "saved with buckets="),
    ):
        with pytest.raises(PositionError, match=told):
            DataLoader(Noise(97), **(OPTIONS | {"buckets": other})).load_state_dict(state)


def test_the_example_in_the_docs_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "feed-packing.md").read_text().split("## Batches of similar length")[1]
    texts = [list(range(1 + row * 7 % 50)) for row in range(300)]
    names: dict[str, Any] = {"feed": feed, "texts": texts, "np": np}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert 1 - names["filled"] / names["padded"] < 0.1
