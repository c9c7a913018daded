"""What users of torch's DataLoader read, set, pass and rely on: the same call on both loaders, and the same answer."""

from __future__ import annotations

import dataclasses
import decimal
import gc
import inspect
import multiprocessing
import pickle
import random
import threading
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from effort import SOAK
from feed_data import Point, flat
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace.feed import DataLoader


class Values:
    """Wraps a list, without a length: only what torch asks for."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


class Rows(Values):
    def __len__(self) -> int:
        return len(self.values)


class Table:
    """Rows as dicts, columns on a batch of indices: what a Hugging Face dataset answers."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": f"row {index}", "label": index % 3, "ids": list(range(index % 4 + 1))}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] | {"asked": len(indices)} for index in indices]


class Bulks(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(self[index], len(indices)) for index in indices]


class NoBatches(Rows):
    __getitems__ = None


class BatchesOnly:
    def __len__(self) -> int:
        return 7

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


def ragged(samples: list[Any]) -> Any:
    return {"ids": [torch.tensor(sample["ids"]) for sample in samples], "text": [sample["text"] for sample in samples]}


def outcome(kind: type[Any], call: Callable[[], dict[str, Any]], epochs: int = 2) -> list[Any]:
    """Returns all that a loader gives, bit by bit; an error counts by its type."""
    torch.manual_seed(11)
    got: list[Any] = []
    try:
        loader = kind(**call())
        for epoch in range(epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            got += [flat(batch) for batch in loader] or ["nothing"]
        got.append(len(loader))
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        got.append(type(error))
    return [*got, torch.rand(2).tolist()]  # and torch's generator stands where torch leaves it


TEN, LARGE = list(range(10)), range(5003)
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"dataset": TEN, "batch_size": 3, "sampler": WeightedRandomSampler([0.1, 0.9, 0.4], 7)},
    "distributed": lambda: {"dataset": TEN, "batch_size": 2, "sampler": DistributedSampler(TEN, 3, 1, shuffle=True)},
    "batches as sampler": lambda: {
        "dataset": TensorDataset(torch.arange(10.0)),
        "batch_size": None,
        "sampler": BatchSampler(SequentialSampler(TEN), 4, False),
    },
    "subset": lambda: {"dataset": Subset(Rows(TEN), [7, 1, 3]), "batch_size": 2},
    "concatenated": lambda: {"dataset": ConcatDataset([Rows(TEN), Rows([50, 60])]), "batch_size": 5},  # type: ignore[list-item]
    "split": lambda: {"dataset": random_split(Rows(TEN), [0.7, 0.3])[0], "batch_size": 2, "shuffle": True},  # type: ignore[arg-type]
    "stacked": lambda: {"dataset": StackDataset(a=TEN, b=torch.rand(10, 2)), "batch_size": 4},  # type: ignore[arg-type]
    "table": lambda: {"dataset": Table(), "batch_size": 4, "collate_fn": ragged},
    "table, collated by torch": lambda: {"dataset": Table(), "batch_size": 1},
    "table, uneven": lambda: {"dataset": Table(), "batch_size": 4},
    "__getitems__ of None": lambda: {"dataset": NoBatches(TEN), "batch_size": 4},
    "__getitems__ alone": lambda: {"dataset": BatchesOnly(), "batch_size": 4},
    "no length, sampler": lambda: {"dataset": Values(TEN), "batch_size": 4, "sampler": [3, 1, 2]},
    "no length, batch_sampler": lambda: {"dataset": Values(TEN), "batch_sampler": [[3], [1, 2]]},
    "no length": lambda: {"dataset": Values(TEN), "batch_size": 4},
    "dict with keys": lambda: {"dataset": {"a": 1.0, "b": 2.0}, "batch_size": 2, "sampler": ["b", "a", "b"]},
    "tuples as keys": lambda: {"dataset": {(0, "x"): 1, (1, "y"): 2}, "sampler": [(1, "y"), (0, "x")]},
    "tensors as keys": lambda: {"dataset": torch.arange(10) * 2, "batch_size": 2, "sampler": torch.tensor([4, 2, 0])},
    "empty": lambda: {"dataset": [], "batch_size": 4},
    "empty, dropping": lambda: {"dataset": [], "batch_size": 4, "drop_last": True},
    "empty, not batched": lambda: {"dataset": [], "batch_size": None},
    "empty, shuffled": lambda: {"dataset": [], "shuffle": True},
    "empty sampler": lambda: {"dataset": TEN, "batch_size": 4, "sampler": []},
    "fewer than a batch, dropping": lambda: {"dataset": TEN, "batch_size": 40, "drop_last": True},
    "beyond the end": lambda: {"dataset": TEN, "batch_size": 2, "sampler": [1, 99]},
    "default_collate given": lambda: {"dataset": TEN, "batch_size": 4, "collate_fn": default_collate},
    "in any order": lambda: {"dataset": TEN, "batch_size": 4, "in_order": True},
    "bulks of rows": lambda: {"dataset": Bulks(TEN), "batch_size": 3},
    "text": lambda: {"dataset": "text", "batch_size": 3},
    "all of a text": lambda: {"dataset": "text", "batch_size": None, "collate_fn": str},
    "one of each": lambda: {"dataset": Table()},
    "shuffled": lambda: {"dataset": TEN, "batch_size": 4, "shuffle": True},
    "shuffled, dropping": lambda: {
        "dataset": Table(),
        "batch_size": 3,
        "shuffle": True,
        "drop_last": True,
        "collate_fn": ragged,
    },
    "shuffled, not batched": lambda: {"dataset": Table(), "batch_size": None, "shuffle": True},
    "not batched, sampler": lambda: {"dataset": Table(), "batch_size": None, "sampler": [4, 2]},
    "generator": lambda: {
        "dataset": TEN,
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(7),
    },
    "subset sampler": lambda: {"dataset": TEN, "batch_size": 4, "sampler": SubsetRandomSampler(range(3, 9))},
    "numpy sampler": lambda: {"dataset": TEN, "batch_size": 4, "sampler": np.arange(9)[::-1].copy()},
    "with replacement": lambda: {"dataset": TEN, "batch_size": 2, "sampler": RandomSampler(TEN, True, 9)},
    "large": lambda: {"dataset": LARGE, "batch_size": 512, "shuffle": True},
    "large, some": lambda: {
        "dataset": range(5003),
        "batch_size": 512,
        "sampler": RandomSampler(range(5003), False, 2000),
    },
    "large, more": lambda: {
        "dataset": range(5003),
        "batch_size": 512,
        "sampler": RandomSampler(range(5003), False, 5004),
    },
    "random batches": lambda: {"dataset": TEN, "batch_sampler": BatchSampler(RandomSampler(TEN), 4, False)},
    "batches of three lengths": lambda: {
        "dataset": TEN,
        "batch_sampler": [[1, 2], [3], [], [4, 5, 6]],
        "collate_fn": list,
    },
}
Named = namedtuple("Named", ["a", "b"])
SAMPLES: dict[str, list[Any]] = {
    "floats": [0.5, 1.5],
    "ints": [1, 2**40],
    "ints beyond 64 bits": [2**70, 1],
    "bools": [True, False],
    "ints and floats": [1, 0.5],
    "strings": ["a", "bc"],
    "bytes": [b"a", b"bc"],
    "None": [None, None],
    "numpy scalars": [np.float32(1), np.float32(2)],
    "numpy ints": [np.int16(1), np.int16(2)],
    "numpy strings": [np.str_("a"), np.str_("b")],
    "arrays": [np.arange(3), np.arange(3)],
    "arrays of two types": [np.arange(3), np.arange(3.0)],
    "arrays of strings": [np.array(["a"]), np.array(["b"])],
    "scalars": [torch.tensor(1), torch.tensor(2)],
    "complex": [torch.tensor([1j]), torch.tensor([2 + 1j])],
    "uneven": [torch.ones(2), torch.ones(3)],
    "nested": [{"a": [1, (2.0, "x")], "b": Named(torch.ones(1), 3)}] * 2,
    "ordered": [OrderedDict(z=1, a=2), OrderedDict(z=3, a=4)],
    "other keys": [{"a": 1}, {"b": 1}],
    "more keys": [{"a": 1}, {"a": 1, "b": 1}],
    "namedtuples": [Point(1, "a"), Point(2, "b")],
    "lists of two lengths": [[1, 2], [1]],
    "decimals": [decimal.Decimal(1), decimal.Decimal(2)],
    "sets": [{1}, {2}],
    "empty lists": [[], []],
    "empty dicts": [{}, {}],
}
for title, values in SAMPLES.items():
    CASES[f"samples: {title}"] = lambda values=values: {"dataset": Rows(values), "batch_size": 2}  # type: ignore[misc]
    if title not in ("sets", "decimals"):  # those of no batch cannot travel, and are refused with their place
        CASES[f"samples, not batched: {title}"] = lambda values=values: {"dataset": Rows(values), "batch_size": None}  # type: ignore[misc]


BY_WORKERS = {  # what goes another way where workers make it
    "weighted", "table, uneven", "__getitems__ alone", "no length", "tuples as keys", "empty", "beyond the end",
    "samples: ints beyond 64 bits", "samples: arrays of two types", "samples: uneven", "samples: nested",
    "samples, not batched: numpy strings", "samples, not batched: namedtuples",
    "one of each", "shuffled, dropping", "generator", "numpy sampler", "random batches", "not batched, sampler",
    "batches of three lengths", "bulks of rows", "subset", "samples: floats", "text",
}  # fmt: skip


@pytest.mark.promise("feed", "the same call as torch's DataLoader gives the same batches or the same error")
@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in CASES), *((name, 2) for name in (CASES if SOAK else sorted(BY_WORKERS)))],
)
def test_the_same_call_gives_the_same_batches_or_the_same_error(name: str, workers: int) -> None:
    epochs = 1 if workers else 2
    ours = outcome(DataLoader, lambda: CASES[name]() | {"num_workers": workers}, epochs)
    assert ours == outcome(TorchLoader, CASES[name], epochs)


@pytest.mark.promise("feed", "the same call as torch's DataLoader gives the same batches or the same error")
def test_torch_s_arguments_come_first_in_torch_s_order_with_torch_s_defaults() -> None:
    ours = list(inspect.signature(DataLoader).parameters.values())
    theirs = list(inspect.signature(TorchLoader).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]


READ = [
    "dataset", "batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn", "generator",
    "persistent_workers", "pin_memory_device", "in_order", "collate_fn", "multiprocessing_context",
]  # fmt: skip
CALLS: list[dict[str, Any]] = [
    {},
    {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_size": None},
    {"batch_sampler": [[1], [2]]},
    {"sampler": [1, 2], "collate_fn": list, "generator": torch.Generator()},
    {"num_workers": 2, "persistent_workers": True, "timeout": 5, "worker_init_fn": print, "in_order": False},
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: ",".join(call) or "defaults")
def test_attributes_read_as_torch_s(call: dict[str, Any]) -> None:
    ours, theirs = DataLoader(TEN, **call), TorchLoader(TEN, **call)  # type: ignore[arg-type, var-annotated]
    for name in READ:
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("sampler", "batch_sampler"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name))
    assert list(ours.sampler) == list(theirs.sampler) or call.get("shuffle")
    for name in ("batch_size", "drop_last"):
        assert getattr(ours.batch_sampler, name, None) == getattr(theirs.batch_sampler, name, None)


def test_headrace_s_own_order_can_be_read_where_torch_s_is_and_reading_changes_nothing() -> None:
    loader = DataLoader(TEN, batch_size=4, shuffle=True, seed=3, rank=1, world_size=2)
    for epoch in range(2):
        ahead, batches = list(loader.sampler), list(loader.batch_sampler)
        assert (len(loader.sampler), len(loader.batch_sampler), len(loader)) == (len(ahead), len(batches), len(batches))
        assert [batch.tolist() for batch in loader] == batches
        assert [key for batch in batches for key in batch] == ahead
        loader.batch_sampler.sampler.set_epoch(epoch)
        assert list(loader.sampler) == ahead
        loader.sampler.set_epoch(epoch + 1)
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, False)
    single = DataLoader(TEN, batch_size=None, seed=3)
    assert single.batch_sampler is None
    assert len(single.sampler) == 10
    assert len(DataLoader([], seed=1).sampler) == 0


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_torch_does_not_let_be_set_later_is_not(name: str) -> None:
    for kind in (DataLoader, TorchLoader):
        loader = kind(TEN)
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, None)


def test_a_collate_fn_may_be_set_later() -> None:
    for workers in (0, 1):
        loader = DataLoader(TEN, batch_size=5, num_workers=workers)
        assert [type(batch) for batch in loader] == [torch.Tensor] * 2
        loader.collate_fn = sum
        assert list(loader) == [10, 35]


def test_a_context_reads_as_an_object() -> None:
    assert DataLoader(TEN, num_workers=1, multiprocessing_context="spawn").multiprocessing_context is (
        multiprocessing.get_context("spawn")
    )


@pytest.mark.parametrize("size", [2.0, True, "4", 0, -1])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_batch_size_that_torch_refuses_is_refused_in_every_order(size: Any, seed: int | None) -> None:
    with pytest.raises(ValueError):
        TorchLoader(TEN, batch_size=size)  # type: ignore[arg-type, var-annotated]
    with pytest.raises(ValueError):
        DataLoader(TEN, batch_size=size, seed=seed)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("call", [{}, {"pin_memory": True}, {"pin_memory": True, "pin_memory_device": "cuda"}], ids=str)
def test_the_warnings_are_torch_s(call: dict[str, Any], workers: int) -> None:
    told = []
    for kind in (DataLoader, TorchLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in kind(TEN, num_workers=workers, **call):
                break
            gc.collect()
        told.append([(warning.category, str(warning.message)) for warning in caught])
    assert told[0] == told[1]


@dataclasses.dataclass
class Made:
    x: torch.Tensor
    parts: list[torch.Tensor]


def make(samples: list[int]) -> dict[str, Made]:
    return {"made": Made(torch.tensor(samples), [torch.ones(sample % 3) for sample in samples])}


def as_sample(index: int) -> Made:
    return Made(torch.tensor([index]), [])


@pytest.mark.parametrize("workers", [0, 2])
def test_dataclasses_arrive_from_a_collate_fn_and_without_batches(workers: int) -> None:
    batches = list(DataLoader(TEN, batch_size=4, collate_fn=make, num_workers=workers))
    assert [batch["made"].x.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(part) for part in batches[1]["made"].parts] == [1, 2, 0, 1]
    samples = list(DataLoader(Rows([as_sample(3), as_sample(4)]), batch_size=None, num_workers=workers))
    assert [type(sample) for sample in samples] == [Made, Made]
    assert [sample.x.item() for sample in samples] == [3, 4]


class Asks:
    """What a worker knows of itself."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        assert info.dataset is self
        return torch.tensor([info.id, info.num_workers, info.seed - info.id]), self.notes[str(info.id)]


def note(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == number
    draws = [torch.initial_seed() - number, random.randrange(2**40), int(torch.randint(2**40, ()))]
    info.dataset.notes[str(number)] = draws  # type: ignore[attr-defined]
    np.random.rand()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_knows_the_seed_that_torch_s_would_have(persistent: bool) -> None:
    def load(kind: type[Any]) -> list[Any]:
        torch.manual_seed(5)
        loader = kind(Asks(), batch_size=None, num_workers=1, worker_init_fn=note, persistent_workers=persistent)
        return [flat(sample) for _ in range(2) for sample in loader]

    assert load(DataLoader) == load(TorchLoader)


class Seeds:
    """Seeds in tensors, as datasets keep them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        info = torch.utils.data.get_worker_info()
        return torch.tensor([torch.initial_seed(), 0 if info is None else info.seed])


def keep_seed(number: int) -> None:
    del number
    torch.tensor(torch.initial_seed())


@pytest.mark.parametrize("seed", [None, -3, 2**64 - 1])
def test_every_seed_of_torch_s_generator_fits_into_a_tensor(seed: int | None) -> None:
    for workers in (0, 2):
        options: dict[str, Any] = {"worker_init_fn": keep_seed, "verify": 0}  # a seed of a worker is not a sample's
        with DataLoader(Seeds(), batch_size=8, seed=seed, num_workers=workers, **options) as loader:
            assert len({int(own) for batch in loader for own, _ in batch}) == 40


def test_workers_of_one_loader_have_different_seeds() -> None:
    infos = {
        tuple(info.tolist())
        for info, _ in DataLoader(Asks(), num_workers=2, batch_size=None, worker_init_fn=note, verify=0)
    }
    assert {info[1] for info in infos} == {2}
    assert len({info[2] for info in infos}) == 1  # less its own number, one seed for all


def test_a_loader_can_be_annotated_copied_and_pickled() -> None:
    assert DataLoader[int].__origin__ is DataLoader  # type: ignore[misc, attr-defined]
    for workers in (0, 1):
        loader = DataLoader(
            TEN, batch_size=4, num_workers=workers, shuffle=True, seed=2, persistent_workers=workers > 0
        )
        first = [batch.tolist() for batch in loader]
        copy = pickle.loads(pickle.dumps(loader))
        copy.set_epoch(0)
        with copy, loader:
            assert [batch.tolist() for batch in copy] == first


@pytest.mark.parametrize("workers", [0, 1])
def test_asking_whether_a_loader_can_be_iterated_costs_no_epoch(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2, "num_workers": workers}
    expected = [[batch.tolist() for batch in loader] for loader in [DataLoader(TEN, **options)] for _ in range(2)]
    loader = DataLoader(TEN, **options)
    got = []
    for _ in range(2):
        iter(loader)
        got.append([batch.tolist() for batch in loader])
    assert got == expected
    ahead = list(loader.sampler)
    next(iter(loader))
    assert list(loader.sampler) != ahead, "a pass that was begun has used its epoch"


@pytest.mark.parametrize("seed", [None, 2])
def test_asking_whether_a_loader_can_be_iterated_keeps_the_position_that_was_loaded(seed: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": seed}
    loader = DataLoader(TEN, **options)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    resumed = DataLoader(TEN, **options)
    resumed.load_state_dict(state)
    iter(resumed)
    assert [batch.tolist() for batch in resumed] == rest


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{"drop_last": True, "batch_size": 40}, {}], ids=str)
def test_an_epoch_of_no_batches_ends_at_once_in_headrace_s_own_order_too(options: dict[str, Any], workers: int) -> None:
    dataset = TEN if options else []
    with DataLoader(dataset, seed=1, num_workers=workers, **options) as loader:
        assert len(loader) == 0
        assert [list(loader) for _ in range(2)] == [[], []]


def test_even_batches_give_every_rank_as_many_rows_and_repeat_only_the_first_samples() -> None:
    for length in (1, 5, 7, 8, 9, 16, 23):
        options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 4, "world_size": 3, "even_batches": True}
        loaders = [DataLoader(list(range(length)), rank=rank, **options) for rank in range(3)]
        steps = list(zip(*([batch.tolist() for batch in loader] for loader in loaders), strict=True))
        assert all(len({len(batch) for batch in step}) == 1 for step in steps)
        seen = [key for step in steps for batch in step for key in batch]
        assert sorted(seen[:length]) == list(range(length))
        assert seen[length:] == [seen[i % length] for i in range(length, len(seen))]
        assert len(seen) - length < 3


def test_full_batches_are_all_of_batch_size_and_drop_last_fills_nothing() -> None:
    options: dict[str, Any] = {"batch_size": 4, "world_size": 2}
    for rank, last in ((0, [8, 9, 0, 1]), (1, [2, 3, 4, 5])):
        full = [batch.tolist() for batch in DataLoader(TEN, rank=rank, even_batches="full", **options)]
        assert full == [[4 * rank + i for i in range(4)], last]
        dropped = [
            batch.tolist() for batch in DataLoader(TEN, rank=rank, even_batches="full", drop_last=True, **options)
        ]
        assert dropped == full[:1]


def test_a_generator_cannot_decide_the_order_of_a_shard() -> None:
    with pytest.raises(ValueError, match="generator excludes sharding"):
        DataLoader(TEN, global_batch_size=4, rank=0, world_size=2, generator=torch.Generator())


def test_a_rank_that_is_not_known_when_the_loader_is_made_is_looked_up_at_its_first_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = DataLoader(TEN, global_batch_size=4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="there are 2 ranks, and nothing says which one this is"):
        next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7], [9]]
    assert (len(loader), loader.batch_size) == (3, 2)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="there are 2 ranks"):
        len(DataLoader(TEN, world_size=2))


@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, of a torch that is newer than it
def test_torchdata_s_stateful_loader_gives_the_same_too() -> None:
    for call in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 3, "drop_last": True}):
        assert outcome(DataLoader, lambda call=call: call | {"dataset": TEN}) == outcome(  # type: ignore[misc]
            StatefulDataLoader,
            lambda call=call: call | {"dataset": TEN},  # type: ignore[misc]
        )


class FailsLater(Rows):
    """The second batch fails while the first is still made, and then the first one fails too."""

    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(0.0 if index else 1.0)
        raise LookupError(index)


def test_a_loader_with_an_error_that_was_not_raised_any_more_is_collected_and_leaves_no_process() -> None:
    loader = DataLoader(FailsLater(TEN), num_workers=2)
    with pytest.raises(LookupError):
        next(iter(loader))
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


class Indexed(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a map-style dataset is not iterated")

    def __len__(self) -> int:
        return 3


def test_a_map_style_dataset_is_indexed_though_it_could_be_iterated() -> None:
    assert [batch.tolist() for batch in DataLoader(Indexed(), batch_size=2)] == [[0, 1], [2]]
