"""Tar shards in the feed: once, in order, bit-identical, wherever workers are, whoever is killed, and when resumed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feed_data import flat
from feed_servers import Server, local_executors, wait_until
from source_data import fill_tars, tars, write_tar

from headrace.feed import DataLoader, Window, stack_arrays

pytestmark = pytest.mark.usefixtures("without_torch")
COUNTS = {"a": 20, "b": 46, "c": 14, "d": 48}
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": Window(4, 3), "seed": 3, "collate_fn": stack_arrays}


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Two epochs as one process makes them of all shards; the channel is set to them."""
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(fill_tars(tmp_path / "all", COUNTS)))
    with DataLoader(tars(), **OPTIONS) as loader:
        found = [flat(batch) for _ in range(2) for batch in loader]
    assert len(found) == 32
    return found


@pytest.fixture
def hosts(tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts feed servers that hold these shards, and makes a loader of them."""

    def start(*held: str, **options: Any) -> tuple[list[Server], DataLoader]:
        servers = []
        for number, names in enumerate(held, 1):
            folder = fill_tars(tmp_path / f"host-{number}", {name: COUNTS[name] for name in names})
            monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
            servers.append(own_server(f"host-{number}"))
        monkeypatch.setenv("SM_CHANNEL_TRAINING", "/nowhere")  # the trainer's host has no data
        where = {"workers": ",".join(server.tcp for server in servers), "secret_file": str(servers[0].secret)}
        return servers, DataLoader(tars(), **OPTIONS | where | options)

    return start


def test_local_processes_make_the_same_bits_and_one_may_be_killed(whole: list[bytes]) -> None:
    with DataLoader(tars(), num_workers=3, **OPTIONS) as loader:
        found = []
        for _ in range(2):
            for step, batch in enumerate(loader):
                found.append(flat(batch))
                if step == 5:
                    os.kill(local_executors(loader)[0], signal.SIGKILL)
        assert found == whole
        # The other workers may have made all that was left before the loss was seen.
        wait_until(lambda: loader.stats()["workers_lost"] or not list(loader), "the loss of a worker")
        assert loader.stats()["purity_failures"] == 0


@pytest.mark.promise("feed-formats", "rows of tar shards come once, in order, with the same bits, whoever is killed")
def test_other_hosts_make_the_same_bits_and_a_host_with_replicas_may_be_killed(
    hosts: Callable[..., Any], whole: list[bytes]
) -> None:
    servers, loader = hosts("abcd", "abcd")
    with loader:
        found = [flat(batch) for batch in loader]
        batches = iter(loader)
        found += [flat(next(batches)) for _ in range(4)]
        servers[0].kill()
        found += [flat(batch) for batch in batches]
        assert found == whole
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["length"] == 128


@pytest.mark.promise("feed-workers", "hosts serve the shards that they have")
def test_hosts_serve_the_shards_that_they_have(hosts: Callable[..., Any], whole: list[bytes]) -> None:
    _, loader = hosts("ac", "bd")
    with loader:
        assert len(loader) == 16
        found = [flat(batch) for batch in loader]
        batches = iter(loader)
        found += [flat(next(batches)) for _ in range(4)]
        assert found == whole[:20]
        assert loader.stats()["purity_failures"] == 0


def test_it_goes_on_with_another_number_of_ranks_and_workers(
    whole: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del whole
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(tmp_path / "all"))
    shared = {"shuffle": Window(4, 3), "seed": 3, "global_batch_size": 16}
    rows = [row for batch in DataLoader(tars(), **shared, rank=0, world_size=1) for row in batch["sum"].tolist()]
    loaders = [DataLoader(tars(), **shared, rank=rank, world_size=2) for rank in range(2)]
    begun = [iter(loader) for loader in loaders]
    for at in range(0, 48, 16):
        assert [row for batches in begun for row in next(batches)["sum"].tolist()] == rows[at : at + 16]
    state = loaders[1].state_dict()
    assert len(json.dumps(state)) < 1000
    four = [DataLoader(tars(), **shared, rank=rank, world_size=4, num_workers=rank % 2) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(state)
    steps = zip(*four, strict=True)
    assert [row for step in steps for batch in step for row in batch["sum"].tolist()] == rows[48:]
    for loader in four:
        loader.close()


def test_a_row_that_cannot_be_read_is_an_error_of_its_own_and_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"__key__": str(row), "bin": b"x" * 20, "cls": b"%d" % row} for row in range(8)]
    rows[3]["cls"] = b"none"
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(tmp_path))
    write_tar(tmp_path / "a.tar", rows)  # type: ignore[arg-type]
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "num_workers": 2}
    with DataLoader(tars(), **options) as loader, pytest.raises(ValueError, match="invalid literal"):
        list(loader)
    with DataLoader(tars(), **options, on_error="skip") as loader:
        assert [row for batch in loader for row in batch["row"].tolist()] == [0, 1, 2, 4, 5, 6, 7]
        assert [left_out.key for left_out in loader.skipped] == [3]
