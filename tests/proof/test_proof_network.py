"""Lost packets and links that go down, between hosts in network namespaces."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK, number, repeat
from feed_servers import Server, wait_until
from namespaces import Network, network
from training import Training, feed_hosts, remote, training

pytestmark = pytest.mark.namespaces
DATA = {"floats": 4096, "delay": 0.001}


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(["trainer", "one", "two"]) as made:
        yield made


@pytest.fixture(scope="module")
def hosts(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A feed server on each of the two data hosts."""
    directory = tmp_path_factory.mktemp("hosts")
    with (
        feed_hosts(directory, 1, address=net.address("one"), prefix=net.inside("one")) as one,
        feed_hosts(directory, 1, address=net.address("two"), prefix=net.inside("two")) as two,
    ):
        yield one + two


@pytest.fixture(autouse=True)
def whole(net: Network) -> Iterator[None]:
    """Every test begins and ends with links that work."""
    yield
    for name in ("one", "two"):
        net.plug(name)
        net.lose(name, 0)


def train(net: Network, hosts: list[Server], directory: Path, **options: Any) -> Any:
    options = {"loader": remote(hosts), "dataset": DATA, "endless": True} | options
    return training(directory, prefix=net.inside("trainer"), **options)


def served_by(net: Network, name: str, trainer: Training) -> bool:
    """Waits for a step. Says whether a host has sent a batch's worth of bytes meanwhile."""
    before = net.counted(name)
    trainer.wait_steps(8)
    return net.counted(name) - before > 100_000


@pytest.mark.promise("feed-guarantees", "lost packets, cut links and broken ways cost time and nothing else")
def test_lost_packets_cost_time_and_nothing_else(net: Network, hosts: list[Server], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in repeat(0.04):
        with train(net, hosts, tmp_path) as trainer:
            trainer.wait_steps(5)
            for _ in range(number(2, 8)):
                for name in ("one", "two"):
                    net.lose(name, chance.randrange(5, 20))
                trainer.wait_steps(20, seconds=240)
                assert min(net.lost("one"), net.lost("two")) > 0
            for name in ("one", "two"):
                net.lose(name, 0)
            trainer.finish()


if SOAK:  # in every run: ways that stall, are cut, are half open (test_proof_proxy.py)

    def test_links_go_down_for_seconds_then_one_for_good_then_all(
        net: Network, hosts: list[Server], tmp_path: Path, seed: int
    ) -> None:
        chance = random.Random(seed)
        with train(net, hosts, tmp_path, pace=0.02) as trainer:
            wait_until(lambda: served_by(net, "one", trainer), "host one serves")
            for _ in repeat(0.06):
                net.unplug("one")
                trainer.wait_steps(20)
                time.sleep(chance.uniform(0.0, 5.0))  # shorter and longer than a silent host is waited for
                net.plug("one")
                wait_until(lambda: served_by(net, "one", trainer), "host one serves again", 60)
            net.unplug("one")
            trainer.wait_steps(60)
            net.unplug("two")
            assert trainer.process.wait(60) == 1, "nothing hangs"
            assert "WorkersLost: no data worker is left" in trainer.told()
            assert all(f"{host.address}:{host.port}" in trainer.told() for host in hosts)
            trainer.compare(unfinished=True)
