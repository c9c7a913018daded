"""Mixtures: the documented order, the shares, the epoch's end, weights that change, resume, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from feed_data import flat
from feed_servers import Pair, Server
from feed_shards import fill
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mixed_rows import mixed_rows
from mixture_data import ROWS, WEIGHTS, Rows, made, mixed, mixed_lines, one

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader, Window, mix
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.orders.mixed_order import Apportion, MixedOrder
from headrace.feed.wire.messages import Mixing

NAMES = tuple(sorted(ROWS))
PINNED = [22, 19, 9, 12, 26, 1, 3, 17, 15, 0, 13, 28, 20, 2, 16, 23, 5, 7, 24, 10, 21, 18, 11, 8, 14, 4, 6, 27, 25]
FAR = [1087757722, 190379257, 949048724]
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
FAST = settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # to shrink takes minutes
WEIGHT = st.one_of(st.integers(0, 9), st.sampled_from([0.7, 0.3, 0.05, 1 / 3, 1e-5, 123.456]))


@st.composite
def mixings(draw: st.DrawFn, most: int = 6, rows: int = 40) -> Mixing:
    count = draw(st.integers(1, most))
    weights = tuple(float(draw(WEIGHT)) for _ in range(count))
    if not any(weights):
        weights = (1.0, *weights[1:])
    until = draw(st.sampled_from(["first", "all"]))
    each = tuple(draw(st.integers(1, rows)) for _ in range(count))
    return Mixing(tuple("abcdef"[:count]), each, weights, until)


def keys(order: MixedOrder, epoch: int, n: int) -> list[int]:
    found: list[int] = order.rows_at(epoch, np.arange(n)).tolist()
    return found


@pytest.mark.promise(
    "feed-mixtures", "a mixture has of every source what its weight says, to a sample; resume is exact"
)
@settings(FAST, max_examples=60)
@given(data=st.data(), mixing=mixings(), seed=st.integers(0, 2**63), shuffle=st.sampled_from([True, False, (2, 3)]))
def test_the_order_is_the_one_that_is_described(
    data: st.DataObject, mixing: Mixing, seed: int, shuffle: bool | tuple[int, int]
) -> None:
    n = data.draw(st.integers(1, 300))
    go_on = data.draw(st.booleans())
    if go_on:
        mixing = Mixing(mixing.names, mixing.rows, mixing.weights, "first", n)
    window = Window(*shuffle) if isinstance(shuffle, tuple) else shuffle
    whole, epochs = MixedOrder(mixing, seed, window).rows(0), 2 if go_on else 1
    n = min(whole, 300)
    places = sorted(data.draw(st.lists(st.integers(1, epochs * n), max_size=3, unique=True)))
    schedule = tuple((place, (data.draw(mixings(1)).weights[0], *mixing.weights[1:])) for place in places)
    schedule = tuple((place, weights if any(weights) else mixing.weights) for place, weights in schedule)
    order = MixedOrder(msgspec.structs.replace(mixing, schedule=schedule), seed, window)
    assert order.rows(0) == whole, "what comes later changes no length"
    taken, latest = [0] * len(mixing.rows), mixing.weights
    starts = np.cumsum([0, *mixing.rows])
    for epoch in range(epochs):
        weights = {0: latest} | {at - epoch * whole: new for at, new in schedule if 0 <= at - epoch * whole < whole}
        latest = list(weights.values())[-1]
        told = mixed_rows(mixing.names, mixing.rows, weights, whole, seed, epoch, shuffle, taken if go_on else None)
        expected = [int(starts[source] + row) for (source, row), _ in zip(told, range(n), strict=False)]
        assert keys(order, epoch, n) == expected
        some = np.random.default_rng(n).permutation(n)[:20]
        assert order.rows_at(epoch, some).tolist() == [expected[place] for place in some.tolist()]
        for key in expected:
            taken[int(np.searchsorted(starts, key, side="right")) - 1] += 1
        assert list(order.taken(epoch, n)) == taken


@pytest.mark.promise(
    "feed-mixtures", "a mixture has of every source what its weight says, to a sample; resume is exact"
)
@settings(FAST, max_examples=100)
@given(mixing=mixings(), far=st.integers(200, 10**9))
def test_every_prefix_has_as_much_of_each_source_as_its_weight_says(mixing: Mixing, far: int) -> None:
    apportion = Apportion(mixing.weights)
    total = sum(map(float, mixing.weights))
    assert apportion.error < (1 if len(mixing.weights) <= 4 else 1.5)
    before = [0] * len(mixing.weights)
    for q in [*range(200), *range(far, far + 50)]:
        counts = apportion.counts(q)
        assert sum(counts) == q
        for count, weight in zip(counts, mixing.weights, strict=True):
            assert abs(count - q * weight / total) <= apportion.error + 1e-6
        assert all(now >= then for now, then in zip(counts, before, strict=True))
        before = counts


@settings(FAST, max_examples=60)
@given(mixing=mixings(rows=25), seed=st.integers(0, 99))
def test_an_epoch_ends_with_the_first_or_the_last_source_that_is_used_up(mixing: Mixing, seed: int) -> None:
    if min(weight for weight in mixing.weights if weight) < 0.01:
        return  # very long epochs
    order = MixedOrder(mixing, seed, True)
    n = order.rows(0)
    taken = order.taken(0, n)
    live = [number for number, weight in enumerate(mixing.weights) if weight]
    assert all(not taken[number] for number, weight in enumerate(mixing.weights) if not weight)
    found = Counter(keys(order, 0, n))
    if mixing.until == "first":
        assert max(found.values()) == 1, "no row comes twice"
        more = Apportion(mixing.weights).counts(n + 1)
        assert any(more[number] > mixing.rows[number] for number in live)
    else:
        starts = np.cumsum([0, *mixing.rows])
        assert all(row in found for number in live for row in range(starts[number], starts[number + 1]))
        less = Apportion(mixing.weights).counts(n - 1)
        assert any(less[number] < mixing.rows[number] for number in live)


def test_the_order_is_pinned_so_that_a_run_can_be_resumed_by_a_later_version() -> None:
    order = MixedOrder(Mixing(("code", "web"), (9, 20), (0.3, 0.7)), 7, True)
    assert keys(order, 0, order.rows(0)) == PINNED
    far = MixedOrder(Mixing(("code", "web"), (10**8, 10**9), (0.3, 0.7), "first", 10**9), 7, Window())
    assert far.rows_at(3, np.array([0, 123_456_789, 999_999_999])).tolist() == FAR


def test_ranks_share_every_global_batch_and_the_rest_is_cut_anew() -> None:
    order = MixedOrder(Mixing(NAMES, tuple(ROWS[name] for name in NAMES), (1.0, 3.0, 6.0)), 7, True)
    n = order.rows(2)
    whole = [key for batch in EpochPlan(n, 12, 7, order=order).epoch(2) for key in batch.keys]
    assert whole == keys(order, 2, n)
    four = [EpochPlan(n, 3, 7, rank=rank, world_size=4, order=order) for rank in range(4)]
    steps = zip(*(plan.epoch(2) for plan in four), strict=True)
    assert [key for step in steps for batch in step for key in batch.keys] == whole
    rest = EpochPlan(n, 5, 7, offset=24, first_step=2, order=order)
    assert [key for batch in rest.epoch(2) for key in batch.keys] == whole[24:]


def sources(batches: list[Any]) -> Counter[int]:
    return Counter(int(source) for batch in batches for source in batch[0][:, 0])


PHASES: Any = [[0, WEIGHTS], [24, {"web": 1, "code": 0, "books": 0}], [40, {"web": 1, "code": 1, "books": 2}]]
AHEAD = {"web": 0, "code": 1, "books": 0}


@pytest.mark.promise(
    "feed-mixtures", "a mixture has of every source what its weight says, to a sample; resume is exact"
)
@pytest.mark.parametrize(("until", "rows"), [(None, None), ("all", None), (None, 75)])
def test_it_goes_on_at_every_step_with_the_weights_that_its_schedule_says(until: str | None, rows: int | None) -> None:
    data = made(until, rows, PHASES)
    with DataLoader(data, **OPTIONS) as loader:
        whole, states, steps = [], [], len(DataLoader(made(until, rows), **OPTIONS))
        for batch in loader:
            whole.append(batch)
            states.append(loader.state_dict())
            assert len(whole) == steps or len(loader) == steps, "the first weights decide the length"
        epochs = [list(loader), list(loader)]
    assert sources(whole[3:5]) == {2: 16}
    bits = [flat(batch) for batch in whole]
    for step, state in enumerate(states, 1):
        text = json.dumps(state)
        assert len(text) < 600
        with DataLoader(data, **OPTIONS) as loader:
            loader.load_state_dict(json.loads(text))
            assert loader.state_dict() == state
            some = None if step in (1, 4, 6, len(states)) else 2
            assert [flat(batch) for batch in itertools.islice(loader, some)] == bits[step:][:some]
            for epoch in epochs if some is None else []:
                assert [flat(batch) for batch in loader] == [flat(batch) for batch in epoch]


@pytest.mark.promise("feed-mixtures", "a resume may bring other weights of a mixture for what lies ahead, no others")
@pytest.mark.parametrize(("rows", "window"), [(None, 1), (75, 1), (75, 2)])
def test_a_resume_may_bring_another_schedule_for_what_lies_ahead(rows: int | None, window: int) -> None:
    buckets = {} if window == 1 else {"buckets": feed.Buckets([row % 7 for row in range(sum(ROWS.values()))], window)}
    options, span = OPTIONS | buckets, 8 * window  # rows of a window, which are decided together

    def loader_of(*later: tuple[int, dict[str, float]]) -> Any:
        return DataLoader(made(None, rows, [(0, WEIGHTS), *later]), **options)

    with loader_of(*PHASES[1:]) as loader:
        states, whole = [loader.state_dict()], []
        for batch in loader:
            whole.append(flat(batch))
            states.append(loader.state_dict())
        behind, length = loader.state_dict(), loader.stats()["samples"]
    for step, changed in itertools.product((0, 2, 3, 5), range(8, 64, 8)):
        other = loader_of(*(phase for phase in PHASES[1:] if phase[0] < changed), (changed, AHEAD))
        other.load_state_dict(states[step])
        decided = -(-8 * step // span) * span
        if changed < decided and not changed == PHASES[1][0] == decided:
            with pytest.raises(PositionError, match=r"was saved with .* from position \d+ of epoch 0 on, the"):
                iter(other)
            continue
        rest = list(other)
        same = max(0, changed // span * window - step)
        assert [flat(batch) for batch in rest[:same]] == whole[step : step + same]
        assert sources(rest[-(-changed // span) * window - step :]).keys() == {1}
    other = loader_of(*PHASES[1:], (length, AHEAD))
    other.load_state_dict(behind)
    assert sources(list(other)).keys() == {1}, "the next epoch begins with other weights"


OLD = """{"epoch": 0, "step": 4, "samples": 32, "order": "headrace", "shuffle": true, "drop_last": false,
"length": 120, "seed": 3, "global_batch": 8, "mixture": "books=0.1 code=0.3 web=0.6 rows=75",
"weights": [[0, 0, [0.1, 0.3, 0.6],
[0, 0, 0]], [0, 24, [2.0, 1.0, 1.0], [2, 9, 13]], [0, 40, [0.0, 0.0, 1.0], [12, 12, 16]]], "version": 1}"""
OLD_END = """{"epoch": 1, "step": 0, "samples": 0, "order": "headrace", "shuffle": true, "drop_last": false,
"length": 120, "seed": 3, "global_batch": 8, "mixture": "books=0.1 code=0.3 web=0.6 rows=75",
"weights": [[1, 0, [0.0, 0.0, 1.0],
[12, 12, 51]]], "version": 1}"""


@pytest.mark.parametrize("state", [OLD, OLD_END])
def test_a_state_of_weights_that_were_set_at_run_time_goes_on_with_a_schedule_of_them_alone(state: str) -> None:
    phases = [(0, WEIGHTS), (24, {"web": 1, "code": 1, "books": 2}), (40, {"web": 1, "code": 0, "books": 0})]
    loader = DataLoader(made(None, 75, phases), **OPTIONS)
    loader.load_state_dict(json.loads(state))
    rest = list(loader)
    assert (len(rest), sources(rest[-5:]).keys()) == (6 if state is OLD else 10, {2})
    for without in (phases[:1], phases[:2], [phases[0], phases[2]]):
        loader = DataLoader(made(None, 75, without), **OPTIONS)
        loader.load_state_dict(json.loads(state))
        with pytest.raises(PositionError, match=r"was saved with the sources books=\S+ \(behind \d+ rows\) .* from"):
            iter(loader)


def test_an_epoch_keeps_its_length_and_later_ones_follow_from_the_weights_they_begin_with() -> None:
    only = {name: {other: float(other == name) for other in ROWS} for name in ROWS}
    places = [(0, only["code"]), (19, only["books"]), (19 + 31 * 2 + 5, only["web"])]
    with DataLoader(made(None, None, places), **OPTIONS, num_workers=1, persistent_workers=True) as loader:
        found = [(len(loader), sources(list(loader))) for _ in range(5)]
        assert loader.stats()["sources"]["web"]["weight"] == 1
    assert found == [(3, {1: 19}), (4, {0: 31}), (4, {0: 31}), (4, {0: 5, 2: 26}), (9, {2: 70})]


def test_workers_and_other_ranks_give_the_same_bits() -> None:
    def run(**options: Any) -> list[Any]:
        phases = [[0, WEIGHTS], [56, {"web": 0, "code": 1, "books": 1}]]
        with DataLoader(mixed(None, None, phases), **(OPTIONS | options)) as loader:
            return [*loader, *loader]

    plain = run()
    assert len({flat(each) for each in plain}) == len(plain)
    served = run(num_workers=2, prefetch_factor=1)
    assert [flat(batch) for batch in served] == [flat(batch) for batch in plain]
    halves = [run(batch_size=1, global_batch_size=8, rank=rank, world_size=2) for rank in range(2)]
    for one_, other, both in zip(*halves, plain, strict=True):
        assert torch.equal(torch.cat([one_[0], other[0]]), both[0])
        assert torch.equal(torch.cat([one_[1], other[1]]), both[1])


def test_a_row_that_comes_again_draws_other_random_numbers() -> None:
    with DataLoader(made("all"), **OPTIONS) as loader:
        rows = [(tuple(row.tolist()), flat(drawn)) for batch in loader for row, drawn in zip(*batch[:2], strict=True)]
        stats = loader.stats()["sources"]
    again = {row for row, count in Counter(row for row, _ in rows).items() if count > 1}
    assert again
    assert len({drawn for _, drawn in rows}) == len(rows)
    assert {row for row, _ in rows} == {(number, row) for number, name in enumerate(NAMES) for row in range(ROWS[name])}
    taken = Counter(source for (source, _), _ in rows)
    assert {name: each["samples"] for name, each in stats.items()} == {
        name: taken[number] for number, name in enumerate(NAMES)
    }
    assert stats["code"]["passes"] == taken[1] / 19
    assert {name: each["weight"] for name, each in stats.items()} == pytest.approx(WEIGHTS)


def test_sources_are_mapped_batched_and_mixed_again() -> None:
    data = mix({"inner": made(), "one": one("books")}, {"inner": 1, "one": 1})
    assert len(data) == sum(ROWS.values()) + ROWS["books"]
    doubled = data.map(lambda row: row[0] * 2)
    assert [row.tolist() for row in doubled][:2] == [[0, 0], [0, 2]]
    whole = list(DataLoader(doubled.map(lambda row: row + 1), 4, seed=1))
    assert all(int(value) % 2 for batch in whole for value in batch.flatten())
    pairs = DataLoader(mix({"a": Rows(0, 5), "b": Rows(1, 5)}, {"a": 1, "b": 3}).batch(2), None, seed=1)
    assert sorted(len(pair) for pair in pairs) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("made_of", "weights", "options", "error", "told"),
    [
        ({}, {}, {}, ValueError, "1 to 1024 sources, got 0"),
        ({"a/b": [1]}, {"a/b": 1}, {}, ValueError, "text without '/'"),
        ({"a": [1]}, {}, {}, ValueError, "weights have none for 'a'"),
        ({"a": [1]}, {"a": 1, "b": 1}, {}, ValueError, "weights name 'b', and the sources are 'a'"),
        ({"a": [1]}, None, {}, ValueError, "weights are a dict with a number for each of a, or a list"),
        ({"a": [1]}, [], {}, ValueError, "or a list of such dicts"),
        ({"a": [1]}, [(0, {"a": 1}), {"a": 1}], {}, ValueError, "or a list of such dicts"),
        ({"a": [1]}, [(5, {"a": 1})], {}, ValueError, "begin with 0 and grow, got 5 behind nothing"),
        ({"a": [1]}, [(0, {"a": 1}), (0, {"a": 1})], {}, ValueError, "begin with 0 and grow, got 0 behind 0"),
        ({"a": [1]}, [(0, {"a": 1}), (True, {"a": 1})], {}, ValueError, "begin with 0 and grow, got True behind 0"),
        ({"a": [1]}, [(0, {"a": 1}), (1, {"b": 1})], {}, ValueError, "weights name 'b'"),
        (
            {"a": lambda: iter([1])},
            [(0, {"a": 1}), (1, {"a": 2})],
            {},
            PipelineError,
            "weights that change need",
        ),
        ({"a": [1]}, {"a": -1}, {}, ValueError, "weight of 'a' must be a number of at least 0, got -1"),
        ({"a": [1]}, {"a": float("nan")}, {}, ValueError, "weight of 'a'"),
        ({"a": [1]}, {"a": True}, {}, ValueError, "weight of 'a'"),
        ({"a": [1]}, {"a": 0}, {}, ValueError, "all weights are 0"),
        ({"a": [1]}, {"a": 1}, {"until": "last"}, ValueError, 'until must be "first" or "all"'),
        ({"a": [1]}, {"a": 1}, {"until": "all", "rows": 3}, ValueError, "give one of the two"),
        ({"a": [1]}, {"a": 1}, {"rows": 0}, ValueError, "rows of an epoch must be an integer"),
        ({"a": []}, {"a": 1}, {}, PipelineError, "the source 'a' has no rows"),
        ({"a": iter(x for x in [1])}, {"a": 1}, {}, PipelineError, "generator can be read once"),
        ({"a": 1}, {"a": 1}, {}, PipelineError, "'a' is a int, which has no rows by number, and cannot be iterated"),
    ],
)
def test_a_mixture_that_cannot_be_says_what_is_wrong(
    made_of: dict[str, Any], weights: dict[str, float], options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        mix(made_of, weights, **options)


def test_what_does_not_go_with_a_mixture_is_refused() -> None:
    with pytest.raises(PipelineError, match="decides the order by its weights, and a sampler does"):
        iter(DataLoader(made(), sampler=[1, 2]))
    for workers in (0, 1):
        loader = DataLoader(mixed(), sampler=[1, 2], num_workers=workers)
        with pytest.raises(PipelineError, match="decides the order by its weights, and a sampler does"):
            iter(loader)
    with pytest.raises(ValueError, match="generator excludes"):
        DataLoader(made(), generator=torch.Generator())
    state = DataLoader(made(), **OPTIONS).state_dict()
    for other in (made("all"), mix({name: Rows(0, ROWS[name]) for name in NAMES}, WEIGHTS | {"web": 0.5})):
        with pytest.raises(PositionError, match=r"saved with mixture='books=0\.1 code=0\.3 web=0\.6 until=first'"):
            DataLoader(other, **OPTIONS).load_state_dict(state)


def test_hosts_make_the_same_batches(pair: Pair) -> None:
    pipeline = mixed("all", None, PHASES)
    local = [flat(batch) for batch in DataLoader(pipeline, **OPTIONS)]
    with DataLoader(pipeline, **OPTIONS, workers=pair.both, secret_file=pair.secret) as loader:
        assert [flat(batch) for batch in loader] == local
        assert loader.stats()["sources"]["web"]["samples"] >= 70
        state = loader.state_dict()
        assert state["mixture"]


@pytest.mark.usefixtures("without_torch")
def test_hosts_with_other_shards_of_the_sources_serve_what_they_have(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"all": ("abc", "de"), "one": ("ac", ""), "other": ("b", "de")}  # files of web and of code
    options = OPTIONS | {"collate_fn": feed.stack_arrays}
    servers = []
    for host, names in held.items():
        for source, files in zip(("web", "code"), names, strict=True):
            begin = 0 if source == "web" else 100
            fill(
                tmp_path / host / source, {file: range(begin + ord(file) * 7, begin + ord(file) * 8) for file in files}
            )
            monkeypatch.setenv(f"SM_CHANNEL_{source.upper()}", str(tmp_path / host / source))
        if host == "all":
            expected = [flat(batch) for batch in DataLoader(mixed_lines(), **options)]
        else:
            servers.append(own_server(host))
    workers = ",".join(server.tcp for server in servers)
    with DataLoader(mixed_lines(), **options, workers=workers, secret_file=str(servers[0].secret)) as loader:
        assert [flat(batch) for batch in loader] == expected
        stats = loader.stats()["sources"]
    assert stats["code"]["samples"] == pytest.approx(0.3 * (8 * len(expected)), abs=3)
    monkeypatch.setenv("SM_CHANNEL_CODE", str(tmp_path / "one" / "code"))
    with pytest.raises(PipelineError, match="no host has rows of the source 'code'"):
        iter(DataLoader(mixed_lines(), **OPTIONS))


def test_the_example_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("web", 80), ("code", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text("".join(f"{row}\n" for row in range(rows)))
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "feed-mixtures.md").read_text()
    names: dict[str, Any] = {"feed": feed}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert len(names["batches"]) == 13  # 100 rows, as code has 30
    assert len(names["loader"]) == 8  # of the next epoch: 60 rows
    assert names["loader"].stats()["sources"]["code"]["weight"] == 0.5
