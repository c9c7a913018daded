"""Mixtures of sources without a count: the shares are exact in every lane, a position is a position at every step."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import lane_data
import pytest
from effort import SOAK
from feed_servers import Pair
from lane_data import share
from mixed_rows import mixed_rows
from mixed_streams_data import (
    COUNTED,
    WEIGHTS,
    Own,
    Rows,
    Stateful,
    function,
    mixed_streams,
    own,
    replayed,
    streams,
    thirds,
    with_lane,
)
from torch.utils.data import get_worker_info

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader, Window

NAMES = tuple(sorted(WEIGHTS))
LANES = 2
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_shards": LANES, "seed": 5, "collate_fn": list}
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "streams": (streams, {"shuffle": Window(4, 3)}), "own": (own, {}), "replayed": (replayed, {"shuffle": True}),
}  # fmt: skip


def loader_of(kind: str, until: Any = None, **options: Any) -> DataLoader:
    made, shuffle = KINDS[kind]
    return DataLoader(made(until), **OPTIONS, **shuffle, **options)


def in_turns(lane: int, epoch: int, weights: dict[str, float]) -> Iterator[str]:
    """The sources whose turns a lane's outputs are, by the description of `mixed_rows`, with the lane in its key."""
    used = [name for name in NAMES if name in weights]
    place: Any = f"{epoch}/{lane}"
    turns = mixed_rows(used, [1] * len(used), {0: [weights[name] for name in used]}, 64 * 99, 5, place, shuffle=False)
    return (used[source] for source, _ in turns)


def of_lane(lane: int, until: str, sources: dict[str, list[int]], epoch: int = 0) -> list[tuple[str, int]]:
    """What a lane gives, from what its sources have in it."""
    rest = {name: iter(rows) for name, rows in sources.items()}
    passes = dict.fromkeys(sources, 0)
    found: list[tuple[str, int]] = []
    for name in in_turns(lane, epoch, WEIGHTS):
        row = next(rest[name], None)
        if row is None:
            passes[name] += 1
            if until == "first" or all(passes.values()):
                return found
            rest[name] = iter(sources[name])
            row = next(rest[name])
        found.append((name, row))
    raise AssertionError("too few turns")


@pytest.mark.promise("feed-mixtures", "mixtures of streams: the shares are exact in every lane, resume at every step")
@pytest.mark.parametrize("until", ["first", "all"])
def test_each_lane_takes_its_sources_in_the_order_that_the_weights_say(until: Any) -> None:
    rows = {"books": 60, "code": 150, "web": 160}
    web = feed.mix({"web": Rows("web", rows["web"])}, {"web": 1}).filter(thirds)
    mixture = feed.mix({"books": Rows("books", rows["books"]), "code": function, "web": web}, WEIGHTS, until=until)
    loader = DataLoader(mixture.map(with_lane), **OPTIONS)
    for epoch in range(2):
        found = [output for batch in loader for output in batch]
        for lane in range(LANES):
            part = {name: range(n * lane // LANES, n * (lane + 1) // LANES) for name, n in rows.items()}
            has = {"books": list(part["books"]), "web": [row for row in part["web"] if row % 3]}
            expected = of_lane(lane, until, has | {"code": list(range(lane, rows["code"], LANES))}, epoch)
            assert [output[1:] for output in found if output[0] == lane] == expected
            for taken in range(64, len(expected), 64):
                counts = Counter(name for name, _ in expected[:taken])
                assert all(abs(counts[name] - taken * WEIGHTS[name]) <= 1 for name in NAMES)


@pytest.mark.promise("feed-mixtures", "mixtures of streams: the shares are exact in every lane, resume at every step")
@pytest.mark.parametrize(
    ("kind", "until"),
    list(product(KINDS, [None, "all"])) if SOAK else list(zip(KINDS, [None, "all", "all"], strict=True)),
)
def test_it_goes_on_at_every_step_with_and_without_the_tokens(kind: str, until: Any) -> None:
    whole = list(loader_of(kind, until))
    assert len(whole) > 12
    loader = loader_of(kind, until)
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        assert bool(state["lanes"].get("tokens")) is (kind != "replayed")
        assert len(json.dumps(state)) < 3000
        if (until == "all" or kind == "replayed") and step % 4 and step < len(whole) - 2:
            continue
        for tokens in (True, False) if step % 12 in (1, 4) else (True,):
            if not tokens:
                state["lanes"] |= {"tokens": [], "ended": []}
            resumed = loader_of(kind, until)
            resumed.load_state_dict(state)
            rest = None if step % 12 == 1 else 4
            assert list(islice(resumed, rest)) == whole[step:][:rest], (step, tokens)


def _counted(loader: DataLoader, batches: list[Any]) -> None:
    """`stats()` counts what came of each source."""
    mixture = loader.dataset.mixing
    within = {"books": "inner", "web": "inner"} if "inner" in mixture.names else {}
    came = Counter(within.get(name, name) for batch in batches for name, *_ in batch)
    told = loader.stats()["sources"]
    assert {name: each["samples"] for name, each in told.items()} == came
    assert {name: each["weight"] for name, each in told.items()} == pytest.approx(mixture.shares())
    assert all(each["passes"] is None for each in told.values())


@pytest.mark.parametrize("kind", KINDS)
def test_workers_decide_nothing(kind: str) -> None:
    expected = list(loader_of(kind, "all"))
    with loader_of(kind, "all", num_workers=2, verify=1) as loader:
        assert list(loader) == expected
        assert loader.stats()["slices_verified"] > 3
        assert loader.stats()["purity_failures"] == 0
        _counted(loader, expected)
    if SOAK and kind == "own":
        with loader_of(kind, "all", num_workers=1, multiprocessing_context="spawn") as loader:
            assert list(loader) == expected


def test_a_worker_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    def made(killer: str, workers: int) -> DataLoader:
        sources = {"books": Stateful("books", 80), "code": lane_data.Rows(101, killer), "web": Rows("web", 200)}
        return DataLoader(feed.mix(sources, WEIGHTS).map(str), **OPTIONS, shuffle=True, num_workers=workers)

    killer = tmp_path / "killer"
    killer.touch()
    with made(str(killer), 2) as loader:
        assert list(loader) == list(made("", 0))
        assert loader.stats()["workers_lost"] == 1


def test_hosts_decide_nothing_and_ranks_share_the_lanes(pair: Pair) -> None:
    shuffle = KINDS["streams"][1]
    expected = list(loader_of("streams", "all"))
    options: dict[str, Any] = OPTIONS | shuffle | {"collate_fn": None, "workers": pair.both, "secret_file": pair.secret}
    with DataLoader(mixed_streams("all"), **options) as loader:
        found = [list(zip(*batch[:2], strict=True)) for batch in loader]
    came = Counter(name for batch in expected for name, *_ in batch)
    told = loader.stats()["sources"]
    assert {name: each["samples"] for name, each in told.items()} == came
    weights = {name: each["weight"] for name, each in told.items()}
    assert weights == pytest.approx(WEIGHTS), "the hosts have told them, and they stay known"
    assert [[(name, int(row)) for name, row in batch] for batch in found] == [
        [output[:2] for output in batch] for batch in expected
    ]
    shared: dict[str, Any] = {"rank": 0, "world_size": LANES, "uneven": True}
    slots: dict[str, Any] = OPTIONS | shuffle | {"batch_size": 1, "global_batch_size": 4, "rank": 0, "world_size": 1}
    whole = DataLoader(streams("all"), **slots, uneven=True)
    _counted(whole, list(whole))
    ranks = [DataLoader(streams("all"), **OPTIONS, **shuffle, **shared | {"rank": rank}) for rank in range(LANES)]
    assert Counter(str(batch) for rank in ranks for batch in rank) == Counter(map(str, expected))


def test_a_source_that_begins_again_has_another_order_another_epoch_and_other_random_numbers() -> None:
    sources = {"books": Rows("books", 20), "code": Own("code", 300), "web": Own("web", 20)}
    loader = DataLoader(feed.mix(sources, WEIGHTS, until="all"), **OPTIONS, shuffle=True)
    for epoch in range(2):
        found = [output for batch in loader for output in batch]
        drawn = [number for _, _, number in found]
        assert len(set(drawn)) == len(drawn)
        books = [row for name, row, _ in found if name == "books"]
        assert Counter(books).most_common()[-1][1] >= 3  # each row in each pass
        web = {row // 1000 for name, row, _ in found if name == "web"}
        assert web == set(range(epoch, epoch + len(web)))
        assert len(web) > 5
        assert {row // 1000 for name, row, _ in found if name == "code"} == {epoch}
    two = feed.mix({"books": sources["books"], "web": Own("web", 99)}, {"books": 1, "web": 1}, until="all")
    alone = DataLoader(two, batch_size=1, num_shards=1, seed=5, shuffle=True, collate_fn=list)
    books = [batch[0][1] for batch in alone if batch[0][0] == "books"]
    passes = [books[at : at + 20] for at in range(0, 60, 20)]
    assert [sorted(each) for each in passes] == [list(range(20))] * 3
    assert len({tuple(each) for each in passes}) == 3


def test_datasets_of_the_users_see_their_lane_and_themselves_and_one_that_does_not_ask_is_told() -> None:
    seen: list[tuple[int, str]] = []

    class Asking(Own):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            assert info is not None
            assert info.dataset is self
            return super().__iter__()

    def init(lane: int) -> None:
        info = get_worker_info()
        assert info is not None
        seen.append((lane, info.dataset.name))

    sources = {"code": Asking("code", 50), "web": Asking("web", 50)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DataLoader(feed.mix(sources, {"code": 1, "web": 1}), **OPTIONS, worker_init_fn=init))
    assert sorted(seen) == [(lane, name) for lane in range(LANES) for name in ("code", "web")]
    mixture = feed.mix(sources | {"web": lambda: iter([("web", 1)] * 40)}, {"code": 1, "web": 1})
    with pytest.warns(UserWarning, match="did not ask get_worker_info"):
        list(DataLoader(mixture, **OPTIONS))


def test_states_that_are_too_large_together_are_not_kept_and_the_lane_is_replayed() -> None:
    def large() -> DataLoader:
        sources = {name: Stateful(name, 60, padding=40_000) for name in ("code", "web")}
        return DataLoader(feed.mix(sources, {"code": 1, "web": 1}), **OPTIONS)

    def made(loader: DataLoader, batches: int | None = None) -> list[Any]:
        with pytest.warns(UserWarning, match="has 80[0-9]{3} bytes, and 65536 are kept: lanes are replayed"):
            return list(islice(loader, batches))

    whole, loader = made(large()), large()
    batches = iter(loader)
    made(batches, 9)  # type: ignore[arg-type]
    state = loader.state_dict()
    assert not state["lanes"].get("tokens")
    resumed = large()
    resumed.load_state_dict(state)
    assert made(resumed) == whole[9:]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_mixed_is_told(workers: int) -> None:
    def few() -> Iterator[Any]:
        return iter([1] if share(1) else [])

    empty = feed.mix({"code": function, "few": few}, {"code": 1, "few": 1}, until="all")
    with (
        pytest.raises(PipelineError, match=r"'few' gives nothing in a lane(.|\n)*fewer lanes \(num_shards=\)"),
        DataLoader(empty, **OPTIONS, num_workers=workers) as loader,
    ):
        list(loader)
    if workers:
        return
    with pytest.raises(PipelineError, match=r"rows= needs the counts of all sources(.|\n)*'code' has none"):
        feed.mix({"code": function, "web": Rows("web", 9)}, {"code": 1, "web": 1}, rows=9)
    with pytest.raises(PipelineError, match="can be read once"):
        feed.mix({"code": iter(x for x in [1]), "web": Rows("web", 9)}, {"code": 1, "web": 1})
    with pytest.raises(ValueError, match="weights have none for 'web'"):
        feed.mix({"code": function, "web": Rows("web", 9)}, {"code": 1})
    with pytest.raises(PipelineError, match="the source 'web' has no rows"):
        feed.mix({"code": function, "web": Rows("web", 0)}, {"code": 1, "web": 1})
    with pytest.raises(ValueError, match="unspecified shuffle option"):
        DataLoader(feed.mix({"code": function}, {"code": 1}), **OPTIONS, shuffle=True)
    mine = DataLoader(streams(), **OPTIONS)
    next(iter(mine))
    for other in (streams("all"), streams(weights=WEIGHTS | {"web": 0.4})):
        with pytest.raises(PositionError, match="packed or mixed in another way"):
            DataLoader(other, **OPTIONS).load_state_dict(mine.state_dict())


def test_it_can_be_looked_at_and_packed() -> None:
    names = Counter(output[0] for output in feed.mix({name: Rows(name, COUNTED[name]) for name in COUNTED} | {
        "code": lambda: iter([("code", 1, 0.5)])}, WEIGHTS).filter(thirds))  # fmt: skip
    assert names == {"books": 40, "code": 1, "web": 106}
    texts = {"code": lambda: iter([[1] * 5] * 200), "web": lambda: iter([[2] * 3] * 200)}
    packed = feed.mix(texts, {"code": 1, "web": 3}).pack(10, method="concat")
    found = list(DataLoader(packed, 1, num_shards=1, seed=5, collate_fn=feed.stack_arrays))
    tokens = Counter(token for batch in found for token in batch["tokens"].ravel().tolist())
    assert tokens[1] / 5 == pytest.approx(tokens[2] / 9, abs=64)
    assert tokens[2] >= 190 * 3


def test_the_example_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("web", 200), ("code", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text("".join(f"{row}\n" for row in range(rows)))
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "feed-mixtures.md").read_text()
    text = page.split("## Mixtures of data without a count")[1]
    names: dict[str, Any] = {"feed": feed, "is_good": lambda row: row % 2, "functions_of": lambda row: [-row] * 3}
    exec(text.split("```python\n")[1].split("```")[0], names)
    found = Counter(row for batch in names["loader"] for row in batch.tolist())
    assert {row for row in found if row > 0} == set(range(1, 200, 2))
    assert all(found[-row] == 3 for row in range(1, 60))
