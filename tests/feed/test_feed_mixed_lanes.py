"""Streams over mixtures: `.filter`, `.flat_map` and `.pack` behind `feed.mix`, in lanes of the mixture's own order."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import pytest
from effort import SOAK
from feed_data import flat
from feed_servers import Pair
from mixed_rows import mixed_rows
from mixture_data import ROWS, WEIGHTS, made, mixed_stream
from packed_reference import sequences

from headrace import feed
from headrace.errors import PositionError
from headrace.feed import DataLoader, Window

NAMES = tuple(sorted(ROWS))
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_shards": 3, "seed": 5}
MIXTURES = [(None, None), ("all", None), (None, 75)]


def kept(row: Any) -> bool:
    return int(row[0][1]) % 3 != 1


def parts(row: Any) -> Iterator[Any]:
    for part in range(int(row[0][1]) % 3):
        yield row, part, random.random()


def tokens_of(row: Any) -> list[int]:
    source, number = row[0].tolist()
    return [source * 100 + number] * (1 + number % 7)


def streamed(until: Any = None, rows: int | None = None, weights: Any = None) -> Any:
    mixture = made(until, rows) if weights is None else made(until, rows, weights)
    return mixture.filter(kept).flat_map(parts)


def lanes_of(until: Any, rows: int | None, epoch: int, shuffle: Any) -> list[list[tuple[int, int]]]:
    """Source and row of every place of the mixture's order, lane by lane, from the reference."""
    mixture, taken = made(until, rows), [0] * len(NAMES)
    for earlier in range(epoch + 1):
        told = mixed_rows(
            NAMES,
            tuple(ROWS[name] for name in NAMES),
            {0: tuple(WEIGHTS[name] for name in NAMES)},
            len(DataLoader(mixture, 1, shuffle=True, seed=5)),
            OPTIONS["seed"],
            earlier,
            shuffle,
            list(taken) if rows else None,
        )
        order = [place for place, _ in zip(told, range(len(DataLoader(mixture, 1, seed=5))), strict=False)]
        for source, _ in order:
            taken[source] += 1
    ends = [len(order) * lane // 3 for lane in range(4)]
    return [order[begin:end] for begin, end in pairwise(ends)]


def in_turns(lanes: list[list[Any]], rows: int) -> list[list[Any]]:
    """The batches of lanes that take turns."""
    cut = [[lane[at : at + rows] for at in range(0, len(lane), rows)] for lane in lanes]
    return [batch for turn in zip_longest(*cut) for batch in turn if batch]


@pytest.mark.parametrize("shuffle", [True, (2, 3)])
@pytest.mark.parametrize(("until", "rows"), MIXTURES)
def test_lanes_take_the_mixtures_order_one_part_each(until: str | None, rows: int | None, shuffle: Any) -> None:
    window = Window(*shuffle) if isinstance(shuffle, tuple) else shuffle
    with DataLoader(made(until, rows).filter(kept), **OPTIONS, shuffle=window) as loader:
        for epoch in range(2):
            found = [[tuple(row) for row in batch[0].tolist()] for batch in loader]
            lanes = [[row for row in lane if row[1] % 3 != 1] for lane in lanes_of(until, rows, epoch, shuffle)]
            # lanes of other lengths end at other turns; until the first has ended, they take turns
            turns = 3 * (min(map(len, lanes)) // 4)
            assert found[:turns] == in_turns(lanes, 4)[:turns]
            assert Counter(row for batch in found for row in batch) == Counter(row for lane in lanes for row in lane)


def test_rows_that_come_again_in_an_epoch_draw_other_random_numbers() -> None:
    with DataLoader(streamed("all"), **OPTIONS, shuffle=True) as loader:
        drawn = [number for batch in loader for number in batch[2].tolist()]
    assert len(set(drawn)) == len(drawn) > sum(ROWS.values()) // 2


@pytest.mark.parametrize(("until", "rows"), MIXTURES)
def test_it_goes_on_at_every_step_with_and_without_the_tokens(until: str | None, rows: int | None) -> None:
    loader = DataLoader(streamed(until, rows), **OPTIONS, shuffle=True)
    epochs = [[flat(batch) for batch in loader] for _ in range(2)]
    whole, first = [*epochs[0], *epochs[1]], len(epochs[0])
    loader = DataLoader(streamed(until, rows), **OPTIONS, shuffle=True)
    passes = (batch for _ in range(2) for batch in loader)
    for step in range(1, len(whole)):
        assert flat(next(passes)) == whole[step - 1]
        if step % (7 if SOAK else 14) not in (1, 4):
            continue
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 2000
        for tokens in (True, False):
            if not tokens:
                state["lanes"] |= {"tokens": [], "ended": []}
            with DataLoader(streamed(until, rows), **OPTIONS, shuffle=True) as resumed:
                resumed.load_state_dict(state)
                assert [flat(batch) for batch in resumed] == whole[step : first if step <= first else None]
                assert step > first or [flat(batch) for batch in resumed] == epochs[1]


def test_packed_documents_are_in_the_shares_of_the_mixture() -> None:
    how: dict[str, Any] = {"length": 16, "block": 7, "method": "concat"}
    data = made("all").map(tokens_of).pack(**how)
    with DataLoader(data, **OPTIONS, shuffle=True, collate_fn=feed.stack_arrays) as loader:
        found = [tuple(row) for batch in loader for row in batch["tokens"].tolist()]
        stats = loader.stats()
    lanes = [[[source * 100 + row] * (1 + row % 7) for source, row in lane] for lane in lanes_of("all", None, 0, True)]
    expected = [row for lane in lanes for row in sequences(lane, separator=None, padding=0, **how)]
    assert Counter(found) == Counter(tuple(row["tokens"].tolist()) for row in expected)
    assert stats["tokens"] == sum(len(document) for lane in lanes for document in lane)


def test_workers_and_hosts_decide_nothing(pair: Pair) -> None:
    options: dict[str, Any] = OPTIONS | {"shuffle": Window(4, 3)}
    expected = [flat(batch) for batch in DataLoader(mixed_stream("all").build(), **options)]
    with DataLoader(mixed_stream("all").build(), **options, num_workers=2, verify=1) as loader:
        assert [flat(batch) for batch in loader] == expected
        assert loader.stats()["slices_verified"] > 3
    with DataLoader(mixed_stream("all"), **options, workers=pair.both, secret_file=pair.secret) as loader:
        assert [flat(batch) for batch in loader] == expected


def test_a_state_of_other_weights_is_refused_and_lanes_have_the_schedule() -> None:
    mine = DataLoader(streamed(), **OPTIONS, shuffle=True)
    next(iter(mine))
    other = DataLoader(streamed(weights={"web": 0.5, "code": 0.3, "books": 0.2}), **OPTIONS, shuffle=True)
    with pytest.raises(PositionError, match="packed or mixed in another way"):
        other.load_state_dict(mine.state_dict())
    phases = [(0, WEIGHTS), (32, {"web": 0, "code": 1, "books": 0})]
    changed = DataLoader(streamed(weights=phases), **OPTIONS | {"num_shards": 1})
    found = [{int(source) for source in batch[0][0][:, 0]} for batch in changed]
    assert found[0] != {1}
    assert found[-1] == {1}


def test_the_shares_hold_in_every_lane() -> None:
    rows = 20_000
    sources = {"a": range(rows), "b": range(rows, 2 * rows)}
    mixture = feed.mix(sources, {"a": 3, "b": 1}, rows=rows)  # type: ignore[arg-type]
    with DataLoader(mixture.filter(bool), 50, num_shards=4, shuffle=True, seed=1) as loader:
        of_b = np.cumsum([(batch >= rows).numpy().sum() for batch in loader])
    taken = 50 * (1 + np.arange(len(of_b)))
    assert np.abs(of_b - taken / 4).max() < 4 * 64, "four lanes, each at most a window of 64 off"
