"""Sharded data on real feed servers: other files on every host, replicas, and hosts that are killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_data import flat
from feed_servers import Server, ask, leave_out_torch, wait_until
from feed_shards import as_it_is, fill, folder, in_lanes, listed, some

from headrace.errors import PipelineError, WorkersLost
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client import remote_pool

FILES = {"a": range(0, 10), "b": range(10, 33), "c": range(33, 40), "d": range(40, 64)}
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "collate_fn": stack_arrays}
Hosts = Callable[..., list[Server]]
without_torch = pytest.mark.usefixtures("without_torch")


@pytest.fixture
def hosts(tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Starts feed servers whose training channels hold these files."""

    def start(*held: str, **options: Any) -> list[Server]:
        servers = []
        for number, names in enumerate(held, 1):
            here = fill(tmp_path / f"host-{number}", {name: FILES[name] for name in names})
            monkeypatch.setenv("SM_CHANNEL_TRAINING", str(here))
            servers.append(own_server(f"host-{number}", **options))
        monkeypatch.delenv("SM_CHANNEL_TRAINING")
        return servers

    return start


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Hosts by what they hold, for the tests that leave them as they are."""
    root, servers = tmp_path_factory.mktemp("standing"), {}
    for names in ("ac", "bd", "abcd", "abc", "bcd"):
        with pytest.MonkeyPatch.context() as patch:
            here = fill(root / f"holds-{names}", {name: FILES[name] for name in names})
            patch.setenv("SM_CHANNEL_TRAINING", str(here))
            leave_out_torch(patch)
            servers[names] = Server(root, f"holds-{names}")
    for server in servers.values():
        server.wait_ready()
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def apart(standing: dict[str, Server]) -> list[Server]:
    """Two hosts that hold different files."""
    return [standing["ac"], standing["bd"]]


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Two epochs as they are on a machine that holds everything."""
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(fill(tmp_path / "all", FILES)))
    with DataLoader(folder(), **OPTIONS) as loader:
        found = [flat(batch) for _ in range(2) for batch in loader]
    monkeypatch.delenv("SM_CHANNEL_TRAINING")
    return found


def served(servers: list[Server], dataset: Any = None, **options: Any) -> DataLoader:
    """A loader over servers by their Unix sockets, which costs no receiver process (0.3 CPU seconds)."""
    workers = ",".join(server.unix_address for server in servers)
    settings = OPTIONS | {"workers": workers, "secret_file": str(servers[0].secret)} | options
    return DataLoader(folder() if dataset is None else dataset, **settings)


def by_tcp(servers: list[Server], **options: Any) -> DataLoader:
    return served(servers, workers=",".join(server.tcp for server in servers), **options)


@pytest.mark.promise(
    "feed-workers", "shards that only some hosts hold: each sample once; what a dead host alone held is named"
)
@pytest.mark.parametrize("held", [("abc", "bcd"), ("abcd", "abc")])
def test_every_sample_comes_once_in_the_same_order_with_the_same_bits_however_files_are_spread(
    held: tuple[str, ...], standing: dict[str, Server], whole: list[bytes]
) -> None:
    with by_tcp([standing[names] for names in held]) as loader:
        assert len(loader) == 8
        assert [flat(batch) for _ in range(2) for batch in loader] == whole
        assert loader.stats()["purity_failures"] == 0


def test_the_own_host_and_large_batches_work_too(apart: list[Server], whole: list[bytes]) -> None:
    first, second = apart
    with by_tcp([first, second]) as loader:
        assert [flat(batch) for _ in range(2) for batch in loader] == whole
        assert loader.stats()["slices_verified"] > 0
    with served([first], workers=f"{first.unix_address},{second.tcp}") as loader:
        assert [flat(batch) for _ in range(2) for batch in loader] == whole
    with by_tcp([first, second], batch_size=64) as loader:
        [batch] = loader
        assert sorted(batch[1].tolist()) == list(range(64))


def test_without_batches_and_with_a_sampler_of_the_user_s(apart: list[Server]) -> None:
    with served(apart, batch_size=None, shuffle=False, collate_fn=as_it_is) as loader:
        assert [sample[1] for sample in loader] == list(range(64))
    with served(apart, batch_size=4, shuffle=False, seed=None, sampler=[63, 0, 11, 12, 35]) as loader:
        assert [batch[1].tolist() for batch in loader] == [[63, 0, 11, 12], [35]]
    loader = served(apart, batch_size=4, shuffle=False, seed=None, sampler=["a"])
    with loader, pytest.raises(PipelineError, match=r"sharded data are indexed with 0\.\.63"):
        list(loader)


def test_an_epoch_goes_on_where_it_was_though_files_are_spread_otherwise(
    standing: dict[str, Server], apart: list[Server], whole: list[bytes]
) -> None:
    with served(apart) as loader:
        batches = iter(loader)
        assert [flat(next(batches)) for _ in range(5)] == whole[:5]
        state = loader.state_dict()
    assert state["length"] == 64
    with served([standing["bcd"], standing["abc"]]) as loader:
        loader.load_state_dict(state)
        assert [flat(batch) for _ in range(2) for batch in loader] == whole[5:]


@without_torch
def test_a_host_that_is_killed_is_not_missed_when_others_hold_its_files(
    standing: dict[str, Server], hosts: Hosts, whole: list[bytes]
) -> None:
    [doomed] = hosts("abc")
    with by_tcp([doomed, standing["bcd"], standing["abcd"]]) as loader:
        found = []
        for number, batch in enumerate(itertools.chain(loader, loader)):
            found.append(flat(batch))
            if number == 3:
                doomed.kill()
        assert found == whole


@pytest.mark.promise(
    "feed-workers", "shards that only some hosts hold: each sample once; what a dead host alone held is named"
)
@without_torch
@pytest.mark.usefixtures("given_up_soon")
def test_what_only_a_killed_host_held_is_named(apart: list[Server], hosts: Hosts) -> None:
    [doomed] = hosts("abd")
    with by_tcp([apart[0], doomed], prefetch_factor=1) as loader:
        batches = iter(loader)
        next(batches)
        doomed.kill()
        with pytest.raises(
            WorkersLost, match=r"data are lost: 47 samples of 'b', 'd' were only on host-1; .*\nhint: start"
        ):
            for _ in batches:
                pass


@without_torch
def test_a_host_that_comes_back_in_time_goes_on_serving_its_files(
    apart: list[Server], hosts: Hosts, whole: list[bytes]
) -> None:
    [back] = hosts("bd")
    with by_tcp([apart[0], back]) as loader:
        found = []
        for number, batch in enumerate(itertools.chain(loader, loader)):
            found.append(flat(batch))
            if number == 2:
                back.kill()
                back.restart(SM_CHANNEL_TRAINING=str(back.secret.parent / "host-1"))
        assert found == whole


def test_an_error_of_the_dataset_is_raised_for_its_batch_only(apart: list[Server]) -> None:
    for bad in (0, 12, 40):  # the first one meets the row whose layout is asked for
        with served(apart, folder(bad), shuffle=False) as loader:
            batches, found = iter(loader), []
            for step in range(8):
                if step == bad // 8:
                    with pytest.raises(KeyError, match=str(bad)):
                        next(batches)
                else:
                    found += next(batches)[1].tolist()
            assert found == [value for value in range(64) if value // 8 != bad // 8]


def test_a_collate_function_needs_a_host_that_holds_the_whole_batch(
    standing: dict[str, Server], apart: list[Server]
) -> None:
    with served([standing["abcd"], standing["bd"]], shuffle=False, collate_fn=listed) as loader:
        assert [value for batch in loader for value in batch] == list(range(64))
    with served(apart, shuffle=False, collate_fn=listed) as loader:
        batches = iter(loader)
        assert next(batches) == list(range(8))
        message = r"no host holds all samples of batch 1 .*\nhint: let the samples stack"
        with pytest.raises(PipelineError, match=message):
            next(batches)
        assert next(batches) == list(range(16, 24))


def test_hosts_that_do_not_declare_their_shards_are_refused(apart: list[Server]) -> None:
    message = r"on holds-\w+ the dataset does (not )?declare shards, elsewhere"
    with served(apart, some()) as loader:
        passes = (
            len(list(loader)) for _ in range(500)
        )  # the first host may be read to the end before the second opens
        with pytest.raises(PipelineError, match=message):
            sum(passes)


@pytest.mark.promise("feed-lanes-ranks", "data without a count: hosts that share only some shards are refused")
def test_lanes_need_all_shards_on_every_host(standing: dict[str, Server], apart: list[Server]) -> None:
    options = {"num_shards": 2, "shuffle": False}
    with served(apart, in_lanes(), **options) as loader:
        passes = (len(list(loader)) for _ in range(500))
        with pytest.raises(PipelineError, match=r"are others than elsewhere(.|\n)*every host needs all of the data"):
            sum(passes)
    with served([standing["abcd"]], in_lanes(), **options) as loader:
        assert {value for batch in loader for value in batch.tolist()} > set(range(20))


def test_ranks_that_see_other_shards_are_told(apart: list[Server]) -> None:
    options = {"rank": 0, "world_size": 2, "name": "spread"}
    with served(apart, **options) as first, served(apart[:1], **(options | {"rank": 1})) as second:
        assert len(first) == 4
        next(iter(first))
        with pytest.raises(PipelineError, match="rank 1 and rank 0 have different plans"):
            next(iter(second))


@without_torch
def test_a_host_that_is_one_too_many_is_let_go_and_takes_the_place_of_one_that_is_killed(
    hosts: Hosts, whole: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = hosts("abcd", "abcd", "abcd")
    monkeypatch.setattr(remote_pool, "MOST_HOSTS", 2)

    def used() -> list[Server]:
        return [server for server in servers if server.process.poll() is None and ask(server).clients]

    with by_tcp(servers, prefetch_factor=1) as loader:
        batches = itertools.chain.from_iterable(iter(loader) for _ in range(2))
        taken = [flat(next(batches)) for _ in range(2)]
        [session] = loader._sessions
        wait_until(lambda: session.count_ready() >= 0 and len(used()) == 2, "the third host is let go")
        killed, kept = used()
        [spare] = set(servers) - {killed, kept}
        killed.kill()
        taken += [flat(batch) for batch in batches]
        assert taken == whole
        assert set(used()) == {kept, spare}
        assert loader.stats()["workers_lost"] == 1
