"""`num_workers="auto"`, with real processes: where it ends, and that nobody sees it in the batches."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trouble_data
from effort import SOAK
from feed_servers import Server, local_executors, wait_until
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from headrace.feed import Auto, DataLoader, stack_arrays
from headrace.feed.client.local_pool import LocalPool
from headrace.feed.tuning import executor_rule, loader_tuner
from headrace.feed.tuning.loader_tuner import HostUse, memory_left, proportional_bytes
from headrace.feed_metrics import Because
from patience import allowed


class Sleepy(Dataset[torch.Tensor]):
    """Its samples take a while without a core, as from a disk; and hold random numbers, and who they are."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([index, random.random(), float(torch.rand(()))], dtype=torch.float64)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(12) if info is None else range(info.id, 12, info.num_workers))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes tenths of them."""
    for module, name, times in (
        (loader_tuner, "WINDOW_SECONDS", 5),
        (executor_rule, "PAUSE_SECONDS", 30),
        (loader_tuner, "SAMPLE_SECONDS", 5),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / times)


def until(loader: DataLoader, batches: Iterator[Any], pace: float, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Takes batches, at a pace, until the loader's figures are as they should be."""
    end = time.monotonic() + allowed(30.0)
    while not condition(loader.stats()):  # type: ignore[arg-type]
        assert time.monotonic() < end, loader.stats()["tuning"]
        next(batches)
        time.sleep(pace)


def test_it_starts_with_one_grows_to_what_is_needed_and_shrinks_again(quickly: None) -> None:
    with DataLoader(Sleepy(1 << 20, 0.01), 4, num_workers="auto", seed=1) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.stats()["executors"] == 1
        until(loader, batches, 0.012, lambda stats: stats["executors"] >= 3)  # 0.04 s of work, 0.012 s a step
        assert loader.stats()["batches_ahead"] >= 2
        assert 2.0 < loader.stats()["needed_executors"] < 6.0
        grown = local_executors(loader)
        until(loader, batches, 0.12, lambda stats: stats["executors"] <= 2)
        until(loader, batches, 0.02, lambda _: not set(grown) <= set(local_executors(loader)))
        tuning = loader.stats()["tuning"]
        assert tuning is not None
        changes = tuning["changes"]
        assert changes[0].because is Because.STALLED
        assert (changes[0].before, Because.IDLE) in [(1, change.because) for change in changes]
        assert loader.stats()["workers_lost"] == loader.stats()["retries"] == 0
    for pid in grown:
        assert not Path(f"/proc/{pid}").exists()


def test_what_short_passes_tell_is_put_together(quickly: None) -> None:
    """A pass is over, and its workers are gone, before there is as much as is judged at once."""
    with DataLoader(Sleepy(60, 0.01), 4, num_workers="auto", seed=1) as loader:
        end = time.monotonic() + allowed(30.0)
        while loader.stats()["tuning"]["executors"] < 3:  # type: ignore[index]
            assert time.monotonic() < end, loader.stats()["tuning"]
            assert len(list(loader)) == 15
        changes = loader.stats()["tuning"]["changes"]  # type: ignore[index]
        assert changes[0].because is Because.STALLED


@pytest.mark.parametrize("persistent", [False, True] if SOAK else [False])
def test_passes_that_are_too_short_to_measure_are_told_once(persistent: bool) -> None:
    with (
        DataLoader(Sleepy(4, 0.0), 4, num_workers="auto", persistent_workers=persistent) as loader,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for _ in range(2 * loader_tuner.UNMEASURED + 3):
            assert len(list(loader)) == 1
    found = [str(one.message) for one in told if "could measure nothing" in str(one.message)]
    assert len(found) == (0 if persistent else 1)
    assert all("persistent_workers=True" in text for text in found)


def test_a_tuner_that_fails_is_told_once_and_training_goes_on(quickly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def fail(*_: Any) -> None:
        looks.append(1)
        raise OSError("/proc is not there")

    monkeypatch.setattr(loader_tuner.HostUse, "look", fail)
    with (
        DataLoader(Sleepy(1 << 12, 0.002), 4, num_workers="auto", seed=1) as loader,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            for number, batch in enumerate(loader):
                assert batch[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
                if number > 100 and looks:
                    break
        assert loader.stats()["tuning"] is not None
    found = [str(warning.message) for warning in told if "is not tuned any more" in str(warning.message)]
    assert found == [
        "the number of workers is not tuned any more, training goes on with those that there are: "
        "OSError: /proc is not there"
    ]
    assert len(looks) == 1


def resized(context: str | None, seed: int, kill: bool) -> list[bytes]:
    """Two epochs, while executors come and go at random, and are killed."""
    chance = random.Random(seed)
    data, loaded = Sleepy(64, 0.0005), []
    loader = DataLoader(
        data, 4, num_workers=Auto(6), shuffle=True, seed=3, multiprocessing_context=context, verify=0.2,
        persistent_workers=True,
    )  # fmt: skip
    with loader:
        for _ in range(2):
            for batch in loader:
                loaded.append(batch.numpy().tobytes())
                pool = next(iter(loader._sessions)).worker_pool
                assert isinstance(pool, LocalPool)
                if chance.random() < 0.3:
                    pool.resize(chance.randrange(1, 7))
                if kill and chance.random() < 0.15:
                    os.kill(chance.choice(local_executors(loader)), signal.SIGKILL)
        assert loader.stats()["purity_failures"] == 0
    return loaded


def expected() -> list[bytes]:
    with DataLoader(Sleepy(64, 0.0), 4, shuffle=True, seed=3) as loader:
        return [batch.numpy().tobytes() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("kill", [False, True])
def test_batches_are_the_same_whoever_comes_and_goes_and_is_killed(kill: bool) -> None:
    assert resized(None, 11, kill) == expected()


if SOAK:

    @pytest.mark.parametrize("context", ["spawn", "forkserver"])
    def test_executors_of_other_start_methods_come_and_go_too(context: str) -> None:
        assert resized(context, 12, kill=False) == expected()

    def test_many_schedules_of_coming_going_and_killing() -> None:
        wanted = expected()
        for seed in range(60):
            assert resized(None, seed, kill=bool(seed % 2)) == wanted, seed


def test_one_that_is_to_go_and_is_killed_is_not_replaced() -> None:
    with DataLoader(Sleepy(1 << 20, 0.02), 4, num_workers=3, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: next(batches) is not None and len(local_executors(loader)) == 3, "three executors")
        pool = next(iter(loader._sessions)).worker_pool
        pool.resize(1)
        [kept, *leaving] = local_executors(loader)
        for pid in leaving:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: next(batches) is not None and local_executors(loader) == [kept], "the others are gone")
        for _ in range(10):
            next(batches)
        assert local_executors(loader) == [kept]


def test_it_does_not_warn_of_workers_that_may_never_be_started() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(Sleepy(8, 0.0), 4, num_workers="auto")


def test_it_is_as_a_number_for_everybody_else(tmp_path: Path) -> None:
    loader = DataLoader(Sleepy(8, 0.0), 4, num_workers="auto", seed=1)
    assert loader.num_workers == Auto().most > 1
    copy = pickle.loads(pickle.dumps(loader))
    with loader, copy:
        assert [batch.tolist() for batch in copy] == [batch.tolist() for batch in loader]
        json.dumps(loader.stats())


class WhoAsks(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        assert info is not None
        return info.num_workers


def test_workers_are_told_the_most_that_there_will_be() -> None:
    with DataLoader(WhoAsks(), 8, num_workers=Auto(5)) as loader:
        assert [batch.tolist() for batch in loader] == [[min(5, Auto().most)] * 8]


def test_what_cannot_be_is_refused_when_the_loader_is_made() -> None:
    with pytest.raises(ValueError, match=r'must be an integer, "auto" or a feed\.Auto, got .many.'):
        DataLoader(Sleepy(8, 0.0), num_workers="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"or a feed\.Auto, got <class"):
        DataLoader(Sleepy(8, 0.0), num_workers=Auto)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at_most must be an integer of at least 1, got 0"):
        Auto(0)
    with pytest.raises(ValueError, match='num_workers="auto" needs num_shards='):
        DataLoader(Endless(), num_workers="auto")
    with DataLoader(Endless(), 4, num_workers="auto", num_shards=2) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(12))


def test_memory_is_that_of_the_group_with_the_least_left(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    machine = memory_left([group])
    assert 0 < machine[0] <= machine[1]
    (group / "memory.max").write_text(f"{64 << 20}\n")
    (group / "memory.current").write_text(f"{60 << 20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {10 << 20}\n")
    assert memory_left([group, tmp_path]) == (14 << 20, 64 << 20)
    (group / "memory.max").write_text("max\n")
    assert memory_left([group])[1] == machine[1]


def test_what_executors_are_and_how_long_they_waited_for_a_core_is_read_of_the_kernel() -> None:
    use = HostUse([])
    host = use.look([os.getpid()], 7)
    assert host.slabs == 7
    assert host.executor_bytes == pytest.approx(proportional_bytes(os.getpid()), rel=0.2)
    assert use.delayed([os.getpid()]) == 0.0
    assert 0.0 <= use.delayed([os.getpid(), 1 << 30]) < 60.0


@pytest.mark.usefixtures("without_torch", "quickly")
def test_a_loader_of_feed_servers_tells_how_many_hosts_would_do_and_four_times_as_many_at_most(
    tmp_path: Path, own_server: Callable[..., Server]
) -> None:
    server = own_server(executors=1)
    with DataLoader(
        trouble_data.logged(str(tmp_path / "log")), batch_size=10, workers=server.tcp, secret_file=str(server.secret),
        collate_fn=stack_arrays,
    ) as loader:  # fmt: skip
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        assert loader.stats()["desired_workers"] is None
        until(loader, batches, 0.0, lambda stats: stats["desired_workers"] == 4)  # it takes what there is at once
        assert loader.stats()["needed_executors"] > 4  # type: ignore[operator]
        assert loader.stats()["tuning"] is None
