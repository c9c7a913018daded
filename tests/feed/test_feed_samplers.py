"""Resuming torch's own order and the user's samplers; torchdata's StatefulDataLoader is the oracle."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from effort import SOAK
from feed_data import Noise, flat
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler as StatefulBatchSampler
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from headrace.errors import PositionError
from headrace.feed import DataLoader

SIZE = 23


class Plain(Noise):
    def __getitem__(self, index: int) -> Any:
        return index, torch.full((2,), float(index))


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributed(kind: type[Any] = DistributedSampler) -> Any:
    return kind(range(SIZE), num_replicas=2, rank=1, seed=5)


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {"batch_size": 4},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "shuffled with drop_last": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffled with a seed of samples": lambda: {"batch_size": 4, "sampler": RandomSampler(range(SIZE)), "seed": 9},
    "a generator": lambda: {"batch_size": 4, "shuffle": True, "generator": seeded()},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "RandomSampler": lambda: {"batch_size": 4, "sampler": RandomSampler(range(SIZE), True, 30)},
    "RandomSampler with a generator": lambda: {
        "batch_size": 4, "sampler": RandomSampler(range(SIZE), generator=seeded())
    },
    "SubsetRandomSampler": lambda: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 20))},
    "WeightedRandomSampler": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * SIZE, 19)},
    "DistributedSampler": lambda: {"batch_size": 4, "sampler": distributed()},
    "a list": lambda: {"batch_size": 4, "sampler": [5, 3, 3, 22, 0, 9, 8, 7, 1]},
    "BatchSampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(SIZE)), 5, False)},
    "a list of batches": lambda: {"batch_sampler": [[1, 2], [3], [], [4, 5, 6], [7]], "collate_fn": collate},
    "torchdata's RandomSampler": lambda: {
        "batch_size": 4, "sampler": StatefulRandomSampler(range(SIZE), generator=seeded())
    },
    "torchdata's distributed sampler": lambda: {"batch_size": 4, "sampler": distributed(StatefulDistributedSampler)},
    "torchdata's BatchSampler": lambda: {
        "batch_sampler": StatefulBatchSampler(StatefulRandomSampler(range(SIZE), generator=seeded()), 4, True)
    },
}  # fmt: skip
FOREIGN = {"RandomSampler", "RandomSampler with a generator", "SubsetRandomSampler", "WeightedRandomSampler", "a list",
           "DistributedSampler", "BatchSampler", "a list of batches", "shuffled with a seed of samples"}  # fmt: skip


def collate(samples: list[Any]) -> Any:
    return samples


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def warned(name: str, step: int) -> Any:
    """Expects the warning of a fast-forward, and otherwise none: warnings are errors here."""
    if name in FOREIGN and step:
        return pytest.warns(UserWarning, match=rf"fast-forwarding \w+ over {step} steps")
    return contextlib.nullcontext()


# How often torchdata's loader would keep a state is the same to every order: the long run alone tries all.
EVERY = [
    (name, every)
    for name in ORDERS
    for every in (1, 3, None)
    if SOAK or every is None or name in ("shuffled", "torchdata's RandomSampler")
]


# Each order is kept by workers and goes on in this process, or the other way round; both ways in the long run.
BOTH = ("shuffled",)
WAYS = [
    (name, every, workers)
    for place, (name, every) in enumerate(EVERY)
    for workers in (0, 2)
    if SOAK or (name in BOTH and every is None) or workers == (0, 2)[place % 2]
]


@pytest.mark.parametrize(("name", "every", "workers"), WAYS)
def test_the_epoch_goes_on_in_its_order_with_its_random_numbers(name: str, every: int | None, workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "snapshot_every_n_steps": every}
    for step in (0, 1, 2, 3) if SOAK or every else (0, 3):
        torch.manual_seed(step)
        with DataLoader(Noise(SIZE), **ORDERS[name](), **options) as loader:
            batches = iter(loader)
            for _ in range(step):
                next(batches)
            state = reloaded(loader.state_dict())
            expected = [flat(batch) for batch in batches]
        torch.manual_seed(99)
        with DataLoader(Noise(SIZE), **ORDERS[name](), num_workers=2 - workers) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            if step or workers:  # with nothing drawn yet, torch's own order is still open
                with warned(name, step):
                    assert [flat(batch) for batch in loader] == expected
                assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("name", [name for name in ORDERS if "generator" in name or "torchdata" in name])
def test_the_epochs_after_it_go_on_too_when_the_sampler_has_its_own_generator(name: str) -> None:
    for count in (0, 2, 6, 7):  # before, in and at the end of the first epoch, and in the second
        with DataLoader(Plain(SIZE), **ORDERS[name]()) as loader:
            taken, state = 0, loader.state_dict()
            while taken < count:
                for _ in loader:
                    taken += 1
                    state = loader.state_dict()
                    if taken == count:
                        break
                else:
                    state = loader.state_dict()
            state = reloaded(state)
        with DataLoader(Plain(SIZE), **ORDERS[name]()) as whole:
            expected = [flat(batch) for _ in range(3) for batch in whole][count:]
        with DataLoader(Plain(SIZE), **ORDERS[name]()) as loader:
            loader.load_state_dict(state)
            with warned(name, state["step"]):
                found = [flat(batch) for _ in range(3 - state["epoch"]) for batch in loader]
        assert found == expected


@pytest.mark.promise("feed-resume", "a state is under 1 KB")
def test_a_state_is_small_and_holds_no_order() -> None:
    sizes = {}
    for name, options in ORDERS.items():
        with DataLoader(Plain(SIZE), **options()) as loader:
            next(iter(loader))
            sizes[name] = len(json.dumps(loader.state_dict()))
    with DataLoader(Plain(200_000), 4, True) as loader:
        next(iter(loader))
        sizes["a large one"] = len(json.dumps(loader.state_dict()))
    with_generator = {"a generator", "RandomSampler with a generator", "SubsetRandomSampler", "WeightedRandomSampler",
                      "torchdata's RandomSampler", "torchdata's BatchSampler"}  # fmt: skip
    assert {name for name, size in sizes.items() if size >= 1024} <= with_generator
    assert max(sizes.values()) < 6000  # a generator's state is 2.5 KB of random bits


def test_another_batch_size_goes_on_at_the_same_sample() -> None:
    torch.manual_seed(1)
    loader = DataLoader(Plain(SIZE), 4, True)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    expected = [index for batch in batches for index in batch[0].tolist()]
    other = DataLoader(Plain(SIZE), 3, True)
    other.load_state_dict(state)
    found = [batch[0].tolist() for batch in other]
    assert [len(batch) for batch in found] == [3, 3, 3, 3, 3]
    assert [index for batch in found for index in batch] == expected


def test_a_sampler_that_ends_before_the_position_is_told() -> None:
    loader = DataLoader(Plain(SIZE), 4, sampler=list(range(20)))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    other = DataLoader(Plain(SIZE), 4, sampler=list(range(10)))
    other.load_state_dict(loader.state_dict())
    with (
        pytest.warns(UserWarning, match="over 4 steps"),
        pytest.raises(PositionError, match="ended after 10 of the 16"),
    ):
        next(iter(other))


def test_a_sampler_s_state_that_is_not_plain_is_refused() -> None:
    class Odd(SequentialSampler):
        def state_dict(self) -> Any:
            return {"set": {1, 2}}

        def load_state_dict(self, state: Any) -> None:
            """Never called."""

    loader = DataLoader(Plain(SIZE), 4, sampler=Odd(range(SIZE)))
    next(iter(loader))
    with pytest.raises(PositionError, match="holds a set, which is not plain data"):
        loader.state_dict()


def test_persistent_workers_keep_the_seed_of_the_random_numbers() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "persistent_workers": True, "generator": seeded()}
    with DataLoader(Noise(SIZE), **options) as loader:
        list(loader)
        state = loader.state_dict()
        expected = [flat(batch) for batch in loader]
    with DataLoader(Noise(SIZE), **(options | {"generator": seeded(8)})) as loader:
        loader.load_state_dict(state)
        assert [flat(batch) for batch in loader] == expected


# The same calls on torchdata's loader

SAME = ["sequential", "a list", "DistributedSampler", "a list of batches", "torchdata's RandomSampler",
        "torchdata's distributed sampler", "torchdata's BatchSampler"]  # fmt: skip


def calls(kind: type[Any], name: str, before: int | None, workers: int) -> Iterator[Any]:
    """Loads some batches, saves, loads the state elsewhere; yields all that a user sees."""
    loader = kind(Plain(SIZE), num_workers=workers, **ORDERS[name]())
    batches = iter(loader) if before is not None else None
    for _ in range(before or 0):
        found = next(batches, None)  # type: ignore[arg-type]
        yield None if found is None else flat(found)
    state = loader.state_dict()
    other = kind(Plain(SIZE), num_workers=workers, **ORDERS[name]())
    other.load_state_dict(state)
    yield len(other)
    expected = warned(name, state["step"]) if kind is DataLoader else contextlib.nullcontext()
    with expected:
        for _ in range(3):
            it = iter(other)
            yield len(it)
            for batch in it:
                yield flat(batch)
            yield "end"
    other.load_state_dict(state)
    with expected:
        first = next(iter(other), None)
    yield None if first is None else flat(first)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's, with this torch
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        (name, workers)
        for name in SAME
        for workers in (0, 2)
        if SOAK or not workers or name in ("a list", "torchdata's RandomSampler")
    ],
)
def test_the_same_calls_give_what_torchdata_s_loader_gives(name: str, workers: int) -> None:
    # At an epoch's end, torchdata's distributed sampler goes on with an empty epoch: that one is not compared.
    befores = (0, 1, 2) if name == "torchdata's distributed sampler" else (None, 0, 1, 3, 5, 6, 7, 8)
    if workers and not SOAK:  # who makes the batches has no say in where a pass goes on
        befores = befores[::3]
    for before in befores:
        ours = list(calls(DataLoader, name, before, workers))
        theirs = list(calls(StatefulDataLoader, name, before, 0))
        assert ours == theirs, before
