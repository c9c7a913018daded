"""A network that delays, corrupts, cuts, trickles, stalls or never answers costs time, and nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK, repeat
from feed_servers import Server, wait_until
from training import HERE, feed_hosts, remote, training

PORTS = range(21_000, 21_000 + (400 if SOAK else 20))  # of 127.0.0.21, where nobody else listens
BIG = {"floats": 4096, "delay": 0.001}  # 16 KB a sample: most bytes are payload


_ports = itertools.cycle(PORTS)


class FaultProxy:
    """One `fault_proxy.py` in front of a feed server."""

    def __init__(self, directory: Path, target: Server, **options: Any) -> None:
        self.port = next(_ports)
        self._log = directory / f"proxy-{self.port}"
        command = [sys.executable, str(HERE / "fault_proxy.py"), "--listen", f"127.0.0.21:{self.port}"]
        command += ["--target", f"{target.address}:{target.port}"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: "listening" in self.told(), "the proxy listens")

    @property
    def tcp(self) -> str:
        return f"tcp://127.0.0.21:{self.port}"

    def told(self) -> str:
        return self._log.read_text()

    def faults(self) -> int:
        """Returns how often it has misbehaved."""
        return self.told().count(": connection ")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        print(self.told()[-4000:])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two feed servers that all tests of this file share: what happens on the way does them no harm."""
    told = [f"--advertise=127.0.0.21:{port}" for port in PORTS]
    with feed_hosts(tmp_path_factory.mktemp("hosts"), arguments=told) as started:
        yield started


@pytest.fixture
def proxy(tmp_path: Path, hosts: list[Server]) -> Iterator[Callable[..., FaultProxy]]:
    """Starts proxies, by default before the first host."""
    started: list[FaultProxy] = []

    def start(**options: Any) -> FaultProxy:
        started.append(FaultProxy(tmp_path, options.pop("target", hosts[0]), **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()


# In a short run all faults of a kind at once, each on a way of its own; in a long run each alone, too.
HURT = [["delay", "corrupt", "cut"]]
BROKEN = [["half-open", "trickle", "stall"]]
if SOAK:
    HURT += [[fault] for fault in HURT[0]]
    BROKEN += [[fault] for fault in BROKEN[0]]


@pytest.mark.parametrize("faults", HURT, ids=" ".join)
def test_bad_ways_cost_time_and_nothing_else_even_if_there_is_no_good_one(
    faults: list[str], proxy: Callable[..., FaultProxy], hosts: list[Server], tmp_path: Path, seed: int
) -> None:
    for round_ in repeat(0.02):
        ways = [
            proxy(fault=fault, every=1_000_000, seed=seed % 10**6 + round_, target=hosts[place % 2])
            for place, fault in enumerate(faults)
        ]
        loader = remote(hosts[:1], *(way.tcp for way in ways))
        with training(tmp_path, loader=loader, endless=True, dataset=BIG) as trainer:
            while trainer.steps < 60 or any(way.faults() < 3 for way in ways):
                trainer.wait_steps(10)
            trainer.finish()


@pytest.mark.promise("feed-guarantees", "lost packets, cut links and broken ways cost time and nothing else")
@pytest.mark.parametrize("faults", BROKEN, ids=" ".join)
def test_hosts_behind_broken_ways_hold_nobody_up_while_another_serves(
    faults: list[str], proxy: Callable[..., FaultProxy], hosts: list[Server], tmp_path: Path, seed: int
) -> None:
    for round_ in repeat(0.02):
        ways = [proxy(fault=fault, every=300_000, seed=seed % 10**6 + round_, connections=1) for fault in faults]
        loader = remote(hosts[1:], *(way.tcp for way in ways), hosts[1].tcp)
        with training(tmp_path, loader=loader, endless=True, dataset=BIG) as trainer:
            while not all(way.faults() for way in ways):
                trainer.wait_steps(10)
            trainer.wait_steps(40)
            trainer.finish()
