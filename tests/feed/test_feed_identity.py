"""The same batches, bit by bit, wherever they are made and whatever dies. Real servers, real signals."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_data
import feed_data
import msgspec
import psutil
import pytest
from effort import SOAK
from feed_data import flat
from feed_servers import Pair, Server, free_port, local_executors, open_descriptors, receivers, wait_until, write_secret

from headrace.errors import WorkersLost
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client import remote_pool, worker_pool
from headrace.instance.launch_plan import FeedHost, FeedHosts
from headrace.private_folders import write_atomically
from patience import allowed

Load = Callable[..., list[bytes]]
PLACES = ["unix", "tcp", "two tcp", "unix and tcp"]


@pytest.fixture
def truth(epochs: Load) -> Callable[..., list[bytes]]:
    """Loads in this process: what every other way must give."""
    return epochs


@pytest.mark.promise("feed", "the same bits for any number of workers, wherever they are")
@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (3, "fork"), (1, "spawn"), (1, "forkserver")])
def test_local_processes_make_the_batches_of_this_process(
    workers: int, context: str, truth: Load, epochs: Load
) -> None:
    local = epochs(feed_data.noise(), 2, num_workers=workers, multiprocessing_context=context)
    assert local == truth(feed_data.noise(), 2)


@pytest.mark.promise("feed", "the same bits for any number of workers, wherever they are")
@pytest.mark.parametrize(
    ("place", "batch_size"), [("unix", 8), ("unix", None), ("tcp", 8), ("two tcp", None), ("unix and tcp", 7)]
)
def test_feed_servers_make_the_batches_of_this_process(
    place: str, batch_size: int | None, pair: Pair, truth: Load, epochs: Load
) -> None:
    options = {"batch_size": batch_size, "drop_last": batch_size == 7}
    remote = epochs(feed_data.noise(), 2, workers=pair.endpoints()[place], secret_file=pair.secret, **options)
    assert remote == truth(feed_data.noise(), 2, **options)


@pytest.mark.parametrize("place", PLACES if SOAK else ["unix and tcp"])
def test_a_custom_collate_has_the_same_random_numbers_everywhere(
    place: str, pair: Pair, truth: Load, epochs: Load
) -> None:
    options: dict[str, Any] = {"collate_fn": feed_data.collect}
    remote = epochs(feed_data.noise(), 2, workers=pair.endpoints()[place], secret_file=pair.secret, **options)
    assert remote == truth(feed_data.noise(), 2, **options) == epochs(feed_data.noise(), 2, num_workers=2, **options)


@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_batches_without_a_single_byte_arrive(place: str, pair: Pair, truth: Load, epochs: Load) -> None:
    remote = epochs(feed_data.empty_rows(), 2, workers=pair.endpoints()[place], secret_file=pair.secret)
    assert remote == truth(feed_data.empty_rows(), 2)


@pytest.mark.parametrize("place", ["local", "unix and tcp", *(["unix", "tcp", "two tcp"] if SOAK else [])])
def test_big_batches_are_cut_into_parts_that_land_right_even_the_last_partial_one(
    place: str, pair: Pair, truth: Load, epochs: Load
) -> None:
    options: dict[str, Any] = {"batch_size": 16}
    window = {"prefetch_factor": 1}
    expected = truth(feed_data.busy(), 2, **options)
    where = {"num_workers": 2, "workers": "local"} if place == "local" else {"workers": pair.endpoints()[place]}
    if place != "local":
        where["secret_file"] = pair.secret
    with DataLoader(feed_data.busy(), shuffle=True, seed=3, **window, **options, **where) as loader:
        cuts = counting_cuts(loader)
        assert [flat(batch) for _ in range(2) for batch in loader] == expected
    assert max(cuts) > 1, "no batch was cut"


def counting_cuts(loader: DataLoader) -> list[int]:
    """Notes into how many parts the batches of a loader are cut."""
    cuts: list[int] = [0]
    schedule = loader._sessions.waiting(loader._make_session)._schedule
    pop = schedule.pop

    def note(epoch: int, step: int) -> Any:
        batch = pop(epoch, step)
        cuts.append(len(batch.slices))
        return batch

    schedule.pop = note  # type: ignore[method-assign]
    return cuts


def epoch_with(loader: DataLoader, at: int, do: Callable[[], None]) -> list[bytes]:
    """Loads an epoch and does something just before batch `at` is asked for."""
    got = []
    batches = iter(loader)
    for step in range(len(loader)):
        if step == at:
            do()
        got.append(flat(next(batches)))
    assert next(batches, None) is None
    return got


SLOW = feed_data.noise(delay=0.004)  # an epoch of 12 batches that lasts a while


@pytest.fixture(scope="module")
def slow_truth() -> list[bytes]:
    with DataLoader(SLOW, batch_size=8, shuffle=True, seed=3) as loader:
        return [flat(batch) for batch in loader]


def remote(workers: str, server: Server, **options: Any) -> DataLoader:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "prefetch_factor": 2} | options
    return DataLoader(arguments.pop("dataset", SLOW), workers=workers, secret_file=str(server.secret), **arguments)


def test_local_executors_that_are_killed_in_mid_epoch_change_nothing(slow_truth: list[bytes]) -> None:
    with DataLoader(SLOW, batch_size=8, shuffle=True, seed=3, num_workers=2, prefetch_factor=2) as loader:

        def kill() -> None:
            for pid in local_executors(loader):
                os.kill(pid, signal.SIGKILL)

        assert epoch_with(loader, 3, kill) == slow_truth
        assert loader.stats()["workers_lost"] >= 1


@pytest.mark.promise("feed", "the same bits, whichever worker or data host is killed")
@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_an_executor_that_is_killed_in_mid_epoch_changes_nothing(
    place: str, pair: Pair, slow_truth: list[bytes]
) -> None:
    lost = len(pair.a.event("executor_lost"))
    with remote(pair.endpoints()[place], pair.a) as loader:
        assert epoch_with(loader, 3, lambda: pair.a.executors()[0].send_signal(signal.SIGKILL)) == slow_truth
    wait_until(lambda: len(pair.a.event("executor_lost")) > lost, "the loss is told")
    assert pair.a.event("executor_lost")[-1] | {"pid": 0} == {
        "event": "executor_lost", "pid": 0, "status": -9, "hung": False, "reason": "killed by SIGKILL",
        "replaced": True,
    }  # fmt: skip


def serves(address: str, loader: DataLoader) -> bool:
    """Whether the loader, which looks what has come, asks the server at an address for slices."""
    [session] = loader._sessions
    session.count_ready()
    return address in {
        worker.endpoint.address for worker in session.worker_pool.workers() if worker.ready and worker.endpoint
    }


@pytest.mark.promise("feed", "the same bits, whichever worker or data host is killed")
@pytest.mark.parametrize(("victim", "by"), [*([("forkserver", "unix")] if SOAK else []), ("server", "tcp")])
def test_a_whole_data_host_that_dies_in_mid_epoch_changes_nothing(
    victim: str, by: str, pair: Pair, own_server: Callable[..., Server], slow_truth: list[bytes]
) -> None:
    doomed = own_server("doomed")
    (doomed.secret.parent / "secret").write_text(pair.a.secret.read_text())
    address = doomed.unix_address if by == "unix" else doomed.tcp
    with remote(f"{address},{pair.a.tcp}", pair.a) as loader:

        def kill() -> None:
            wait_until(lambda: serves(address, loader), "it serves the loader: who comes late is not missed")
            (doomed.forkserver() if victim == "forkserver" else doomed.process).send_signal(signal.SIGKILL)

        assert epoch_with(loader, 2, kill) == slow_truth
        assert doomed.process.wait(5) != 0
        assert [flat(batch) for batch in loader] != slow_truth  # the second epoch, with the one that is left
        assert loader.stats()["workers_lost"] == 1  # the first may have been over before it was noticed


@pytest.mark.usefixtures("without_torch")
def test_a_server_that_is_killed_and_started_again_on_its_port_goes_on(
    own_server: Callable[..., Server], epochs: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_pool, "RECOVER_SECONDS", 120.0)  # a crowded machine starts it slowly
    server = own_server()

    def restart() -> None:
        server.kill()
        server.start()

    options: dict[str, Any] = {"dataset": array_data.pictures(delay=0.004), "collate_fn": stack_arrays}
    with remote(server.tcp, server, **options) as loader:
        assert epoch_with(loader, 3, restart) == epochs(**options)


def test_a_receiver_process_that_is_killed_is_replaced(pair: Pair, slow_truth: list[bytes]) -> None:
    with remote(pair.both, pair.a) as loader:

        def kill() -> None:
            [receiver] = receivers()
            receiver.send_signal(signal.SIGKILL)

        assert epoch_with(loader, 3, kill) == slow_truth


@pytest.mark.parametrize("by", ["tcp", *(["unix"] if SOAK else [])])
def test_a_host_that_stops_without_closing_is_noticed_and_its_work_is_asked_for_elsewhere(
    by: str, pair: Pair, own_server: Callable[..., Server], slow_truth: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "GONE_AFTER", 1.0)  # here, for the Unix socket; the receiver has its own
    frozen = own_server("frozen")
    frozen.secret.write_text(pair.a.secret.read_text())
    address = frozen.unix_address if by == "unix" else frozen.tcp

    def stop() -> None:
        for process in [*frozen.executors(), psutil.Process(frozen.process.pid)]:
            process.suspend()

    begun = time.monotonic()
    with remote(f"{address},{pair.a.tcp}", pair.a) as loader:
        assert epoch_with(loader, 1, stop) == slow_truth
    assert time.monotonic() - begun < allowed(9)


def test_a_trainer_that_is_busy_for_long_does_not_take_its_workers_for_dead(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "ASK_AFTER", 0.1)
    monkeypatch.setattr(worker_pool, "GONE_AFTER", 0.3)
    with remote(pair.mixed, pair.a) as loader:
        batches = iter(loader)
        next(batches)
        for _ in range(3):
            time.sleep(0.6)  # longer than a server may be silent
            next(batches)
        assert len(list(batches)) == 8
        assert loader.stats()["workers_lost"] == 0


@pytest.mark.promise("feed", "when the last worker is gone, `WorkersLost` names the hosts within seconds")
@pytest.mark.parametrize("by", ["unix", "tcp"])
@pytest.mark.usefixtures("without_torch")
def test_when_the_last_server_is_gone_for_good_the_error_names_it_within_ten_seconds(
    by: str, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "unix":
        monkeypatch.setattr(remote_pool, "RECOVER_SECONDS", 1.5)
    server = own_server("only-host")
    options: dict[str, Any] = {"dataset": array_data.pictures(delay=0.004), "collate_fn": stack_arrays}
    loader = remote(server.unix_address if by == "unix" else server.tcp, server, prefetch_factor=1, **options)
    batches = iter(loader)
    next(batches)
    server.process.kill()
    begun = time.monotonic()
    with pytest.raises(WorkersLost, match=r"no data worker is left: .*(refused|reset|closed)") as error:
        list(batches)
    assert 1 < time.monotonic() - begun < allowed(10)
    assert (server.unix_address if by == "unix" else str(server.port)) in str(error.value)
    loader.close()


def write_places(path: Path, generation: int, secret: Path, *hosts: tuple[str, str, str]) -> None:
    feed = FeedHosts(generation, str(secret), tuple(FeedHost(n, "g", a, 2, state) for n, a, state in hosts))
    write_atomically(path, msgspec.json.encode(feed))


def test_the_job_s_file_is_followed_while_hosts_come_and_go(
    tmp_path: Path, pair: Pair, slow_truth: list[bytes], own_server: Callable[..., Server]
) -> None:
    path = tmp_path / "feed.json"
    first = own_server("first")
    first.secret.write_text(pair.a.secret.read_text())
    later = ("later", pair.b.tcp, "starting")
    write_places(path, 1, pair.a.secret, ("first", first.tcp, "ready"))
    loader = DataLoader(SLOW, batch_size=8, shuffle=True, seed=3, workers=str(path), prefetch_factor=1)

    def change() -> None:
        first.process.kill()
        write_places(path, 2, pair.a.secret, ("first", first.tcp, "lost"), later)

    assert epoch_with(loader, 3, change) == slow_truth
    write_places(path, 3, pair.a.secret, ("first", first.tcp, "lost"))
    loader.close()
    begun = time.monotonic()
    with pytest.raises(WorkersLost, match=r"first \(.*\) lost"):
        next(iter(loader))
    assert time.monotonic() - begun < allowed(5)
    loader.close()


@pytest.mark.usefixtures("without_torch")
def test_servers_that_start_later_are_waited_for(tmp_path: Path, epochs: Load) -> None:
    port = free_port()
    started: list[Server] = []
    write_secret(tmp_path / "secret")
    late = threading.Timer(1.0, lambda: started.append(Server(tmp_path, "late", port=port)))
    late.start()
    options: dict[str, Any] = {"dataset": array_data.pictures(), "collate_fn": stack_arrays}
    where = {"workers": f"tcp://127.0.0.1:{port}", "secret_file": f"{tmp_path}/secret"}
    assert epochs(**options, **where) == epochs(**options)
    late.join()
    started[0].stop()


@pytest.mark.promise(
    "feed-guarantees", "memory is bounded, and progress is made within it; batches beyond are copied and counted"
)
@pytest.mark.parametrize("place", ["unix", "two tcp"])
def test_a_user_who_holds_all_batches_gets_copies_beyond_the_memory_limit(place: str, pair: Pair) -> None:
    with DataLoader(
        feed_data.big(), batch_size=4, workers=pair.endpoints()[place], secret_file=pair.secret, memory=4 << 20
    ) as loader:
        batches = list(loader)
        copied = loader.stats()["bytes_copied"]
    assert [batch[row, 0].item() for batch in batches for row in range(4)] == list(range(64))
    assert all((batch == batch[:, :1]).all() for batch in batches)
    assert 10 << 20 < copied <= 14 << 20  # of 16 MiB, up to half of the limit was not copied


def test_a_user_who_holds_very_many_small_batches_does_not_run_out_of_descriptors(pair: Pair) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        with remote(pair.a.unix_address, pair.a, dataset=feed_data.noise(600), batch_size=2, shuffle=False) as loader:
            batches = list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [index for batch in batches for index in batch[1].tolist()] == list(range(600))


@pytest.mark.promise(
    "feed-guarantees", "memory is bounded, and progress is made within it; batches beyond are copied and counted"
)
@pytest.mark.parametrize("place", ["local", "two tcp"])
def test_a_memory_limit_smaller_than_one_batch_still_makes_progress(place: str, pair: Pair) -> None:
    where: dict[str, Any] = {"num_workers": 2}
    if place != "local":
        where = {"workers": pair.endpoints()[place], "secret_file": pair.secret}
    with DataLoader(feed_data.big(32), batch_size=4, memory=1 << 16, **where) as loader:
        for _ in range(2):
            assert [batch[row, 0].item() for batch in loader for row in range(4)] == list(range(32))


@pytest.mark.promise(
    "feed-guarantees", "memory is bounded, and progress is made within it; batches beyond are copied and counted"
)
@pytest.mark.usefixtures("without_torch")
def test_staging_memory_smaller_than_one_batch_still_makes_progress(own_server: Callable[..., Server]) -> None:
    server = own_server(memory=1 << 16)
    options: dict[str, Any] = {"batch_size": 8, "workers": server.tcp, "secret_file": str(server.secret)}
    with DataLoader(array_data.wide(), collate_fn=stack_arrays, **options) as loader:  # 16 KiB a row
        for _ in range(2):
            assert [row for batch in loader for row in batch[0][:, 0]] == list(range(96))


@pytest.mark.parametrize("place", ["local", "two tcp"])
def test_indices_of_a_sampler_reach_the_dataset_as_they_are(place: str, pair: Pair) -> None:
    import numpy as np
    import torch

    given = [3, "key", (1, "x"), np.int64(5), torch.tensor([1, 2]), None, 2**70]
    where: dict[str, Any] = {"num_workers": 1}
    if place != "local":
        where = {"workers": pair.endpoints()[place], "secret_file": pair.secret}
    with DataLoader(feed_data.keys(), batch_size=None, sampler=given, **where) as loader:
        assert list(loader) == [f"{type(key).__name__}:{key}" for key in given]


@pytest.mark.promise("feed", "every sample of an epoch comes exactly once over all ranks")
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_that_share_a_global_batch_cover_every_index_once_over_two_servers(world: int, pair: Pair) -> None:
    loaders = [
        DataLoader(
            feed_data.noise(51), global_batch_size=12, shuffle=True, seed=3, rank=rank, world_size=world,
            workers=pair.both, secret_file=pair.secret,
        )
        for rank in range(world)
    ]  # fmt: skip
    steps = list(zip(*loaders, strict=True))
    assert len(steps) == 5 == len(loaders[0])
    indices = [index for step in steps for batch in step for index in batch[1].tolist()]
    assert sorted(indices) == list(range(51))
    with DataLoader(feed_data.noise(51), batch_size=12, shuffle=True, seed=3) as alone:
        assert [index for batch in alone for index in batch[1].tolist()] == indices
    for loader in loaders:
        loader.close()


def test_a_pass_that_is_broken_off_does_not_disturb_the_next_one(pair: Pair, slow_truth: list[bytes]) -> None:
    with remote(pair.mixed, pair.a, prefetch_factor=4) as loader:
        for count in (1, 3, 0):
            for step, _ in enumerate(loader):
                if step == count:
                    break
        loader.set_epoch(0)
        assert [flat(batch) for batch in loader] == slow_truth
        assert len(receivers()) == 1


def test_the_second_epoch_begins_while_the_first_ends_and_is_the_same_as_alone(pair: Pair) -> None:
    with remote(pair.both, pair.a) as loader:
        both = [[flat(batch) for batch in loader] for _ in range(2)]
        loader.set_epoch(0)  # not the one that the workers have already begun
        assert [flat(batch) for batch in loader] == both[0]
    with remote(pair.both, pair.a) as loader:
        loader.set_epoch(1)
        assert [flat(batch) for batch in loader] == both[1] != both[0]


@pytest.fixture(autouse=True)
def no_descriptor_growth() -> Iterator[None]:
    """Compares all descriptors of this process, not only sockets."""
    before = open_descriptors()
    yield
    wait_until(lambda: open_descriptors() <= before + 2, "descriptors are closed", 3)
