"""A loader goes on where another one was, with the same bits: any step, ranks, workers, order; and what it refuses."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feed_trainer
import lane_data
import mixture_data
import numpy as np
import pytest
import torch
from effort import SOAK
from feed_data import Noise, flat, noise, raising
from feed_servers import Pair, wait_until

from headrace import feed
from headrace.errors import PipelineError, PositionError
from headrace.feed import DataLoader
from headrace.feed.plan import epoch
from headrace.feed.plan.orders import order

OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}


def saved(loader: DataLoader, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the state as it comes back from a file."""
    text = json.dumps(loader.state_dict() if state is None else state)
    assert len(text) < 1024
    found: dict[str, Any] = json.loads(text)
    return found


def take(loader: DataLoader, count: int) -> list[bytes]:
    """Takes batches of one pass and leaves it."""
    batches = iter(loader)
    return [flat(next(batches)) for _ in range(count)]


def rest(dataset: Any, state: dict[str, Any], epochs: int = 1, **options: Any) -> list[bytes]:
    with DataLoader(dataset, **(OPTIONS | options)) as loader:
        loader.load_state_dict(state)
        return [flat(batch) for _ in range(epochs) for batch in loader]


@pytest.mark.promise("feed-resume", "training resumes behind the last batch at once, with other workers and ranks too")
def test_another_loader_goes_on_at_any_step_with_any_workers(pair: Pair, epochs: Callable[..., Any]) -> None:
    whole = epochs(noise(), 2)
    with DataLoader(noise(), **OPTIONS, num_workers=2) as loader:
        states = [saved(loader)]
        for step, batch in enumerate(loader):
            assert flat(batch) == whole[step]
            states.append(saved(loader))
    ways: list[dict[str, Any]] = [
        {}, {"num_workers": 3, "prefetch_factor": 1}, {"workers": pair.both, "secret_file": pair.secret}
    ]  # fmt: skip
    for step in (0, 1, 5, 11, 12):
        state = states[step]
        assert (state["epoch"], state["step"], state["samples"]) == (0, step, 8 * step)
        for options in ways if SOAK else (ways[0], ways[1 + step % 2]):
            assert rest(noise(), state, 2, **options) == whole[step:]


def test_a_state_taken_while_served_goes_on_in_this_process(pair: Pair, epochs: Callable[..., Any]) -> None:
    with DataLoader(noise(), **OPTIONS, workers=pair.mixed, secret_file=pair.secret) as loader:
        take(loader, 12)
        assert take(loader, 7)
        state = saved(loader)
    assert (state["epoch"], state["step"]) == (1, 7)
    assert rest(noise(), state) == epochs(noise(), 2)[19:]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_at_an_epoch_s_end_is_the_beginning_of_the_next(workers: int) -> None:
    with DataLoader(Noise(24), **OPTIONS, num_workers=workers) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        inside = saved(loader)
        assert next(batches, None) is None
        after = saved(loader)
    assert (inside["epoch"], inside["step"]) == (0, 3)
    assert (after["epoch"], after["step"], after["samples"]) == (1, 0, 0)
    with DataLoader(Noise(24), **OPTIONS, num_workers=workers) as loader:
        loader.load_state_dict(inside)
        assert list(loader) == []  # as torchdata: the epoch that the trainer's loop counts is over
        assert saved(loader) == after
        assert len(list(loader)) == len(loader) == 3


def by_index(batches: list[Any]) -> dict[int, bytes]:
    """Returns the bits of every sample by its index; fails if one comes twice."""
    found: dict[int, bytes] = {}
    for tensor, indices, extra in batches:
        for row, index in enumerate(indices.tolist()):
            assert index not in found
            found[index] = flat([tensor[row], extra["np"][row], float(extra["py"][row])])
    return found


def run_ranks(world: int, batch: int, state: dict[str, Any] | None, steps: int | None) -> tuple[list[Any], Any]:
    batches, states = [], []
    for rank in range(world):
        with DataLoader(noise(95), batch, True, seed=3, rank=rank, world_size=world) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            while steps is None or len(batches) < steps * (rank + 1):
                found = next(iterator, None)
                if found is None:
                    break
                batches.append(found)
            states.append(saved(loader))
    assert all(other == states[0] for other in states)
    return batches, states[0]


@pytest.mark.promise("feed-resume", "training resumes behind the last batch at once, with other workers and ranks too")
@pytest.mark.parametrize(("world", "batch"), [(1, 12), (3, 4), (4, 3), (5, 2), (2, 7)])
def test_other_numbers_of_ranks_and_rows_take_the_rest_once_with_the_same_bits(world: int, batch: int) -> None:
    first, state = run_ranks(2, 6, None, 3)
    assert (state["samples"], state["world_size"], state["global_batch"]) == (36, 2, 12)
    second, _ = run_ranks(world, batch, state, 2)
    middle = state | {"step": 5, "samples": 36 + 2 * world * batch}
    third, _ = run_ranks(1, 5, middle, None)
    assert by_index(first + second + third) == by_index(run_ranks(1, 12, None, None)[0])


def test_too_few_samples_for_the_new_ranks_are_refused_with_a_way_out() -> None:
    with DataLoader(noise(17), 8, True, seed=3, rank=0, world_size=1) as loader:
        take(loader, 2)
        state = saved(loader)
    with DataLoader(noise(17), 2, True, seed=3, rank=0, world_size=4) as loader:
        loader.load_state_dict(state)
        with pytest.raises(PositionError, match=r"4 ranks cannot share the 1 samples.*\nhint: resume on fewer ranks"):
            iter(loader)
        loader.set_epoch(1)
        assert len(list(loader)) == 2


class Endless(Noise):
    """Pretends to have a billion samples."""

    def __init__(self) -> None:
        super().__init__(10**9)

    def __getitem__(self, index: int) -> Any:
        return index


@pytest.mark.promise("feed-resume", "training resumes behind the last batch at once, with other workers and ranks too")
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_billion_samples_are_entered_in_the_middle_without_walking_there(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated, planned = [], []
    permute, batches = order.permute, epoch.EpochPlan._batches
    monkeypatch.setattr(order, "permute", lambda at, n, key: evaluated.append(at.size) or permute(at, n, key))
    monkeypatch.setattr(epoch.EpochPlan, "_batches", lambda *at: planned.append(at[2:]) or batches(*at))
    with DataLoader(Endless(), 256, shuffle, seed=3) as loader:
        state = saved(loader) | {"step": 1_000_000, "samples": 256_000_000}
        loader.load_state_dict(state)
        [found] = take(loader, 1)
        assert planned == [(1_000_000, 1_000_001)]
        assert sum(evaluated) == (256 if shuffle else 0)
        assert saved(loader)["step"] == 1_000_001
        assert len(loader) == 3_906_250
    keys = epoch.EpochPlan(10**9, 256, 3, shuffle).batch(0, 1_000_000).keys
    assert found == flat(torch.tensor(keys))


def test_torch_s_sequential_order_is_entered_without_walking_there() -> None:
    with DataLoader(Endless(), 256) as loader:
        loader.load_state_dict(saved(loader) | {"step": 3_000_000, "samples": 768_000_000, "seed": 5})
        assert take(loader, 1) == [flat(torch.arange(768_000_000, 768_000_256))]


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_while_a_pass_is_under_way_begins_the_next_pass_there(workers: int) -> None:
    options = OPTIONS | ({"num_workers": workers, "persistent_workers": True} if workers else {})
    with DataLoader(Noise(), **options) as loader:
        whole = [flat(batch) for _ in range(2) for batch in loader]
        batches = iter(loader)
        next(batches)
        state = saved(loader) | {"epoch": 0, "step": 4, "samples": 32}
        loader.load_state_dict(state)
        assert saved(loader) == state
        next(batches)  # the pass that is under way is not touched
        assert [flat(batch) for batch in loader] == whole[4:12]
        del batches
        assert [flat(batch) for batch in loader] == whole[12:]
        loader.load_state_dict({})
        assert [flat(batch) for batch in loader] == whole[:12]


def test_a_pass_that_ends_after_a_load_does_not_hand_its_plan_on() -> None:
    with DataLoader(Noise(), **OPTIONS, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        state = saved(loader) | {"epoch": 1, "step": 0, "samples": 0, "seed": 3}
        loader.load_state_dict(state)
        assert len(list(batches)) == 12
        expected = [flat(batch) for batch in DataLoader(Noise(), **OPTIONS, num_workers=0)]
        loader.load_state_dict(state | {"epoch": 0})
        assert [flat(batch) for batch in loader] == expected


def test_set_epoch_keeps_a_position_of_that_epoch_and_leaves_another_with_a_warning() -> None:
    with DataLoader(Noise(), **OPTIONS) as loader:
        loader.set_epoch(4)
        take(loader, 5)
        state = saved(loader)
        loader.load_state_dict(state)
        loader.set_epoch(4)
        assert len(list(loader)) == 7
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"set_epoch\(0\) leaves the position that was loaded: step 5 of epoch 4"):
            loader.set_epoch(0)
        assert len(list(loader)) == 12


SETTLED: dict[str, dict[str, Any]] = {
    "own order": OPTIONS,
    "in order": OPTIONS | {"shuffle": False},
    "workers": OPTIONS | {"num_workers": 2},
    "workers that stay": OPTIONS | {"num_workers": 2, "persistent_workers": True},
    "lanes": {"batch_size": 8, "seed": 3, "num_shards": 2},
    "lanes of workers": {"batch_size": 8, "seed": 3, "num_workers": 2},
    "a mixture": OPTIONS,
}


def settled(name: str, **options: Any) -> DataLoader:
    """Returns a loader."""
    datasets: dict[str, Callable[[], Any]] = {
        "lanes": lambda: lane_data.Rows(96),
        "lanes of workers": lambda: lane_data.Rows(96),
        "a mixture": mixture_data.made,
    }
    return DataLoader(datasets.get(name, Noise)(), **(SETTLED[name] | options))


@functools.cache
def first_epochs(name: str) -> list[list[bytes]]:
    """Returns what the first five epochs of `settled` hold, which workers do not change."""
    alone = {"num_workers": 0, "persistent_workers": False}
    with settled(name, **alone, **({"num_shards": 2} if "lanes" in name else {})) as loader:
        return [[flat(batch) for batch in loader] for _ in range(5)]


@pytest.mark.promise("feed-resume", "the epoch of a pass is settled at its first batch; its states stay true")
@pytest.mark.parametrize("name", SETTLED)
def test_which_epoch_a_pass_is_is_settled_when_its_first_batch_is_asked_for(name: str) -> None:
    loader, epochs = settled(name), first_epochs(name)
    with loader:
        batches = iter(loader)
        loader.set_epoch(0)  # its own: nothing changes
        assert [flat(next(batches)) for _ in range(3)] == epochs[0][:3]
        state = saved(loader)
        assert (state["epoch"], state["step"]) == (0, 3)
        for other in (0, 4):  # of a pass that is under way it is the next one's
            loader.set_epoch(other)
            assert saved(loader) == state
        assert [flat(batch) for batch in batches] == epochs[0][3:]
        assert [flat(batch) for batch in loader] == epochs[4]
        batches = iter(loader)
        loader.set_epoch(2)
        assert (saved(loader)["epoch"], saved(loader)["step"]) == (2, 0)
        assert [flat(batch) for batch in batches] == epochs[2]
        batches = iter(loader)
        loader.load_state_dict(state)
        assert [flat(batch) for batch in batches] == epochs[0][3:]
        first, second = iter(loader), iter(loader)
        assert [flat(batch) for batch in second] == epochs[1]
        assert [flat(batch) for batch in first] == epochs[2]
        batches = iter(loader)
        next(batches)
        loader.set_epoch(3)  # somebody has looked at a batch, and begins the epoch anew
        assert [flat(batch) for batch in loader] == epochs[3]
        assert [flat(batch) for batch in loader] == epochs[4]


@pytest.mark.promise("feed-resume", "the epoch of a pass is settled at its first batch; its states stay true")
@pytest.mark.parametrize("name", SETTLED)
def test_a_state_behind_the_last_batch_serves_those_that_enter_the_epoch_again_and_those_that_do_not(name: str) -> None:
    loader, epochs = settled(name), first_epochs(name)
    with loader:
        batches = iter(loader)
        for _ in epochs[0]:
            next(batches)
        state = saved(loader)
    for enter in (True, False):
        for begun in (True, False):
            loader = settled(name)
            loader.load_state_dict(state)
            with loader, warnings.catch_warnings():
                if "lanes" in name or "mixture" in name:  # where that epoch ends need not be known
                    warnings.filterwarnings("ignore", message="set_epoch.1. leaves the position")
                batches = iter(loader) if begun else None
                loader.set_epoch(0 if enter else 1)
                found = [flat(batch) for batch in (batches if batches is not None else loader)]
                assert found == ([] if enter else epochs[1])
                assert [flat(batch) for batch in loader] == epochs[1 if enter else 2]


@pytest.mark.parametrize("even", [True, "full"])
def test_a_state_behind_a_batch_that_was_filled_up_leaves_nothing(even: Any) -> None:
    ranks: dict[str, Any] = {"rank": 0, "world_size": 2, "even_batches": even}
    loader = DataLoader(Noise(41), **OPTIONS, **ranks)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = saved(loader)
    assert state["samples"] == 41
    assert rest(Noise(41), state, **ranks) == []
    assert rest(Noise(41), state, 1, batch_size=1, rank=0, world_size=1, even_batches=even) == []


def test_after_an_error_of_the_dataset_the_position_is_behind_its_batch() -> None:
    for workers in (0, 2):
        with DataLoader(raising(), batch_size=8, seed=1, num_workers=workers) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(KeyError):
                next(batches)
            state = saved(loader)
        assert state["step"] == 2
        with DataLoader(raising(), batch_size=8, seed=1, num_workers=workers) as loader:
            loader.load_state_dict(state)
            assert next(iter(loader))[1].tolist() == list(range(16, 24))


def test_the_metrics_go_on_in_the_epoch_that_was_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(Noise(), **OPTIONS) as loader:
        loader.set_epoch(6)
        take(loader, 9)
        state = saved(loader)
    monkeypatch.setenv("HEADRACE_METRICS", str(tmp_path / "metrics"))
    with DataLoader(Noise(), **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3
        assert loader.stats()["steps"] == 3
        assert len(list(loader)) == 12
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert [(line["epoch"], line["steps"]) for line in lines] == [(6, 3), (7, 12)]


@pytest.mark.promise("feed-resume", "a state of another plan or pipeline is refused")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": Noise(95)}, "saved with length=96, the loader has length=95"),
        ({"seed": 4}, "saved with seed=3, the loader has seed=4"),
        ({"seed": 0}, "saved with seed=3, the loader has seed=0"),
        ({"shuffle": False}, "saved with shuffle=True, the loader has shuffle=False"),
        ({"drop_last": True}, "saved with drop_last=False, the loader has drop_last=True"),
        ({"seed": None}, "saved with order='headrace', the loader has order='torch'"),
    ],
)
def test_a_state_of_another_plan_is_refused(change: dict[str, Any], message: str) -> None:
    state = saved(DataLoader(Noise(), **OPTIONS))
    loader = DataLoader(**({"dataset": Noise()} | OPTIONS | change))
    with pytest.raises(PositionError, match=message) as error:
        loader.load_state_dict(state)
    assert error.value.hint


@pytest.mark.promise("feed-resume", "a state of another plan or pipeline is refused")
def test_a_state_of_another_pipeline_is_refused_and_the_hint_says_how_to_insist(pair: Pair) -> None:
    state = saved(DataLoader(noise(96), **OPTIONS))
    with DataLoader(noise(96, rows=2), **OPTIONS, workers=pair.a.tcp, secret_file=pair.secret) as loader:
        with pytest.raises(PositionError, match=r'saved with pipeline=.*\nhint: .* state\["pipeline"\] = ""'):
            loader.load_state_dict(state)
        loader.load_state_dict(state | {"pipeline": "", "step": 1, "samples": 8})
        assert len(list(loader)) == 11


def test_a_length_that_only_the_workers_know_is_compared_when_the_pass_begins(pair: Pair) -> None:
    with DataLoader(noise(96), **OPTIONS) as loader:
        take(loader, 2)
        state = saved(loader)
    with DataLoader(noise(80), **OPTIONS, workers=pair.a.tcp, secret_file=pair.secret) as loader:
        loader.load_state_dict(state | {"pipeline": ""})
        with pytest.raises(PositionError, match="saved with length=96, the loader has length=80"):
            iter(loader)


def test_a_seed_that_was_drawn_is_taken_from_the_state(epochs: Callable[..., Any]) -> None:
    torch.manual_seed(1)
    with DataLoader(noise(), 8, True) as loader:
        take(loader, 4)
        state = saved(loader)
    torch.manual_seed(2)
    assert rest(noise(), state, 2, seed=None) == epochs(noise(), 2, seed=state["seed"])[4:]


def test_ranks_that_go_on_from_different_places_are_told(pair: Pair) -> None:
    options = OPTIONS | {"world_size": 2, "workers": pair.a.tcp, "secret_file": pair.secret, "name": "places"}
    with DataLoader(noise(), **options, rank=0) as first, DataLoader(noise(), **options, rank=1) as second:
        begin = saved(DataLoader(noise(), **OPTIONS)) | {"length": 96}
        first.load_state_dict(begin | {"step": 1, "samples": 16})
        second.load_state_dict(begin | {"step": 2, "samples": 32})
        next(iter(first))
        with pytest.raises(PipelineError, match="rank 1 and rank 0 have different plans"):
            next(iter(second))


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.usefixtures("without_torch")
def test_a_trainer_that_is_killed_and_started_again_goes_on(served: bool, tmp_path: Path, pair: Pair) -> None:
    workers, secret = (pair.a.tcp, pair.secret) if served else ("", "")
    book = tmp_path / "book"
    command = [sys.executable, feed_trainer.__file__, str(book), workers, secret, "2"]
    lines: Callable[[], list[str]] = lambda: book.read_text().splitlines() if book.exists() else []  # noqa: E731
    rng = np.random.default_rng(seed := time.time_ns())
    print("seed", seed)
    goal = rng.integers(1, 15)
    trainer = subprocess.Popen(command)
    try:
        wait_until(lambda: len(lines()) >= goal, f"{goal} steps", 60.0)
    finally:
        trainer.kill()
        trainer.wait()
    subprocess.run(command, check=True, timeout=60)
    found = [json.loads(line) for line in lines()]
    feed_trainer.main(str(tmp_path / "whole"), "", "", 2)
    expected = [json.loads(line) for line in (tmp_path / "whole").read_text().splitlines()]
    assert len(found) == len(expected) == 48
    assert [line["batch"] for line in found] == [line["batch"] for line in expected]
    assert len({line["pid"] for line in found}) == 2


def test_the_example_in_the_docs_resumes(tmp_path: Path, epochs: Callable[..., Any]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "feed-resume.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    trained: list[bytes] = []

    def train(batch: Any) -> None:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(flat(batch))

    names = {"feed": feed, "json": json, "checkpoint": tmp_path / "state", "train_set": noise, "train": train}
    with pytest.raises(KeyboardInterrupt):
        exec(code, names)
    names["train"] = lambda batch: trained.append(flat(batch))
    exec(code, names)
    assert trained == epochs(noise(), 3, batch_size=64, seed=7)
