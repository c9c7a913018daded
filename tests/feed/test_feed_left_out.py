"""`on_error="skip"` in lanes: rows that steps raise over are left out and listed; all others come, at every resume."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from feed_data import flat

from headrace import feed
from headrace.errors import ShardError
from headrace.feed import DataLoader
from headrace.feed.sources.source import Source

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_shards": 3, "seed": 5, "shuffle": True, "on_error": "skip"}
ROWS = 101


class Numbers(Source):
    """Rows of which every seventh cannot be read."""

    def __init__(self) -> None:
        super().__init__([("", ROWS)], declared=False, digests=())

    def read(self, shard: int, row: int) -> int:
        if row % 7 == 0:
            raise OSError(f"row {row} is damaged")
        return row


def good(row: int) -> bool:
    if row % 10 == 3:
        raise ValueError(f"row {row} has no label")
    return random.random() < 0.8


def parts(row: int) -> Iterator[tuple[int, int, float]]:
    yield row, 0, random.random()
    if row % 10 == 4:
        raise KeyError(row)
    yield row, 1, random.random()


def stream() -> Any:
    return Numbers().filter(good).flat_map(parts)


def packed() -> Any:
    return Numbers().filter(good).map(lambda row: [row] * (1 + row % 5)).pack(4)


def cut() -> Any:
    return Numbers().filter(good).map(lambda row: [row] * (1 + row % 5)).pack(4, method="concat")


def mixture() -> Any:
    return feed.mix({"a": Numbers().filter(good), "b": Numbers().filter(bool)}, {"a": 1, "b": 2}).map(refuse)


def refuse(row: int) -> int:
    if row % 11 == 5:
        raise RuntimeError("refused")
    return row


DATA = {"stream": stream, "packed": packed, "mixture": mixture}


def test_rows_that_raise_are_left_out_and_listed_and_no_others() -> None:
    loader = DataLoader(stream(), **OPTIONS)
    found = [(int(row), int(part)) for batch in loader for row, part in zip(*batch[:2], strict=True)]
    why = {skipped.key: skipped.reason for skipped in loader.skipped}
    assert {row for row, reason in why.items() if reason.startswith("OSError")} == set(range(0, ROWS, 7))
    assert all(f"row {row} " in reason for row, reason in why.items() if "Error: row" in reason)
    kept = {row for row, _ in found}
    assert {row for row, reason in why.items() if reason == f"KeyError: {row}"} == {
        row for row in kept if row % 10 == 4
    }
    assert set(why) >= {row for row in range(ROWS) if row % 7 == 0 or row % 10 == 3}
    assert len(why) == len(loader.skipped) == loader.stats()["skipped"], "each once"
    assert not {row for row, part in found if part == 1} & set(why)
    with pytest.raises((OSError, ValueError)):
        list(DataLoader(stream(), **OPTIONS | {"on_error": "raise"}))


@pytest.mark.promise("feed-errors", '`on_error="skip"` leaves bad samples out, counts and lists them')
@pytest.mark.parametrize("kind", DATA)
def test_workers_and_resume_change_nothing(kind: str) -> None:
    collate: dict[str, Any] = {"collate_fn": feed.stack_arrays}
    plain = DataLoader(DATA[kind](), **OPTIONS, **collate)
    whole = [flat_of(batch) for batch in plain]
    assert len(whole) > 8
    listed = sorted(((skipped.key, skipped.reason) for skipped in plain.skipped), key=str)
    assert len({reason.partition(":")[0] for _, reason in listed}) > 1
    with DataLoader(DATA[kind](), **OPTIONS, **collate, num_workers=2, verify=1) as loader:
        assert [flat_of(batch) for batch in loader] == whole
        assert sorted(((skipped.key, skipped.reason) for skipped in loader.skipped), key=str) == listed
    loader = DataLoader(DATA[kind](), **OPTIONS, **collate)
    for step, _ in enumerate(itertools.islice(loader, len(whole) - 1), 1):
        state = json.loads(json.dumps(loader.state_dict()))
        for tokens in (True, False) if step % 3 == 1 else (True,):
            if not tokens:
                state["lanes"] |= {"tokens": [], "ended": []}
            resumed = DataLoader(DATA[kind](), **OPTIONS, **collate)
            resumed.load_state_dict(state)
            assert [flat_of(batch) for batch in resumed] == whole[step:], (step, tokens)
            assert {(skipped.key, skipped.reason) for skipped in resumed.skipped} <= set(listed)


@pytest.mark.parametrize("workers", [0, 2])
def test_keys_of_a_mixture_name_the_source_and_of_a_mixture_in_a_mixture_both(workers: int) -> None:
    inner = feed.mix({"x": Numbers().filter(bool), "y": Numbers().filter(good)}, {"x": 1, "y": 1})
    mixed = feed.mix({"in": inner, "b": Numbers().filter(bool)}, {"in": 2, "b": 1}, until="all").map(refuse)
    with DataLoader(mixed, **OPTIONS, num_workers=workers) as loader:
        assert len(list(loader)) > 10
        keys = [(skipped.key, skipped.reason) for skipped in loader.skipped]
    for name in ("in/x", "in/y", "b"):
        damaged = {key for key, reason in keys if reason.startswith("OSError") and str(key).startswith(f"{name}/")}
        assert damaged <= {f"{name}/{row}" for row in range(0, ROWS, 7)}
        assert damaged
    assert {str(key).rpartition("/")[0] for key, reason in keys if reason.startswith("ValueError")} == {"in/y"}
    refused = [key for key, reason in keys if reason.startswith("RuntimeError")]
    assert refused
    assert all(type(key) is int for key in refused), "a step behind the mixture counts its outputs"


@pytest.mark.promise("feed-errors", '`on_error="skip"` leaves bad samples out, counts and lists them')
@pytest.mark.parametrize("kind", [*DATA, "cut"])
def test_rows_are_listed_with_the_batch_behind_which_a_run_goes_on(kind: str) -> None:
    """Also where the outputs of several batches are asked for at once: a rank with several slots."""
    options = OPTIONS | {"batch_size": 1, "global_batch_size": 3, "collate_fn": feed.stack_arrays}
    made = (DATA | {"cut": cut})[kind]
    loader = DataLoader(made(), **options)
    passes = iter(loader)
    at = [loader.state_dict() for _ in itertools.islice(passes, 14)]
    list(passes)
    whole = [(skipped.step, skipped.key, skipped.reason) for skipped in loader.skipped]
    for step, state in enumerate(at, 1):
        resumed = DataLoader(made(), **options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        list(resumed)
        found = [(skipped.step, skipped.key, skipped.reason) for skipped in resumed.skipped]
        assert sorted(found, key=str) == sorted((told for told in whole if told[0] >= step), key=str)


def flat_of(batch: Any) -> bytes:
    return flat(list(batch.values()) if isinstance(batch, dict) else batch)


def changed(row: int) -> int:
    if row == 50:
        raise ShardError("the shard was changed")
    return row


def test_what_headrace_raises_and_a_dataset_of_ones_own_are_not_left_out() -> None:
    with pytest.raises(ShardError, match="the shard was changed"):
        list(DataLoader(Numbers().filter(bool).map(changed), **OPTIONS))
    with pytest.raises(ValueError, match=r'on_error="skip" leaves out rows(.|\n)*its lane has ended'):
        DataLoader(lambda: iter([1]), 1, num_shards=1, on_error="skip")


class Whole(Numbers):
    """Rows that can all be read."""

    def read(self, shard: int, row: int) -> int:
        return row


def _ends(row: int) -> list[int]:
    return next(iter(())) if row == 1 else [row]


@pytest.mark.parametrize("method", ["map", "filter", "flat_map"])
def test_a_step_that_raises_stop_iteration_is_an_error_and_drops_no_row_unseen(method: str) -> None:
    rows = getattr(Whole().filter(lambda row: True), method)(_ends)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(rows)
