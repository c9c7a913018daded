"""Positions: what a state holds and refuses, what it is compared with, and plans that begin in their middle."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from feed_data import noise
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import PositionError
from headrace.feed import DataLoader
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.state_dict import Position, pipeline_name

HERE = Position(3, 17, 4352, "headrace", True, False, 10_000, 7, 256, 8, "m:f 0123456789abcdef")
STATE = HERE.to_state()


def ranks(n: int, batch: int, world: int, **more: Any) -> list[EpochPlan]:
    return [EpochPlan(n, batch, 7, rank=rank, world_size=world, **more) for rank in range(world)]


def taken(plans: list[EpochPlan], start: int, stop: int) -> dict[int, Any]:
    """Returns position to key of what all ranks take in the steps start..stop-1; fails if a position comes twice."""
    found: dict[int, Any] = {}
    for plan in plans:
        for step in range(start, stop):
            one = plan.batch(2, step)
            for row, key in enumerate(one.keys):
                assert one.position + row not in found
                found[one.position + row] = key
    return found


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_an_epoch_that_is_gone_on_with_elsewhere_takes_every_sample_once_in_the_same_order(data: st.DataObject) -> None:
    world, later_world = data.draw(st.integers(1, 6), "world"), data.draw(st.integers(1, 6), "later world")
    batch, later_batch = data.draw(st.integers(1, 7), "batch"), data.draw(st.integers(1, 7), "later batch")
    n = data.draw(st.integers(max(world, later_world), 120), "n")
    shuffle, drop_last = data.draw(st.booleans(), "shuffle"), data.draw(st.booleans(), "drop_last")
    before = ranks(n, batch, world, shuffle=shuffle, drop_last=drop_last)
    step = data.draw(st.integers(0, before[0].steps), "step")
    offset = before[0].consumed(step)
    assert all(plan.consumed(step) == offset for plan in before)
    assume(drop_last or not 0 < n - offset < later_world)
    after = ranks(n, later_batch, later_world, shuffle=shuffle, drop_last=drop_last, offset=offset, first_step=step)
    assert {plan.end_step for plan in after} == {after[0].end_step}
    first, rest = taken(before, 0, step), taken(after, step, after[0].end_step)
    whole = taken(ranks(n, n, 1, shuffle=shuffle), 0, 1)
    together = first | rest
    assert len(together) == len(first) + len(rest)
    assert together == {position: whole[position] for position in range(len(together))}
    dropped = (n - offset) % (later_batch * later_world) if drop_last else 0
    assert len(together) == n - dropped


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_with_the_same_global_batch_the_rest_of_the_epoch_is_cut_as_if_it_was_never_interrupted(
    data: st.DataObject,
) -> None:
    per_rank, world, later = data.draw(st.sampled_from([(12, 1, 4), (6, 2, 3), (4, 3, 1), (3, 4, 2), (1, 12, 12)]))
    n, shuffle = data.draw(st.integers(12, 150), "n"), data.draw(st.booleans(), "shuffle")
    drop_last = data.draw(st.booleans(), "drop_last")
    whole = ranks(n, 12 // later, later, shuffle=shuffle, drop_last=drop_last)
    before = EpochPlan(n, per_rank, 7, shuffle, drop_last, 0, world)
    step = data.draw(st.integers(0, min(before.steps, whole[0].steps)), "step")
    offset = before.consumed(step)
    assume(offset == whole[0].consumed(step))  # the ends differ: fewer rows than ranks join the batch before them
    for plan in whole:
        resumed = EpochPlan(
            n, plan.batch_size, 7, shuffle, drop_last, plan.rank, plan.world_size, offset=offset, first_step=step
        )
        assert list(resumed.epoch(2)) == list(plan.epoch(2, step))


def test_too_few_samples_for_the_ranks_are_refused_unless_they_are_dropped_anyway() -> None:
    with pytest.raises(ValueError, match="4 ranks cannot share the 3 samples that are left of the epoch"):
        EpochPlan(100, 8, 7, world_size=4, offset=97)
    assert EpochPlan(100, 8, 7, drop_last=True, world_size=4, offset=97).steps == 0
    assert EpochPlan(100, 8, 7, world_size=4, offset=100).steps == 0


def test_the_state_is_under_a_kilobyte_for_the_largest_numbers_and_names() -> None:
    named = noise()
    long = type(named)("package." * 200 + "module:factory", {"paths": ["x" * 1000] * 100})
    huge = 2**63 - 1
    position = Position(huge, huge, huge, "headrace", True, True, huge, huge, huge, huge, pipeline_name(long))
    assert len(json.dumps(position.to_state())) < 1024


def test_a_pipeline_s_name_differs_with_its_arguments_and_a_dataset_has_none() -> None:
    assert pipeline_name(noise(96)) == pipeline_name(noise(96)) != pipeline_name(noise(97))
    assert pipeline_name(noise(96)).startswith("feed_data:noise ")
    assert pipeline_name([1, 2, 3]) == ""


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_snapshot": {"_snapshot_step": 3}}, "not the state of a headrace DataLoader"),
        ([1, 2], "not the state of a headrace DataLoader"),
        (STATE | {"version": 2}, "of version 1: version 2"),
        (STATE | {"step": "3"}, "damaged: Expected `int`, got `str`"),
        (STATE | {"step": 1.5}, "damaged"),
        (STATE | {"step": math.nan}, "damaged"),
        (STATE | {"step": -1}, "step must not be negative, got -1"),
        (STATE | {"epoch": 10**30}, r"epoch must be below 2\*\*63, got 10{30}"),
        (STATE | {"step": 10**30, "order": "torch"}, r"step must be below 2\*\*63, got 10{30}"),
        (STATE | {"step": 4_353}, r"step must lie in \[0, 4352\], the samples of these batches, got 4353"),
        (STATE | {"samples": 10_001}, r"samples must lie in \[0, 10000\], got 10001"),
        (STATE | {"order": "own"}, "damaged"),
        (STATE | {"more": 1}, "unknown field `more`"),
        ({key: value for key, value in STATE.items() if key != "epoch"}, "missing required field `epoch`"),
    ],
)
def test_what_is_no_state_is_refused_and_the_message_says_why(state: Any, message: str) -> None:
    with pytest.raises(PositionError, match=message):
        Position.from_state(state)


def _rows() -> Iterator[int]:
    return iter(range(40))


@pytest.mark.parametrize("dataset", [list(range(40)), _rows], ids=["counted", "lanes"])
def test_a_state_with_an_absurd_number_is_refused_when_it_is_loaded(dataset: Any) -> None:
    for seed in (None, 0):
        loader = DataLoader(dataset, 4, seed=seed)
        next(iter(loader))
        state = loader.state_dict()
        for field, value in itertools.product(("epoch", "step"), (10**30, 2**63, -1, -(10**30))):
            with pytest.raises(PositionError, match=rf"{field} must .*, got {value}\b"):
                loader.load_state_dict(state | {field: value})
        loader.load_state_dict(state)
        assert sum(len(batch) for batch in loader) == 36


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taken": [[0, 10**30]]}, r"taken of lane 0 must be below 2\*\*63, got 10{30}"),
        ({"taken": [[0, -4]]}, "taken of lane 0 must not be negative, got -4"),
        ({"taken": [[1, 4]]}, r"lanes lie in \[0, 1\), got 1"),
        ({"ended": [-1]}, r"lanes lie in \[0, 1\), got -1"),
        ({"slots": -1}, "slots must not be negative, got -1"),
    ],
)
def test_a_state_of_lanes_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    loader = DataLoader(_rows, 4, seed=0)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(PositionError, match=message):
        loader.load_state_dict(state | {"lanes": state["lanes"] | change})


@pytest.mark.parametrize("state", ["", [], 0, False, "a", 7])
def test_only_an_empty_mapping_begins_at_the_beginning(state: Any) -> None:
    loader = DataLoader(list(range(40)), 4, seed=0)
    next(iter(loader))
    with pytest.raises(PositionError, match="not the state of a headrace DataLoader"):
        loader.load_state_dict(state)
    loader.load_state_dict({})
    assert loader.state_dict()["step"] == 0


@pytest.mark.parametrize("dataset", [list(range(40)), _rows], ids=["counted", "lanes"])
def test_numbers_of_batches_and_epochs_are_whole(dataset: Any) -> None:
    loader = DataLoader(dataset, 4, seed=0)
    next(iter(loader))
    for wrong in ("a", 1.5, True, [1]):
        with pytest.raises(TypeError, match=re.escape(f"batches must be a whole number, got {wrong!r}")):
            loader.state_dict(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=re.escape(f"epoch must be a whole number, got {wrong!r}")):
            loader.set_epoch(wrong)  # type: ignore[arg-type]
    for absurd in (-1, 2**63):
        with pytest.raises(ValueError, match=f"epoch must .*, got {absurd}"):
            loader.set_epoch(absurd)
    assert json.dumps(loader.state_dict(np.int64(1))) == json.dumps(loader.state_dict(1))  # type: ignore[arg-type]
    loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2
