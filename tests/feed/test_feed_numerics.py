"""Workers that compute with another instruction set or library: told or refused."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Iterator
from typing import Any

import feed_data
import pytest
from feed_data import flat
from feed_servers import Pair, Server

from headrace.feed import DataLoader


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A server as this machine has it and one whose torch uses no vector instructions, for tests that end neither."""
    directory = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADRACE_TEST_THREADS", "2")
        high = Server(directory, "high")
        environment.delenv("HEADRACE_TEST_THREADS")
        environment.setenv("ATEN_CPU_CAPABILITY", "default")
        slow = Server(directory, "low")
    yield high.wait_ready(), slow.wait_ready()
    high.stop()
    slow.stop()


def load(
    dataset: Any, *servers: Server, until_warned: bool = False, **options: Any
) -> tuple[list[bytes], list[str], dict[str, Any]]:
    """Runs an epoch, again until there is a warning. Returns its batches, the warnings' texts, and stats."""
    where = {"workers": ",".join(server.tcp for server in servers), "secret_file": str(servers[0].secret)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with DataLoader(dataset, 4, seed=3, **({"verify": 1.0} | where | options)) as loader:
            deadline, batches = time.monotonic() + 30, [flat(batch) for batch in loader]
            while until_warned and not caught and time.monotonic() < deadline:
                loader.set_epoch(0)
                again = [flat(batch) for batch in loader]
                assert again == batches or options.get("numerics") is None
            return batches, [str(warning.message) for warning in caught], dict(loader.stats())


@functools.cache
def alone(server: Server) -> list[bytes]:
    return load(feed_data.capable(), server)[0]


def test_this_machine_tells_the_instruction_sets_apart(both: tuple[Server, Server]) -> None:
    high, slow = both
    assert alone(high) != alone(slow)


@pytest.mark.promise("feed-errors", "hosts of other numerics are warned of or refused, as the loader is told")
def test_a_mix_is_warned_of_once_and_used(both: tuple[Server, Server]) -> None:
    batches, texts, stats = load(feed_data.capable(), *both, until_warned=True)
    assert len(batches) == 16
    [text] = texts
    assert "workers compute with different libraries or CPUs" in text
    assert "cpu_capability: " in text
    assert "DEFAULT" in text
    assert stats["purity_failures"] == 0, "workers of different kinds are not compared with each other"


def test_equal_servers_are_not_warned_of(pair: Pair) -> None:
    _, texts, _ = load(feed_data.capable(), *pair)
    assert texts == []


@pytest.mark.promise("feed-errors", "hosts of other numerics are warned of or refused, as the loader is told")
def test_refuse_uses_only_one_kind(both: tuple[Server, Server]) -> None:
    high, slow = both
    batches, texts, _ = load(feed_data.capable(), high, slow, numerics="refuse", until_warned=True)
    assert batches in (alone(high), alone(slow))
    [text] = texts
    assert "is not used, it computes with other libraries or another CPU" in text


def test_another_number_of_threads_is_another_kind(pair: Pair, both: tuple[Server, Server]) -> None:
    batches, texts, _ = load(feed_data.threaded(), pair.a, both[0], numerics="refuse", until_warned=True)
    assert len(batches) == 16
    [text] = texts
    assert "is not used" in text
    assert "threads: " in text
