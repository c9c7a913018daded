"""Iterables and samplers in every shape that Python lets them have: `__iter__` is called once a pass, as torch does."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from effort import SOAK
from lane_data import share
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace.feed import DataLoader

ROWS = 60  # more than the outputs after which a lane that draws nothing is read in runs


class Generates(IterableDataset[Any]):
    """`__iter__` is a generator."""

    def __iter__(self) -> Iterator[int]:
        yield from share(ROWS)


class BeginsAgain(IterableDataset[Any]):
    """It is its own iterator, and every `__iter__` begins anew."""

    def __iter__(self) -> Iterator[int]:
        self.rows, self.at = share(ROWS), 0
        return self

    def __next__(self) -> int:
        if self.at >= len(self.rows):
            raise StopIteration
        self.at += 1
        return self.rows[self.at - 1]


class GoesOn(BeginsAgain):
    """It is its own iterator, and `__iter__` does nothing: it can be gone through once."""

    def __init__(self) -> None:
        self.at, self.begun = 0, False

    def __iter__(self) -> Iterator[int]:
        self.rows = share(ROWS)
        return self


class Apart(IterableDataset[Any]):
    """Its iterator is another object, whose own `__iter__` begins it anew."""

    kind: type[Any] = BeginsAgain

    def __iter__(self) -> Iterator[int]:
        return iter(self.kind())


class StateOfSelf(BeginsAgain):
    """Its own iterator with a state: torchdata gives it back behind `__iter__`, which makes what the state changes."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert self.rows == share(ROWS)
        self.at = state["at"]


class StateOfDataset(IterableDataset[Any]):
    """A state of the dataset, which its generator begins with."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        rows = share(ROWS)
        while self.at < len(rows):
            self.at += 1
            yield rows[self.at - 1]
        self.at = 0

    state_dict = StateOfSelf.state_dict

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StateOfIterator(Apart):
    """A state of the iterator alone."""

    kind = StateOfSelf


class BothStates(StateOfIterator):
    """A state of the dataset, which is no place, and one of its iterator."""

    def state_dict(self) -> dict[str, str]:
        return {"name": "both"}

    def load_state_dict(self, state: dict[str, str]) -> None:
        assert state == {"name": "both"}


SHAPES: list[Callable[[], Any]] = [
    Generates, BeginsAgain, GoesOn, Apart, StateOfSelf, StateOfDataset, StateOfIterator, BothStates,
]  # fmt: skip
BY_WORKERS = (GoesOn, StateOfDataset, BothStates)
STATES = [StateOfSelf, StateOfDataset, StateOfIterator, BothStates]


def passes(loader: Any, count: int = 2) -> list[list[Any]]:
    """The batches of some passes; one that does not end is cut off."""
    return [
        [rows.tolist() if isinstance(rows, torch.Tensor) else rows for rows in itertools.islice(loader, 2 * ROWS)]
        for _ in range(count)
    ]


@pytest.mark.promise(
    "feed-lanes", "`__iter__` of a dataset or sampler is called once a pass; a resume gives it its state"
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_gives_what_torch_s_gives_whatever_iter_returns(shape: Any) -> None:
    served = [(2, 1)] if SOAK or shape in BY_WORKERS else []
    for workers, batch_size in [(0, None), (0, 1), (0, 7), *served]:
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
        expected = passes(TorchLoader(shape(), **options), 1)[0]
        assert sorted(itertools.chain.from_iterable(expected) if batch_size else expected) == list(range(ROWS))
        with DataLoader(shape(), **options, persistent_workers=workers > 0) as loader:
            assert passes(loader) == [expected] * 2, options


@pytest.mark.promise(
    "feed-lanes", "`__iter__` of a dataset or sampler is called once a pass; a resume gives it its state"
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, of a torch that is newer than it
@pytest.mark.parametrize(
    ("shape", "workers"),
    [(shape, workers) for shape in SHAPES for workers in (0, 2) if SOAK or not workers or shape in BY_WORKERS],
)
def test_it_goes_on_from_a_state_whatever_iter_returns(shape: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers}
    with DataLoader(shape(), **options) as loader:
        whole = passes(loader, 1)[0]
    for step in (7,) if workers else (1, 7, len(whole) - 1):
        with DataLoader(shape(), **options) as loader:
            taken = passes(itertools.islice(iter(loader), step), 1)[0]
            state = json.loads(json.dumps(loader.state_dict()))
        assert bool(state["lanes"].get("tokens")) is (shape in STATES)
        with DataLoader(shape(), **options) as resumed:
            resumed.load_state_dict(state)
            assert taken + passes(resumed, 1)[0] == whole


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("shape", STATES, ids=lambda shape: shape.__name__)
def test_torchdata_calls_them_in_the_same_order(shape: Any) -> None:
    rests = []
    for kind in (DataLoader, StatefulDataLoader):
        loader = kind(shape(), batch_size=3)
        passes(itertools.islice(iter(loader), 7), 1)
        resumed = kind(shape(), batch_size=3)
        resumed.load_state_dict(loader.state_dict())
        rests.append(passes(resumed, 1)[0])
    assert rests[0] == rests[1]
    assert sum(map(len, rests[0])) == ROWS - 21


KEYS = [7, 3, 3, 0, 9, 5, 1, 8, 2, 6, 4]


class Sampler:
    """A sampler that is its own iterator, and begins anew with every `__iter__`."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at >= len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


class StatefulSampler(Sampler):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


BATCHES = [KEYS[:4], KEYS[4:5], KEYS[5:]]
SAMPLED: dict[str, tuple[Callable[[Any], dict[str, Any]], list[Any]]] = {
    "sampler": (lambda kind: {"sampler": kind(KEYS), "batch_size": 4}, [KEYS[:4], KEYS[4:8], KEYS[8:]]),
    "sampler, not batched": (lambda kind: {"sampler": kind(KEYS), "batch_size": None}, KEYS),
    "batch_sampler": (lambda kind: {"batch_sampler": kind(BATCHES)}, BATCHES),
    "batches as sampler": (
        lambda kind: {"sampler": kind(BATCHES), "batch_size": None, "collate_fn": lambda row: row}, BATCHES
    ),
}  # fmt: skip


class Tens:
    def __getitem__(self, key: Any) -> Any:
        return [10 * index for index in key] if isinstance(key, list) else 10 * key


def ten_times(items: list[Any]) -> list[Any]:
    return [[10 * key for key in item] if isinstance(item, list) else 10 * item for item in items]


@pytest.mark.promise(
    "feed-lanes", "`__iter__` of a dataset or sampler is called once a pass; a resume gives it its state"
)
@pytest.mark.filterwarnings("ignore:fast-forwarding")
@pytest.mark.parametrize(
    ("name", "kind", "workers"),
    [
        (name, *how)
        for name in SAMPLED
        for how in ((Sampler, 0), (StatefulSampler, 0), (Sampler, 1))
        if SOAK or not how[1] or name in ("sampler", "batch_sampler")
    ],
)
def test_a_sampler_that_is_its_own_iterator_is_begun_once_a_pass(name: str, kind: Any, workers: int) -> None:
    call, order = SAMPLED[name]
    expected = ten_times(order)
    with DataLoader(Tens(), **call(kind), num_workers=workers) as loader:
        assert passes(loader) == [expected] * 2
    for step in (2,) if workers else range(1, len(expected)):
        with DataLoader(Tens(), **call(kind), num_workers=workers) as loader:
            passes(itertools.islice(iter(loader), step), 1)
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader(Tens(), **call(kind), num_workers=workers) as resumed:
            resumed.load_state_dict(state)
            assert passes(resumed, 1)[0] == expected[step:]


class Yields:
    """Lets other threads run where a row is made."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, row: int) -> int:
        time.sleep(0.0005)
        return row


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_share_an_iterator_get_each_batch_once(workers: int) -> None:
    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with DataLoader(Yields(), 2, num_workers=workers) as loader, ThreadPoolExecutor(4) as threads:
            shared = iter(loader)
            parts = list(threads.map(lambda _: [tuple(batch.tolist()) for batch in shared], range(4)))
    finally:
        sys.setswitchinterval(between)
    assert sorted(itertools.chain(*parts)) == [(row, row + 1) for row in range(0, 400, 2)]
    assert all(part == sorted(part) for part in parts)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_program_that_ends_within_a_pass_ends_without_a_word(workers: int) -> None:
    program = f"""
from headrace import feed
batches = iter(feed.DataLoader(list(range(10)), 2, num_workers={workers}))
print(next(batches).tolist())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (told.returncode, told.stdout, told.stderr) == (0, "[0, 1]\n", "")
