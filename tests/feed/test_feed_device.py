"""Batches on a device: order, lifetime and position, with an accelerator that copies when it is told to.

What torch does with a real GPU is in tests/gpu.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feed_data import flat
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headrace.errors import FeedError
from headrace.feed import DataLoader
from headrace.feed.batch.slab import GRANULE, SlabPool
from headrace.feed.batch.tensors import is_tensor
from headrace.feed.identifiers import SlabNumber
from headrace.feed.loader import data_loader as loader_module
from headrace.feed.loader.device import DeviceBatches, PlainDevice, find_device, find_pinning
from headrace.feed.loader.supply import Supply
from headrace.feed.plan.bookmark import Progress


class Luggage:
    """An object whose tensors nobody sees but its own method `to`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Late:
    """An accelerator whose copies are made when the test says so, from what lies in host memory then."""

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.pending: collections.deque[tuple[weakref.ref[Any], torch.Tensor]] = collections.deque()
        self.started = self.finished = 0
        self.waited: list[int] = []
        self.moves = False
        self.refuse: Callable[[Any], bool] = lambda leaf: False

    def start(self, leaf: Any) -> Any:
        if not is_tensor(leaf):
            return leaf
        if self.refuse(leaf):
            raise MemoryError("the device is full")
        target = torch.full_like(leaf, 77)
        self.pending.append((weakref.ref(leaf), target))  # a device knows an address and holds nothing
        self.started += 1
        return target

    def mark(self) -> Place:
        if self.at_once:
            self.run(self.started)
        return Place(self, self.started)

    def wait(self, mark: Any) -> None:
        self.waited.append(mark.number)

    def land(self, leaf: Any) -> Any:
        if not isinstance(leaf, Luggage):
            return leaf
        tensor = self.start(leaf.tensor)
        self.moves = True
        return Luggage(tensor)

    def landed(self) -> Place | None:
        moves, self.moves = self.moves, False
        return self.mark() if moves else None

    def run(self, number: int) -> None:
        """Makes the copies up to a number."""
        while self.finished < number:
            source, target = self.pending.popleft()
            held = source()
            assert held is not None, "the host memory of a copy under way was given back"
            target.copy_(held)
            self.finished += 1


@dataclasses.dataclass(frozen=True)
class Place:
    accelerator: Late
    number: int

    def query(self) -> bool:
        return self.accelerator.finished >= self.number

    def synchronize(self) -> None:
        self.accelerator.run(self.number)


class Given(Supply):
    """Batches of a script: data, an exception to raise, or None for the end; `there` says how many have come."""

    def __init__(self, items: list[Any], there: int = 1000) -> None:
        self.items = items
        self.there = there
        self.fetched = Progress(0)
        self.ends: list[bool] = []

    def ready(self) -> bool:
        return self.fetched.step < self.there

    def fetch(self) -> tuple[Any, int] | None:
        item = self.items[self.fetched.step] if self.fetched.step < len(self.items) else None
        if item is None:
            return None
        self.fetched.step += 1
        if isinstance(item, BaseException):
            raise item
        return item, 1

    def queued(self) -> int:
        return 0

    def end(self, *, complete: bool) -> None:
        self.ends.append(complete)


def feed(items: list[Any], there: int = 1000, at_once: bool = False) -> tuple[DeviceBatches, Given, Late, Progress]:
    given, late, progress = Given(items, there), Late(at_once), Progress(0)
    return DeviceBatches(given, given.fetched, progress, late), given, late, progress


def numbered(count: int) -> list[Any]:
    return [torch.tensor([float(number)]) for number in range(count)]


def test_one_batch_is_copied_ahead_and_no_more() -> None:
    batches, given, late, progress = feed(numbered(4))
    seen = []
    for step in range(4):
        taken = batches.fetch()
        assert taken is not None
        seen.append(taken[0])
        assert given.fetched.step == late.started == min(step + 2, 4)
        assert progress.step == step + 1  # the user's position, not the copies'
        assert late.waited[-1] == step + 1  # its own copy, not the one that was started behind it
    assert batches.fetch() is None
    batches.end(complete=True)
    assert torch.cat(seen).tolist() == [0, 1, 2, 3]
    assert given.ends == [True]


def test_a_batch_that_is_not_there_yet_is_not_waited_for() -> None:
    batches, given, late, _ = feed(numbered(3), there=1)
    assert batches.fetch() is not None
    assert late.started == 1
    assert not batches.ready()
    given.there = 3
    assert batches.ready()
    assert batches.fetch() is not None
    assert late.started == 3
    batches.end(complete=False)


def test_host_memory_of_an_object_that_moves_itself_is_held_until_it_has_moved() -> None:
    objects: list[Any] = [Luggage(torch.tensor([float(number)])) for number in range(3)]
    watched = [weakref.ref(each) for each in objects]
    batches, given, late, _ = feed(objects)
    del objects
    seen = [batches.fetch() for _ in range(2)]
    given.items.clear()
    assert late.finished == 0
    assert [each() is not None for each in watched] == [True, True, True]
    late.run(late.started)
    batches.end(complete=False)
    assert [each() is not None for each in watched] == [False, False, False]
    assert [taken[0].tensor.item() for taken in seen if taken is not None] == [0.0, 1.0]


def test_host_memory_is_held_until_its_copy_is_done_and_not_longer() -> None:
    tensors = numbered(5)
    batches, given, late, _ = feed(tensors)
    seen = [batches.fetch() for _ in range(2)]
    held = [weakref.ref(tensor) for tensor in tensors]
    given.items[:3] = [None] * 3  # `tensors` itself
    gc.collect()
    assert all(reference() is not None for reference in held[:3])
    late.run(2)
    seen.append(batches.fetch())
    assert [reference() is None for reference in held[:3]] == [True, True, False]
    batches.end(complete=False)
    assert [int(item[0]) for item in seen if item is not None] == [0, 1, 2]


def test_what_is_dropped_in_the_middle_waits_for_its_copies() -> None:
    batches, given, late, progress = feed(numbered(5))
    taken = batches.fetch()
    batches.end(complete=False)
    assert late.finished == late.started == 2
    assert taken is not None
    assert taken[0].tolist() == [0.0]
    assert given.ends == [False]
    assert progress.step == 1


def test_errors_and_the_end_come_in_their_turn() -> None:
    one, two, three = numbered(3)
    batches, given, _, progress = feed([one, ValueError("second"), two, KeyError("fourth"), three], at_once=True)
    assert batches.fetch() is not None
    assert given.fetched.step == 2  # the error is known already
    assert progress.step == 1
    with pytest.raises(ValueError, match="second"):
        batches.fetch()
    assert progress.step == 2
    assert batches.fetch() == (two, 1)
    with pytest.raises(KeyError):
        batches.fetch()
    assert batches.fetch() == (three, 1)
    assert progress.step == 5
    assert batches.fetch() is None
    assert batches.fetch() is None


def test_an_interrupt_while_the_next_batch_is_looked_for_does_not_count_the_one_at_hand() -> None:
    batches, _, _, progress = feed([*numbered(1), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        batches.fetch()
    assert progress.step == 0
    batches.end(complete=False)


def test_a_device_that_is_full_in_the_middle_of_a_batch_does_not_lose_the_copies_before() -> None:
    batches, _, late, _ = feed([{"a": torch.ones(2), "b": torch.ones(3)}])
    late.refuse = lambda leaf: len(leaf) == 3
    with pytest.raises(MemoryError):
        batches.fetch()
    gc.collect()
    batches.end(complete=False)
    assert late.finished == 1


@dataclasses.dataclass
class Mixed:
    x: torch.Tensor
    parts: list[torch.Tensor]
    name: str


class Movable:
    """An object that moves itself, in place."""

    device: torch.device | None = None

    def to(self, device: torch.device) -> None:
        self.device = device


class OwnDict(collections.UserDict[str, Any]):
    pass


def test_tensors_move_wherever_they_are_and_the_rest_stays() -> None:
    block = np.arange(6.0)
    batch = {"mixed": (Mixed(torch.ones(2), [torch.zeros(1)], "cat"), 5, None), "array": block[:3], "own": block.copy()}
    batches, _, late, _ = feed([batch, OwnDict(x=torch.ones(1))], at_once=True)
    taken = batches.fetch()
    assert taken is not None
    moved = taken[0]
    assert flat(moved) == flat(batch)
    assert moved["mixed"][0].x is not batch["mixed"][0].x  # type: ignore[index]
    assert moved["array"].base is None  # else it would hold the slab as long as the user keeps it
    assert moved["own"] is batch["own"]
    taken = batches.fetch()
    assert taken is not None
    assert type(taken[0]) is OwnDict
    assert late.started == 3


def test_objects_that_move_themselves_do() -> None:
    packed, movable = pack_sequence([torch.ones(3), torch.ones(2)]), Movable()
    meta = torch.device("meta")
    given = Given([[packed, movable, torch.ones(2), "word", np.float32(2)]])
    taken = DeviceBatches(given, given.fetched, Progress(0), PlainDevice(meta)).fetch()
    assert taken is not None
    moved, same, tensor, word, number = taken[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
    assert same is movable
    assert movable.device == meta
    assert tensor.device == meta
    assert (word, number) == ("word", 2)


# The loader


class Rows:
    """Rows of a few KB, each different in every byte that is looked at."""

    def __init__(self, count: int = 40, bad: tuple[int, ...] = ()) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"no row {index}")
        return {"x": torch.full((4096,), float(index)), "i": index}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[Late]:
    """A device that the loader takes for "cuda"."""
    accelerator = Late()
    monkeypatch.setattr(loader_module, "find_device", lambda asked: torch.device("cuda") if asked else None)
    monkeypatch.setattr(loader_module, "find_pinning", lambda device, pin: None)
    monkeypatch.setattr(loader_module, "open_device", lambda device, **_: accelerator)
    yield accelerator
    assert accelerator.started == accelerator.finished


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("memory", [1 << 20, 64 << 20])
def test_late_copies_read_what_the_batch_held(late: Late, workers: int, memory: int) -> None:
    """Slabs are used again and again while no copy but the last of every three batches' is made."""
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle": True, "num_workers": workers}
    with DataLoader(Rows(120), memory=memory, **options) as plain:
        wanted = [flat(batch) for batch in plain]
    with DataLoader(Rows(120), memory=memory, device="cuda", **options) as loader:
        seen = []
        for step, batch in enumerate(loader):
            seen.append(batch)
            if step % 3 == 2:
                late.run(late.waited[-1])
    assert [flat(batch) for batch in seen] == wanted


@pytest.mark.parametrize("workers", [0, 1])
def test_the_position_is_the_user_s(late: Late, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle": True, "num_workers": workers, "device": "cuda"}
    with DataLoader(Rows(), persistent_workers=bool(workers), **options) as loader:
        whole = []
        for step, batch in enumerate(loader):
            assert loader.state_dict()["step"] == step + 1
            late.run(late.waited[-1])
            whole.append(flat(batch))
        assert loader.stats()["bytes"] == loader.stats()["steps"] * 4 * (4096 * 4 + 8)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        del iterator
        gc.collect()
        assert state["step"] == 3
        late.run(late.started)
        for _ in loader:  # the pass after one that was broken off is whole
            late.run(late.waited[-1])
        assert loader.state_dict()["epoch"] == 3
    with DataLoader(Rows(), **options) as resumed:
        resumed.load_state_dict(state)
        count = 0
        for _ in resumed:
            late.run(late.waited[-1])
            count += 1
    assert (len(whole), count) == (10, 7)


def test_errors_of_the_dataset_come_at_their_batch(late: Late) -> None:
    with DataLoader(Rows(12, bad=(5,)), batch_size=2, num_workers=1, device="cuda") as loader:
        iterator, seen = iter(loader), []
        while True:
            try:
                batch = next(iterator)
            except ValueError:
                seen.append("error")
                continue
            except StopIteration:
                break
            late.run(late.waited[-1])
            seen.append(batch["i"].tolist())
    assert seen == [[0, 1], [2, 3], "error", [6, 7], [8, 9], [10, 11]]


class Slow(Rows):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


def test_the_meter_counts_what_the_user_waits_for(late: Late) -> None:
    with DataLoader(Slow(10), batch_size=None, num_workers=1, device="cuda") as loader:
        begun = time.monotonic()
        for _ in loader:
            late.run(late.waited[-1])
        took = time.monotonic() - begun
        stats = loader.stats()
    assert stats["steps"] == 10
    assert 0 < stats["wait_seconds"] <= took


# Page-locked slabs


class Locks:
    """Stands where CUDA page-locks mappings."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.locked: dict[int, int] = {}
        self.calls = 0
        self.passed = False

    def register(self, address: int, size: int) -> bool:
        self.calls += 1
        if self.works:
            assert address not in self.locked
            self.locked[address] = size
        return self.works

    def unregister(self, address: int) -> None:
        mapped = [line.split("-")[0] for line in Path("/proc/self/maps").read_text().splitlines()]
        assert f"{address:x}" in [start.lstrip("0") for start in mapped], "it was unmapped before"
        del self.locked[address]

    def fence(self) -> Callable[[], bool]:
        return lambda: self.passed


def lease(pool: SlabPool, number: SlabNumber) -> Any:
    with pool.leased(number, 10) as slab:
        return slab.view(0, 10)


def test_a_slab_is_locked_once_and_unlocked_before_it_is_unmapped() -> None:
    locks = Locks()
    locks.passed = True
    pool = SlabPool(4 * GRANULE, locks)
    for _ in range(3):
        number = pool.acquire(10)
        assert number is not None
        view = lease(pool, number)
        del view
    assert locks.calls == 1
    assert list(locks.locked.values()) == [GRANULE]
    number = pool.acquire(10)
    assert number is not None
    kept = lease(pool, number)
    pool.close()
    gc.collect()
    assert locks.locked  # the user still looks at it
    del kept
    assert not locks.locked


@pytest.mark.promise(
    "feed-guarantees", "a slab is not used again while a view of it, a late writer or a device may touch it"
)
def test_a_slab_that_a_device_may_still_read_is_not_used_again() -> None:
    locks = Locks()
    pool = SlabPool(4 * GRANULE, locks)
    first = pool.acquire(10)
    assert first is not None
    view = lease(pool, first)
    del view
    second = pool.acquire(10)
    assert second != first
    assert [lease.slab.size for lease in pool.leases()] == [GRANULE]
    locks.passed = True
    assert pool.acquire(10) == first
    pool.close()


def test_slabs_that_cannot_be_locked_need_no_fence() -> None:
    locks = Locks(works=False)
    pool = SlabPool(4 * GRANULE, locks)
    first = pool.acquire(10)
    assert first is not None
    view = lease(pool, first)
    del view
    assert pool.acquire(10) == first
    pool.close()


# What there is


@pytest.mark.parametrize("asked", [None, "cpu", torch.device("cpu"), "cpu:0"])
def test_the_host_is_no_device(asked: Any) -> None:
    assert find_device(asked) is None
    batches = list(DataLoader(Rows(4), batch_size=2, device=asked))
    assert [batch["i"].tolist() for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [("gpu", "is no device of torch"), ("hpu:3", "is not available"), ("meta", "is not available")],
)
def test_a_device_that_is_not_there_is_refused_when_the_loader_is_made(asked: str, message: str) -> None:
    with pytest.raises(FeedError, match=message) as caught:
        DataLoader(Rows(4), device=asked)
    assert "leave device= out" in caught.value.hint


def test_nothing_is_locked_without_a_device() -> None:
    assert find_pinning(None, pin=False) is None
    if not torch.cuda.is_available():
        assert find_pinning(None, pin=True) is None
