"""`in_order=False`: a slow batch holds nothing up, every batch comes once, and training goes on behind any batch."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from effort import SOAK

from headrace import feed
from headrace.errors import PositionError
from headrace.feed import DataLoader
from headrace.feed.plan.bookmark import Place, Progress
from headrace.feed.plan.state_dict import packed_steps, unpacked_steps

WINDOW = 6
STEPS = 20
ROWS = 4
EARLY = 6  # batches that come while batch 3 does not, at least; two may be on their way with it, as on a busy machine


class Gated(torch.utils.data.Dataset[Any]):
    """The sample of an index; one of them comes when a file is there."""

    def __init__(self, gate: Path, slow: int) -> None:
        self.gate, self.slow = gate, slow

    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, index: int) -> Any:
        while index == self.slow and not self.gate.exists():
            time.sleep(0.002)
        return index, torch.rand(2)


def loader_of(dataset: Any, **options: Any) -> DataLoader:
    chosen: dict[str, Any] = {
        "batch_size": ROWS, "shuffle": True, "seed": 5, "num_workers": 2, "prefetch_factor": 2, "hedge": False,
        "verify": 0, "in_order": False,
    } | options  # fmt: skip
    return DataLoader(dataset, **chosen)


def flat(batch: Any) -> tuple[tuple[int, ...], bytes]:
    return tuple(batch[0].tolist()), batch[1].numpy().tobytes()


def saved(loader: DataLoader) -> dict[str, Any]:
    text = json.dumps(loader.state_dict())
    assert len(text) < 1024
    state: dict[str, Any] = json.loads(text)
    return state


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def plain(gate: Path, **options: Any) -> list[Any]:
    """The batches in their order."""
    with loader_of(Gated(gate, -1), num_workers=0, prefetch_factor=None, in_order=True, **options) as loader:
        return [flat(batch) for batch in loader]


@pytest.mark.promise("feed", "`in_order=False`: each batch comes once, a slow one delays none, resume is exact")
@pytest.mark.parametrize("seed", [5, None], ids=["own order", "torch's order"])
def test_a_slow_batch_holds_nothing_up_and_training_goes_on_behind_any_batch(gate: Path, seed: int | None) -> None:
    torch.manual_seed(0)
    exact = plain(gate, seed=seed)
    slow = exact[3][0][1]
    torch.manual_seed(0)
    with loader_of(Gated(gate, slow), seed=seed) as loader:
        batches = iter(loader)
        came, states = [], []
        for _ in range(EARLY):
            came.append(flat(next(batches)))
            states.append(saved(loader))
        assert exact[3] not in came, "it is not there yet"
        gate.touch()
        came += map(flat, batches)
    assert sorted(came) == sorted(exact)
    ways: tuple[dict[str, Any], ...] = ({}, {"in_order": True}, {"num_workers": 0, "prefetch_factor": None})
    for turn, taken in enumerate((2, 4, EARLY)):
        for options in ways if SOAK else (ways[(turn + bool(seed)) % 3],):
            with loader_of(Gated(gate, -1), seed=seed, **options) as loader:
                loader.load_state_dict(states[taken - 1])
                left = iter(loader)
                following = [flat(next(left))]
                given = {exact.index(batch) for batch in [*came[:taken], *following]}
                missing = next(step for step in range(STEPS) if step not in given)
                assert ("ahead" in saved(loader)) == (max(given) > missing), (taken, options)
                following += map(flat, left)
            assert sorted(following) == sorted(came[taken:]), f"after {taken} batches, {options}"


@pytest.mark.promise("feed", "`in_order=False`: each batch comes once, a slow one delays none, resume is exact")
def test_what_a_state_says_of_one_rank_is_refused_by_others(gate: Path) -> None:
    ranks = {"batch_size": 1, "global_batch_size": 2 * ROWS, "world_size": 2}
    exact = plain(gate, **ranks, rank=1)
    with loader_of(Gated(gate, exact[0][0][0]), **ranks, rank=1) as loader:
        batches = iter(loader)
        came = [flat(next(batches)) for _ in range(2)]
        state = saved(loader)
        gate.touch()
    assert state["step"] == 0
    assert state["ahead"]["rank"] == 1
    with loader_of(Gated(gate, -1), **ranks, rank=1) as loader:
        loader.load_state_dict(state)
        assert sorted([*came, *map(flat, loader)]) == sorted(exact)
    for other in (
        {**ranks, "rank": 0},
        {"batch_size": ROWS},
        {"global_batch_size": ROWS, "world_size": 2, "rank": 1, "batch_size": 1},
    ):
        with loader_of(Gated(gate, -1), **other) as loader:
            loader.load_state_dict(state)
            with pytest.raises(PositionError, match="given before their turn"):
                iter(loader)


def test_a_broken_off_pass_is_gone_on_with_and_places_behind_others_are_not_known(gate: Path) -> None:
    exact = plain(gate)
    with loader_of(Gated(gate, exact[1][0][0]), persistent_workers=True) as loader:
        batches = iter(loader)
        came = [flat(next(batches)) for _ in range(3)]
        with pytest.raises(PositionError, match="did not come in their order"):
            loader.state_dict(2)
        state = saved(loader)
        gate.touch()
        del batches
        loader.load_state_dict(state)
        came += map(flat, loader)
        assert sorted(came) == sorted(exact)
        assert len(list(loader)) == STEPS, "the next epoch is whole"


def in_lanes() -> Iterator[int]:
    """The first lane is slow."""
    lane = feed.lane()
    assert lane is not None
    for number in range(lane.id, 12, lane.num_workers):
        time.sleep(0.0 if lane.id else 0.05)
        yield number


def test_lanes_keep_their_order() -> None:
    with DataLoader(in_lanes, 2, num_workers=2, num_shards=2, hedge=False, in_order=False) as loader:
        batches = [batch.tolist() for batch in loader]
    assert batches == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]


def test_the_place_is_the_first_batch_that_is_missing() -> None:
    chance = random.Random(3)
    progress, taken = Progress(0), set()
    for _ in range(2000):
        step = chance.choice([step for step in range(progress.step, progress.step + WINDOW) if step not in taken])
        taken.add(step)
        progress.took(step)
        assert progress.step == next(step for step in range(3000) if step not in taken)
        assert progress.ahead == {step for step in taken if step > progress.step}
        if progress.ahead:
            packed = packed_steps(progress.step, progress.ahead)
            assert unpacked_steps(progress.step, packed) == progress.ahead
        taken = {step for step in taken if step >= progress.step - 1}
        taken |= set(range(progress.step))
    assert progress.strayed
    assert progress.place == Place(progress.step, progress.ahead)
    for wrong in ("", "x", "0", "-1", "1" + 64 * "0"):
        with pytest.raises(ValueError):
            unpacked_steps(0, wrong)
