"""The plan of an epoch: who loads what, when."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.planner import plan_fingerprint
from headrace.feed.plan.state_dict import Position

GRID = [
    (n, batch, world, drop, shuffle)
    for n, batch, world, drop, shuffle in itertools.product(
        (1, 2, 3, 7, 8, 9, 31, 64, 65), (1, 2, 3, 8, 50), (1, 2, 3, 8), (False, True), (False, True)
    )
    if n >= world
]


def ranks(n: int, batch: int, world: int, *, drop: bool, shuffle: bool) -> list[EpochPlan]:
    return [EpochPlan(n, batch, 7, shuffle, drop, rank, world) for rank in range(world)]


@pytest.mark.promise("feed", "every sample of an epoch comes exactly once over all ranks")
def test_every_sample_is_taken_by_one_rank_and_step_and_the_steps_of_all_ranks_are_alike() -> None:
    for n, batch, world, drop, shuffle in GRID:
        plans = [EpochPlan(n, batch, 7, shuffle, drop, rank, world) for rank in range(world)]
        batches = [list(plan.epoch(2)) for plan in plans]
        case = (n, batch, world, drop, shuffle)
        assert {len(own) for own in batches} == {plans[0].steps}, case
        expected = n // (batch * world) * (batch * world) if drop else n
        keys = [key for own in batches for one in own for key in one.keys]
        assert len(keys) == len(set(keys)) == expected, case
        assert set(keys) <= set(range(n)), case
        following = 0
        for step in zip(*batches, strict=True):  # their positions cover the global batch in the order of the ranks
            for one in step:
                assert one.position == following, case
                assert one.rows == batch or (one.rows >= 1 and one.step == plans[0].steps - 1), case
                following += one.rows


def test_an_epoch_can_be_entered_in_its_middle() -> None:
    plan = EpochPlan(10**9, 256, 7, shuffle=True)
    step = plan.steps // 2
    assert next(plan.epoch(0, step)) == plan.batch(0, step)


def test_ranks_that_cannot_share_the_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks cannot share 1 samples"):
        EpochPlan(1, 1, 0, world_size=2)


def test_a_step_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match=r"\[0, 4\), got 4"):
        EpochPlan(10, 3, 0).batch(0, 4)


def test_the_fingerprint_differs_when_anything_differs_that_ranks_must_agree_on() -> None:
    same = Position(0, 0, 0, "headrace", True, False, seed=1, global_batch=8, world_size=2)
    changes = [
        {"global_batch": 9},
        {"world_size": 4},
        {"seed": 2},
        {"shuffle": False},
        {"drop_last": True},
        {"window": (8, 4)},
    ]
    prints = [plan_fingerprint("m:f", msgspec.structs.replace(same, **change)) for change in [{}, *changes]]
    prints += [
        plan_fingerprint("m:g", same),
        plan_fingerprint("m:f", same, (1, 0)),
        plan_fingerprint("m:f", same, (0, 8)),
    ]
    assert len(set(prints)) == len(prints)
    assert plan_fingerprint("m:f", same) == prints[0] == "ab606dc2a540300b0ce9fc15532b58e9"
    assert len(prints[0]) == 32
