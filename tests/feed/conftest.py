"""A pair of feed servers that most tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feed_data
import pytest
from feed_servers import Pair, Server, leave_out_torch, serving

from headrace.feed import DataLoader
from headrace.feed.client import remote_pool, shard_placement
from headrace.feed.worker.executor_rules import RESTARTS

_shared: list[Server] = []  # the servers of `pair`


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Starts a shared server again that lost many executors: one that loses too many in a minute ends, by design."""
    for server in _shared:
        if len(server.event("executor_lost")) > RESTARTS // 2:
            server.restart()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two feed servers for the whole session. Tests that end a server start their own."""
    directory = tmp_path_factory.mktemp("pair")
    servers = Pair(Server(directory, "host-a"), Server(directory, "host-b"))
    with serving(*servers):
        _shared.extend(servers)
        yield servers
        _shared.clear()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts feed servers of this test."""
    started: list[Server] = []

    def start(name: str = "host-own", **options: Any) -> Server:
        started.append(Server(tmp_path, name, **options))
        return started[-1].wait_ready()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_torch(monkeypatch)


@pytest.fixture
def given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost host has one second to come back. That it has six is held by `test_feed_placing` with a played clock."""
    for module in (remote_pool, shard_placement):
        monkeypatch.setattr(module, "RECOVER_SECONDS", 1.0)


@pytest.fixture
def loader_at(pair: Pair) -> Callable[..., DataLoader]:
    """Makes a loader whose workers are at a place."""

    def make(place: str, dataset: Any, **options: Any) -> DataLoader:
        where: dict[str, Any] = {"num_workers": 2}
        if place != "local":
            where = {"workers": pair.endpoints()[place], "secret_file": pair.secret}
        return DataLoader(dataset, **({"batch_size": 8} | options), **where)

    return make


@pytest.fixture
def epochs() -> Callable[..., list[bytes]]:
    """Loads epochs and returns the bits of their batches."""

    def load(dataset: Any, count: int = 1, **options: Any) -> list[bytes]:
        with DataLoader(dataset, **({"batch_size": 8, "shuffle": True, "seed": 3} | options)) as loader:
            return [feed_data.flat(batch) for _ in range(count) for batch in loader]

    return load


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is inside a job, whatever the shell says."""
    for name in ("HEADRACE_FEED", "HEADRACE_FEED_SECRET_FILE", "HEADRACE_METRICS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert str(Path(__file__).parent) in sys.path
