"""The meaning of every argument is torch's: its own DataLoader is the oracle."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import signal
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from feed_data import Noted, flat, note_worker
from feed_servers import wait_until
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, TensorDataset

from headrace.feed import DataLoader


class Plain:
    """Samples that depend on the index alone."""

    def __init__(self, n: int = 23) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return {"x": torch.full((2, 3), float(index)), "i": index, "t": (np.float32(index), [index, str(index)])}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor"),
        ({"seed": 1, "generator": torch.Generator()}, "seed and generator exclude each other"),
        ({"sampler": [1], "rank": 0}, "a sampler decides what this rank loads"),
        ({"batch_size": None, "world_size": 2}, "batch_size=None cannot be sharded"),
        ({"rank": 2, "world_size": 2}, r"rank must lie in \[0, 2\), got 2"),
        ({"global_batch_size": 9, "world_size": 2, "rank": 0}, "must be a multiple of the 2 ranks"),
        ({"global_batch_size": 8, "world_size": 2, "rank": 0, "batch_size": 3}, "give one of the two"),
    ],
)
def test_what_headrace_adds_is_checked_too(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(Plain(), **arguments)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_what_is_no_dataset_is_refused_and_an_iterable_one_is_read_as_torch_does() -> None:
    with pytest.raises(TypeError, match="and what can be iterated, got one of type int"):
        DataLoader(5)
    for dataset in (Stream(), iter(range(3)), {0, 1, 2}):
        assert [batch.tolist() for batch in DataLoader(dataset, batch_size=2)] == [[0, 1], [2]]
    assert [batch.tolist() for batch in TorchLoader(Stream(), batch_size=2)] == [[0, 1], [2]]


class Raising(Plain):
    def __init__(self, error: BaseException, bad: int = 5) -> None:
        super().__init__()
        self.error, self.bad = error, bad

    def __len__(self) -> int:
        return self.bad + 20

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise self.error
        return index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "bad", [5, 101], ids=["first", "quiet"]
)  # a dataset that draws nothing is called more directly later
def test_stop_iteration_in_a_dataset_does_not_look_like_the_end_of_the_epoch(bad: int, workers: int) -> None:
    good = bad // 4
    with DataLoader(Raising(StopIteration(), bad), batch_size=4, num_workers=workers) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(good)] == [list(range(4 * n, 4 * n + 4)) for n in range(good)]
        with pytest.raises(Exception, match="StopIteration") as error:
            next(batches)
    assert not isinstance(error.value, StopIteration)


class Growing:
    def __init__(self) -> None:
        self.values = [0]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


@pytest.mark.parametrize("seed", [None, 3])
def test_workers_that_do_not_persist_see_a_dataset_that_changed_between_epochs(seed: int | None) -> None:
    dataset = Growing()
    loader = DataLoader(dataset, num_workers=1, seed=seed)
    for epoch in range(3):
        assert [batch.item() for batch in loader] == [0, *[10] * epoch]
        dataset.values.append(10)


def worker_pids(loader: DataLoader) -> set[int]:
    return {worker.link.process.pid for session in loader._sessions for worker in session.worker_pool.workers()}  # type: ignore[attr-defined]


def test_persistent_workers_stay_and_others_end_with_the_epoch() -> None:
    for persistent in (True, False):
        with DataLoader(Plain(), batch_size=4, num_workers=2, persistent_workers=persistent) as loader:
            pids = []
            for _ in range(3):  # the second worker may be started late in the first pass
                for _ in loader:
                    seen = worker_pids(loader)
                pids.append(seen)
                if not persistent:
                    assert not worker_pids(loader)
            assert (pids[1] == pids[2]) is persistent
            assert len(pids[1]) == 2 or not persistent


class Informed(Plain):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return str((Noted.number, info.id, info.num_workers, type(info.dataset).__name__) if info else None)


@pytest.mark.parametrize("context", ["fork", "spawn", multiprocessing.get_context("forkserver")])
def test_get_worker_info_and_worker_init_fn_work_with_every_start_method(context: Any) -> None:
    loader = DataLoader(
        Informed(), batch_size=None, num_workers=1, worker_init_fn=note_worker, multiprocessing_context=context
    )
    assert set(loader) == {"(0, 0, 1, 'Informed')"}
    assert set(DataLoader(Informed(), batch_size=None)) == {"None"}


def raising_init(number: int) -> None:
    raise LookupError(f"worker {number}")


def test_an_error_in_worker_init_fn_is_raised() -> None:
    with pytest.raises(LookupError, match="worker 0"):
        next(iter(DataLoader(Plain(), num_workers=1, worker_init_fn=raising_init)))


def test_a_dataset_that_cannot_be_pickled_for_spawn_is_told() -> None:
    dataset = [lambda: None]
    with pytest.raises(Exception, match=r"cannot start a worker process: .*pickle(.|\n)*hint: .*top of a module"):
        next(iter(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")))


def broken_off(kind: type[Any], **options: Any) -> list[bytes]:
    loader = kind(Plain(), 4, True, **options)
    return [flat(batch) for count in (2, 2, None) for batch in itertools.islice(loader, count)]


def at_once(kind: type[Any], **options: Any) -> list[bytes]:
    loader = kind(Plain(), 4, True, **options)
    return [flat(batches) for batches in zip(loader, loader, strict=True)]


def in_turn(kind: type[Any], **options: Any) -> list[bytes]:
    one, other = [iter(loader) for loader in [kind(Plain(n), 4, True, **options) for n in (23, 9)]]
    return [flat(next(batches)) for batches in (one, one, other, one, other, other, one)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_passes_that_are_left_go_on_beside_each_other_or_take_turns_are_torch_s(options: dict[str, Any]) -> None:
    for use in (broken_off, at_once, in_turn) if len(options) < 2 else (broken_off,):
        batches = []
        for kind in (DataLoader, TorchLoader):
            torch.manual_seed(5)
            batches.append(use(kind, **options))
        assert batches[0] == batches[1], use


def test_an_iterator_knows_its_length_and_ends_for_good() -> None:
    batches = iter(DataLoader(Plain(), batch_size=4))
    assert len(batches) == 6  # type: ignore[arg-type]
    assert len(list(batches)) == 6
    assert next(batches, None) is None


@pytest.mark.promise(
    "feed-guarantees", "random numbers follow from seed, epoch and position; the trainer's own are not disturbed"
)
def test_the_trainer_s_own_random_numbers_are_not_disturbed_by_samples_that_draw() -> None:
    class Drawing(Plain):
        def __getitem__(self, index: int) -> Any:
            return random.random() + np.random.rand() + float(torch.rand(()))

    random.seed(1)
    np.random.seed(1)
    before = (random.getstate()[1][:5], np.random.get_state()[1][:5].tolist())
    list(DataLoader(Drawing(), batch_size=4))
    assert (random.getstate()[1][:5], np.random.get_state()[1][:5].tolist()) == before


def test_with_a_seed_an_epoch_is_a_function_of_seed_and_epoch_whatever_torch_s_generator_says() -> None:
    class Drawing(Plain):
        def __getitem__(self, index: int) -> Any:
            return float(torch.rand(())) + index

    for options in ({"batch_size": 4}, {"batch_size": None}, {"sampler": [3, 1, 2]}, {"batch_sampler": [[3, 1], [2]]}):
        got = []
        for torch_seed in (1, 2):
            torch.manual_seed(torch_seed)
            shuffle = {} if "sampler" in str(options) else {"shuffle": True}
            got.append([flat(batch) for batch in DataLoader(Drawing(), seed=3, **options, **shuffle)])
        assert got[0] == got[1], options


def test_workers_outlive_the_thread_that_made_them() -> None:
    loader = DataLoader(Plain(), batch_size=4, num_workers=2)
    holder: list[Any] = []
    thread = threading.Thread(target=lambda: holder.append(iter(loader)))
    thread.start()
    thread.join()
    assert len(list(holder.pop())) == 6


def test_a_loader_that_is_collected_without_close_leaves_no_process() -> None:
    loader = DataLoader(Plain(), batch_size=4, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 6
    next(iter(loader))  # the second worker may be started late in the first pass
    pids = worker_pids(loader)
    assert len(pids) == 2
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_pass_that_is_dropped_ends_its_workers_though_the_loader_lives() -> None:
    loader = DataLoader(Plain(), batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    pids = worker_pids(loader)
    del batches
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_close_ends_a_pass_that_is_under_way() -> None:
    loader = DataLoader(Plain(), batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(Exception, match="the loader was closed"):
        next(batches)
    assert len(list(loader)) == 6


class Slow(Plain):
    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(60 if index == 4 else 0)
        return index


def test_ctrl_c_during_next_ends_the_pass_and_its_workers() -> None:
    with DataLoader(Slow(), batch_size=4, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        pids = worker_pids(loader)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        timer.join()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "workers are gone", 5)
        assert next(batches, None) is None


def test_a_user_may_keep_batches_after_the_loader_is_closed() -> None:
    with DataLoader(Plain(), batch_size=4, num_workers=1) as loader:
        batches = list(loader)
    rows = [batch["x"][0, 0, 0].item() for batch in batches]
    assert rows == [0, 4, 8, 12, 16, 20]
    batches[0]["x"] += 1
    assert batches[0]["x"][0, 0, 0].item() == 1


@pytest.mark.promise("feed", "ranks that each load everything are told how to divide it")
def test_ranks_that_each_load_everything_are_told_how_to_divide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        data = TensorDataset(torch.arange(8))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(DataLoader(data, 4))) == 2, "alone"
            monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
            list(DataLoader(data, 4, rank=0, world_size=1))
            list(DataLoader(data, global_batch_size=4, rank=1, world_size=2))
            list(DataLoader(data, 4, sampler=range(4)))
        with pytest.warns(UserWarning, match="each of the 2 ranks loads the whole dataset: .* global_batch_size="):
            list(DataLoader(data, 4))
    finally:
        torch.distributed.destroy_process_group()
