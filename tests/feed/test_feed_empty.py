"""`feed.empty`: arrays in the slab save a copy, and batches never depend on it, whatever a dataset does with them."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from effort import SOAK
from numpy.typing import NDArray
from torch.utils.data import default_collate, default_convert

from headrace import feed
from headrace.feed.batch import row_arrays
from headrace.feed.batch.pytree import copied, rebuild
from headrace.feed.batch.row_arrays import RowArrays
from headrace.feed.batch.row_layout import Uneven, decode_layout
from headrace.feed.batch.slab import Slab
from headrace.feed.identifiers import PipelineNumber, RequestNumber, SlabNumber
from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.fetch import Built
from headrace.feed.wire.messages import SUM, BatchRows, Done, SliceRequest
from headrace.feed.worker import slices
from headrace.feed.worker.slices import make_slice

SHAPE = (36, 36, 36)  # of floats: 186,624 bytes


def fill(array: NDArray[Any], index: int) -> NDArray[Any]:
    array[...] = np.arange(array.size, dtype=array.dtype).reshape(array.shape) + 1000 * index
    return array


def stacked(keys: Sequence[int]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(fill(np.empty(SHAPE, np.float32), key)) for key in keys])


class Filled:
    """Fills an array of feed.empty for every row, or does what `row` does; notes which had memory of their own."""

    def __init__(self) -> None:
        self.own: list[bool] = []
        self.row: Callable[[int], Any] = lambda index: fill(self.empty(), index)

    def empty(self, shape: Any = SHAPE, dtype: Any = np.float32) -> NDArray[Any]:
        array = feed.empty(shape, dtype)
        self.own.append(array.flags.owndata)
        return array

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Fetching(Filled):
    """Makes all rows of a batch at once."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self.row(key) for key in keys]


def request_for(keys: list[int], layout: bytes, check: int = 0) -> SliceRequest:
    batch = BatchRows(0, 0, len(keys), 0, len(keys), keys)
    return SliceRequest(
        RequestNumber(1), PipelineNumber(1), 0, 7, (batch,), whole=False, layout=layout, slab=SlabNumber(1), check=check
    )


class Worker:
    """Makes batches in one slab, as an executor does: row by row, or, with `__getitems__`, all rows at once."""

    def __init__(self, dataset: Any) -> None:
        self.built = Built(dataset, default_collate, default_collate=True)
        self.slab = Slab.create(4 << 20)
        self.layout = b""

    def make(self, keys: list[int]) -> Any:
        done, fresh = make_slice(self.built, request_for(keys, self.layout), self.slab, 0)
        assert fresh is None
        assert not done.failures
        self.layout = done.layout
        if done.nodes:
            return rebuild(done.nodes[0], self.slab.view(), copied(self.slab.view()))
        return rebuild(decode_layout(done.layout).describe(len(keys)), self.slab.view(), copied(self.slab.view()))


def test_arrays_lie_in_the_slab_and_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Filled()
    worker = Worker(dataset)
    worker.make([0, 1])
    assert dataset.own == [True, False], "nothing is known of the first sample"
    copied: list[Any] = []
    monkeypatch.setattr("headrace.feed.batch.row_layout._stack", lambda *arguments: copied.append(arguments))
    batch = worker.make([5, 6, 7])
    assert dataset.own[2:] == [False] * 3
    assert not copied
    assert torch.equal(batch, stacked([5, 6, 7]))
    worker.slab.close()


def test_rows_that_are_made_at_once_lie_in_the_slab_too(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Fetching()
    worker = Worker(dataset)
    assert torch.equal(worker.make([0, 1]), stacked([0, 1]))
    assert dataset.own == [True, True], "nothing is known of the first batch"
    copied: list[Any] = []
    monkeypatch.setattr("headrace.feed.batch.row_layout._stack", lambda *arguments: copied.append(arguments))
    for keys in ([5, 6, 7], [8, 9]):
        dataset.own.clear()
        assert torch.equal(worker.make(keys), stacked(keys))
        assert dataset.own == [False] * len(keys)
    assert not copied
    monkeypatch.undo()
    dataset.row = lambda index: (fill(dataset.empty(), index), fill(dataset.empty(), index))[0]
    dataset.own.clear()
    assert torch.equal(worker.make([3, 4]), stacked([3, 4])), "one that is dropped is given again"
    assert not all(dataset.own)
    worker.slab.close()


class Turned(Fetching):
    """Returns the rows in another order than that in which their arrays were asked for; some hold what was given."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        made = {key: self.row(key) for key in reversed(keys)}
        return [made[key] for key in keys]


def test_rows_in_another_order_and_fewer_rows_are_right() -> None:
    dataset = Turned()
    worker = Worker(dataset)
    worker.make([0, 1, 2])
    with pytest.warns(RuntimeWarning, match="feed.empty saves nothing here"):
        assert torch.equal(worker.make([3, 4, 5]), stacked([3, 4, 5]))
    dataset.own.clear()
    assert torch.equal(worker.make([6, 7]), stacked([6, 7]))
    assert all(dataset.own)
    worker.slab.close()


class Lane(torch.utils.data.IterableDataset[Any]):
    """A generator, which still holds the array that it has given last; says whether it was in the slab."""

    def __init__(self, rows: int, ahead: int = 0) -> None:
        self.rows, self.ahead = rows, ahead

    def __iter__(self) -> Any:
        waiting: list[Any] = []
        for index in range(self.rows):
            array = feed.empty(SHAPE, np.float32)
            waiting.append((torch.from_numpy(fill(array, index)), not array.flags.owndata))
            if len(waiting) > self.ahead:
                yield waiting.pop(0)
        yield from waiting


@pytest.mark.parametrize("ahead", [0, 2])
def test_lanes_use_it_for_all_rows_but_the_last_of_a_batch(ahead: int) -> None:
    """With `ahead` the generator keeps rows for later batches: those become ordinary memory, with their content."""
    with warnings.catch_warnings(), DataLoader(Lane(18, ahead), batch_size=4, num_workers=1, verify=0) as loader:
        if ahead:
            warnings.simplefilter("ignore", RuntimeWarning)  # in the worker, which is forked
        batches = list(loader)
    assert torch.equal(torch.cat([arrays for arrays, _ in batches]), stacked(range(18)))
    flags = [saved.tolist() for _, saved in batches]
    if ahead == 0:
        assert flags == [[False] * 4, *[[True, True, True, False]] * 3, [True, True]]


def test_what_does_not_fit_is_an_ordinary_array() -> None:
    for shape, dtype in [(SHAPE, np.float64), ((3, 5), np.float32), (0, np.uint8), ((), np.int8), (7, object)]:
        assert feed.empty(shape, dtype).flags.owndata
    dataset = Filled()
    worker = Worker(dataset)
    worker.make([0])
    dataset.own.clear()

    def ask(index: int) -> Any:
        first = dataset.empty((36, 6, 216), np.int32)  # as many bytes
        assert dataset.empty().flags.owndata, "a row is given once"
        with pytest.raises(ValueError, match="negative"):
            feed.empty((-1, 2))
        with pytest.raises(TypeError):
            feed.empty("no shape")  # type: ignore[arg-type]
        return fill(first, index).view(np.float32).reshape(SHAPE)

    dataset.row = ask
    batch = worker.make([3])
    assert dataset.own == [False, True]
    expected = fill(np.empty((36, 6, 216), np.int32), 3).view(np.float32).reshape(SHAPE)
    assert batch.numpy()[0].tobytes() == expected.tobytes()
    worker.slab.close()


class Wild(Filled):
    """Does with its arrays whatever a dataset may do, drawn by index; `plain` has it use ordinary arrays."""

    def __init__(self, seed: int, *, plain: bool) -> None:
        super().__init__()
        self.seed, self.plain = seed, plain
        self.kept: list[Any] = []
        self.buffer: NDArray[Any] | None = None

    def empty(self, shape: Any = SHAPE, dtype: Any = np.float32) -> NDArray[Any]:
        return np.empty(shape, dtype) if self.plain else super().empty(shape, dtype)

    def __getitem__(self, index: int) -> Any:
        draw = random.Random(f"{self.seed} {index}")
        first, second = fill(self.empty(), index), fill(self.empty(), index + 1)
        deeds: list[Callable[[], Any]] = [
            lambda: {"a": first, "b": second},
            lambda: {"a": second, "b": first},
            lambda: {"a": first, "b": first},
            lambda: {"a": first.swapaxes(0, 2), "b": second.transpose(1, 0, 2)},
            lambda: {"a": torch.from_numpy(second).numpy(), "b": np.array(first)},
            lambda: {"a": self.keep(second), "b": first},
            lambda: {"a": self.refill(first, index), "b": second},
            lambda: {"a": first, "b": self.late(second)},
            lambda: self.thrown(first),
            lambda: {"a": first, "b": fill(self.empty(), np.random.randint(100))},
        ]
        return draw.choice(deeds)()

    def keep(self, array: NDArray[Any]) -> NDArray[Any]:
        self.kept.append(array)
        return array

    def refill(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        if self.buffer is None:
            self.buffer = array
        return fill(self.buffer, index + 3)

    def late(self, array: NDArray[Any]) -> NDArray[Any]:
        if self.kept:
            self.kept[-1][0] += 1
        return self.kept[0] if len(self.kept) % 3 == 2 else array

    def thrown(self, array: NDArray[Any]) -> Any:
        held: list[Any] = []
        thread = threading.Thread(target=lambda: held.append(self.empty()))
        thread.start()
        thread.join()
        assert held[0].flags.owndata, "a dataset's own thread gets ordinary arrays"
        return {"a": fill(held[0], 3), "b": array.copy()}


class WildAtOnce(Wild):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


class Alone(Worker):
    """Makes samples that are not batched."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.built = Built(dataset, default_convert, default_collate=True, batched=False)


def test_a_sample_that_is_not_batched_lies_in_the_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Filled()
    worker = Alone(dataset)
    worker.make([0])
    written: list[Any] = []
    write = slices._Target.write_leaves

    def note(target: Any, leaves: Any, *arguments: Any, **options: Any) -> None:
        written.append(len(leaves))
        write(target, leaves, *arguments, **options)

    monkeypatch.setattr(slices._Target, "write_leaves", note)
    assert torch.equal(worker.make([5]), stacked([5])[0])
    assert dataset.own == [True, False]
    dataset.row = lambda index: {"n": np.int64(index), "a": fill(dataset.empty(), index)}
    assert worker.make([6])["a"].numpy().tobytes() == stacked([6])[0].numpy().tobytes(), "it has another place"
    assert worker.make([7])["a"].numpy().tobytes() == stacked([7])[0].numpy().tobytes()
    assert dataset.own == [True, False, False, False]
    assert written == [0, 2, 1]
    worker.slab.close()


@pytest.mark.parametrize("seed", range(30 if SOAK else 3))
def test_samples_that_are_not_batched_are_those_of_ordinary_arrays(seed: int) -> None:
    wild, tame = Wild(seed, plain=False), Wild(seed, plain=True)
    workers = Alone(wild), Alone(tame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for key in range(24):
            learned = workers[0].built.arrays.learned
            object.__setattr__(workers[0].built, "arrays", RowArrays())
            workers[0].built.arrays.learned = learned
            got, expected = (worker.make([key]) for worker in workers)
            assert all(torch.equal(got[name], expected[name]) for name in ("a", "b")), f"seed {seed}, row {key}"
            for kept, other in zip(wild.kept, tame.kept, strict=True):
                assert np.array_equal(kept, other), f"seed {seed}: what the dataset kept is another after {key}"
    for worker in workers:
        worker.slab.close()


@pytest.mark.parametrize("kind", [Wild, WildAtOnce])
@pytest.mark.parametrize("seed", range(30 if SOAK else 3))
def test_batches_are_those_of_ordinary_arrays_whatever_a_dataset_does(seed: int, kind: type[Wild]) -> None:
    wild, tame = kind(seed, plain=False), kind(seed, plain=True)
    workers = Worker(wild), Worker(tame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for start in range(0, 24, 3):
            keys = [start, start + 1, start + 2]
            learned = workers[0].built.arrays.learned
            object.__setattr__(workers[0].built, "arrays", RowArrays())  # it has not seen an array that is held
            workers[0].built.arrays.learned = learned
            got, expected = (worker.make(keys) for worker in workers)
            assert all(torch.equal(got[name], expected[name]) for name in ("a", "b")), f"seed {seed}, rows {keys}"
            for kept, other in zip(wild.kept, tame.kept, strict=True):
                assert np.array_equal(kept, other), f"seed {seed}: what the dataset kept is another after {keys}"
    for worker in workers:
        worker.slab.close()


def make_two(worker: Worker) -> None:
    worker.make([1, 2])
    worker.make([3, 4])


def test_a_dataset_that_keeps_arrays_is_told_once_and_then_given_ordinary_ones() -> None:
    dataset = Filled()
    kept: list[Any] = []
    worker = Worker(dataset)
    worker.make([0])

    def keep(index: int) -> Any:
        kept.append(fill(dataset.empty(), index))
        return kept[-1]

    dataset.row = keep
    dataset.own.clear()
    with pytest.warns(RuntimeWarning, match="feed.empty saves nothing here") as told:
        make_two(worker)
    assert len(told) == 1
    assert dataset.own == [False, True, True, True]
    worker.slab.view()[:] = 0
    assert [int(array[0, 0, 0]) for array in kept] == [1000, 2000, 3000, 4000]
    worker.slab.close()


def test_an_exception_holds_what_it_held_and_the_next_batches_are_right() -> None:
    dataset = Filled()
    worker = Worker(dataset)
    worker.make([0])
    held: list[Any] = []

    def fail(index: int) -> Any:
        array = fill(dataset.empty(), index)
        if index == 2:
            held.append(array)
            raise ValueError("no")
        return array

    dataset.row = fail
    done, _ = make_slice(worker.built, request_for([1, 2], worker.layout), worker.slab, 0)
    assert done.failures
    assert not dataset.own[-1]
    batch = worker.make([3, 4])
    assert [int(row[0, 0, 0]) for row in batch] == [3000, 4000]
    assert int(held[0][0, 0, 0]) == 2000
    worker.slab.close()


def test_samples_that_do_not_stack_and_slices_that_are_only_compared() -> None:
    dataset = Filled()
    worker = Worker(dataset)
    worker.make([0])
    done, _ = make_slice(worker.built, request_for([1], worker.layout, SUM), worker.slab, 0)
    assert isinstance(done, Done)
    assert dataset.own == [True, True], "a slice that is made to be compared has no slab"
    dataset.row = lambda index: fill(dataset.empty(), index)[: 36 - index]
    with pytest.raises(Uneven):
        make_slice(worker.built, request_for([0, 1], worker.layout), worker.slab, 0)
    assert row_arrays._making.rows is None
    worker.slab.close()


def test_a_forked_child_gets_ordinary_arrays() -> None:
    dataset = Filled()
    worker = Worker(dataset)
    worker.make([0])

    def fork(index: int) -> Any:
        if index == 1:
            child = os.fork()
            if not child:
                os._exit(0 if feed.empty(SHAPE, np.float32).flags.owndata else 1)
            assert os.waitpid(child, 0)[1] == 0
        return fill(dataset.empty(), index)

    dataset.row = fork
    worker.make([1, 2])
    assert dataset.own[1:] == [False, False]
    worker.slab.close()


class Told(torch.utils.data.Dataset[Any]):
    """Says in the sample whether its array was in the slab."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        array = feed.empty(SHAPE, np.float32)
        saved = not array.flags.owndata
        return torch.from_numpy(fill(array, index)), saved


def test_the_loader_s_workers_use_it_and_this_process_does_not() -> None:
    loader = DataLoader(Told(), batch_size=4, num_workers=2, persistent_workers=True, verify=0)
    saved = 0
    for step, (arrays, flags) in enumerate(loader):
        assert torch.equal(arrays, stacked(range(4 * step, 4 * step + 4)))
        saved += int(flags.sum())
    assert saved >= 12
    loader.close()
    assert not any(bool(flags.any()) for _, flags in DataLoader(Told(), batch_size=4))
