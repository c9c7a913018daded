"""A trainer that is killed with SIGKILL leaves no process, socket, memfd or file, here or on its feed servers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from effort import SOAK, number
from feed_servers import Server, wait_until
from training import Training, feed_hosts, remote, training

from headrace.feed.batch.slab import MAX_FREE
from observer import abstract_sockets, shared_memory

MOST_STAGING = 6 * (MAX_FREE + 4)  # a free slab is two descriptors in the server and in each of two executors
DATA = {"floats": 16384, "delay": 0.001}  # 64 KB a sample


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables that give a trainer a temporary directory; it is empty at the end, and /dev/shm is as it was."""
    folder, shared = tmp_path / "scratch", shared_memory()
    folder.mkdir()
    yield {"TMPDIR": str(folder)}
    assert list(folder.iterdir()) == []
    assert shared_memory() - shared == set()


def memfds(host: Server) -> int:
    """Returns how many slabs a feed server and its executors have open."""
    count = 0
    for process in [psutil.Process(host.process.pid), *host.executors()]:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                count += "memfd:" in str(descriptor.readlink())
            except FileNotFoundError:
                continue
    return count


def connections(host: Server) -> int:
    """Returns how many TCP connections a feed server has."""
    return sum(each.status == "ESTABLISHED" for each in psutil.Process(host.process.pid).net_connections("tcp"))


def memory(host: Server) -> int:
    """Returns the bytes that a feed server and its executors hold for themselves."""
    processes = [psutil.Process(host.process.pid), *host.executors()]
    return sum(process.memory_full_info().uss for process in processes)


def kill_in_the_middle(trainer: Training, chance: random.Random) -> None:
    trainer.wait_steps(3)
    time.sleep(chance.uniform(0.0, 0.3))  # a random instant
    trainer.process.kill()
    trainer.process.wait(10)


@pytest.mark.promise("feed", "a killed trainer leaves no process, socket, slab or file, here or on its servers")
def test_the_local_workers_of_a_killed_trainer_are_gone(scratch: dict[str, str], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(number(1, 15)):
        loader = {"workers": "local", "num_workers": 3}
        with training(tmp_path, loader=loader, endless=True, dataset=DATA, environment=scratch) as trainer:
            kill_in_the_middle(trainer, chance)
            trainer.nothing_left(5)
            trainer.compare(unfinished=True)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with feed_hosts(tmp_path_factory.mktemp("hosts")) as started:
        yield started


@pytest.mark.promise("feed", "a killed trainer leaves no process, socket, slab or file, here or on its servers")
def test_feed_servers_let_go_of_a_killed_trainer_and_serve_the_next(
    hosts: list[Server], scratch: dict[str, str], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    sockets = [name for host in hosts for name in abstract_sockets() if host.mark in name]
    near, far = hosts
    loader = remote([near, far], near.unix_address)  # slabs of the trainer's on one, staging slabs on the other
    held: list[tuple[int, int]] = []
    for _ in range(number(1, 15)):
        with training(tmp_path, loader=loader, endless=True, dataset=DATA, environment=scratch) as trainer:
            wait_until(lambda: memfds(near) and connections(far), "both hosts work for it", 60)
            kill_in_the_middle(trainer, chance)
            trainer.nothing_left(5)
            wait_until(lambda: not memfds(near), f"slabs of the dead trainer are closed: {memfds(near)}")
            wait_until(lambda: not connections(far), f"its connections are closed: {connections(far)}")
            held.append((memfds(far), memory(near) + memory(far)))
    assert max(fds for fds, _ in held) <= MOST_STAGING, f"staging slabs are used again: {held}"
    assert held[-1][1] <= held[0][1] + (64 << 20), f"memory does not grow: {held}"
    assert [name for host in hosts for name in abstract_sockets() if host.mark in name] == sockets
    with training(tmp_path, loader=loader, dataset=DATA) as following:
        following.finish()


if SOAK:  # in every run: feed/test_feed_slabs.py

    def test_a_feed_server_does_not_collect_slabs_of_batches_made_whole(hosts: list[Server], tmp_path: Path) -> None:
        data = {"words": True, "delay": 0.0}
        with training(tmp_path, loader=remote(hosts[:1]), endless=True, dataset=data) as trainer:
            trainer.wait_steps(50)
            trainer.wait_steps(number(60, 5000))
            assert memfds(hosts[0]) <= MOST_STAGING
            trainer.finish()
