"""A feed server keeps a pipeline open as long as somebody has it open, and shortly for one that lost its connection."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from feed_servers import Server, ask, leave_out_torch, receivers, wait_until
from source_data import fill_tars, noted, write_tar

from headrace import feed
from headrace.feed.identifiers import PipelineNumber
from headrace.feed.wire import messages
from headrace.feed.worker.clients import KEPT_SECONDS, ClientConnection, OpenPipelines

pytestmark = pytest.mark.usefixtures("without_torch")
COUNTS = {"a": 10, "b": 14, "c": 12}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Server]]:
    """Servers by their number of executors, for the tests that end neither; each test has shards of its own."""
    directory = tmp_path_factory.mktemp("standing")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_torch(patch)
        servers = {executors: Server(directory, f"host-of-{executors}", executors=executors) for executors in (1, 2)}
    for server in servers.values():
        server.wait_ready()
    yield servers
    for server in servers.values():
        server.stop()


def loader_of(folder: Path, *servers: Server, **arguments: Any) -> feed.DataLoader:
    pipeline = noted(str(folder), str(folder.with_suffix(".notes")), **arguments)
    where = {"workers": ",".join(server.tcp for server in servers), "secret_file": str(servers[0].secret)}
    return feed.DataLoader(pipeline, batch_size=4, seed=1, collate_fn=feed.stack_arrays, **where)


def keys(loader: feed.DataLoader) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


def held(folder: Path) -> list[str]:
    """The keys that a loader without servers finds."""
    return [row["__key__"] for row in feed.tar(folder)]


def add(folder: Path) -> None:
    fill_tars(folder, {"d": 9})


def rewrite(folder: Path) -> None:
    write_tar(folder / "b.tar", [{"__key__": f"other/{row}", "bin": b"1"} for row in range(17)])


def remove(folder: Path) -> None:
    (folder / "b.tar").unlink()


@pytest.mark.promise("feed-standalone", "on feed servers the next loader finds the shards as they are then")
@pytest.mark.parametrize("change", [add, rewrite, remove])
def test_the_next_loader_finds_the_shards_as_they_are_then(
    change: Callable[[Path], None], standing: dict[int, Server], tmp_path: Path
) -> None:
    folder, server = fill_tars(tmp_path / "data", COUNTS), standing[2]
    first = loader_of(folder, server)
    before = keys(first)
    assert before == held(folder)
    change(folder)
    if change is add:  # a loader that nobody has any more, and that was not closed
        del first
        gc.collect()
        wait_until(lambda: not ask(server).clients, "the end of the connection")
    else:
        first.close()
    with loader_of(folder, server) as second:
        found = [keys(second), keys(second)]
    assert found == [held(folder)] * 2 != [before] * 2


def test_loaders_at_the_same_time_share_what_the_first_one_has_opened(
    standing: dict[int, Server], tmp_path: Path
) -> None:
    folder, server = fill_tars(tmp_path / "data", COUNTS), standing[1]
    with loader_of(folder, server) as first:
        before = keys(first)
        add(folder)
        with loader_of(folder, server) as second:
            assert keys(second) == before
        assert keys(first) == before
    assert (tmp_path / "data.notes").read_text() == "called\n"
    with loader_of(folder, server) as third:
        assert keys(third) == held(folder) != before


@pytest.mark.promise("feed-standalone", "on feed servers the next loader finds the shards as they are then")
def test_a_server_that_was_restarted_and_one_that_was_not_serve_the_next_loader(
    own_server: Callable[..., Server], tmp_path: Path
) -> None:
    folder, servers = fill_tars(tmp_path / "data", COUNTS), [own_server("host-1"), own_server("host-2")]
    with loader_of(folder, *servers) as loader:
        keys(loader)
    add(folder)
    servers[1].kill()
    servers[1].start()
    servers[1].wait_ready()
    with loader_of(folder, *servers) as loader:
        assert keys(loader) == held(folder)


def test_one_that_lost_its_connection_finds_its_pipeline_open(standing: dict[int, Server], tmp_path: Path) -> None:
    folder, server = fill_tars(tmp_path / "data", {"a": 400}), standing[1]
    with loader_of(folder, server) as loader:
        batches = iter(loader)
        found = [key for _ in range(10) for key in next(batches)["key"]]
        [receiver] = receivers()
        receiver.send_signal(signal.SIGKILL)
        found += [key for batch in batches for key in batch["key"]]
        assert found == held(folder)
        assert loader.stats()["workers_lost"] == 1
    assert (tmp_path / "data.notes").read_text() == "called\n"


def test_what_nobody_has_open_is_not_in_memory(standing: dict[int, Server], tmp_path: Path) -> None:
    folder, server = fill_tars(tmp_path / "data", COUNTS), standing[1]

    def memory() -> float:
        [executor] = server.executors()
        return psutil.Process(executor.pid).memory_info().rss / 2**20

    after = []
    for _ in range(4):
        with loader_of(folder, server, megabytes=50) as loader:
            assert keys(loader) == held(folder)
            after.append(memory())
    assert max(after) < after[0] + 75, "one more at most, which has not been let go of yet"
    assert len((tmp_path / "data.notes").read_text().split()) == 4


def client() -> ClientConnection:
    return ClientConnection(Any, "a client", False, 0.0, messages.Challenge(3, b""))  # type: ignore[arg-type]


def opening(opener: str, number: int = 1, **arguments: Any) -> messages.Open:
    return messages.Open(PipelineNumber(number), "module:pipeline", arguments, "", "", True, opener=opener)


def test_a_pipeline_is_let_go_of_after_a_minute_or_when_another_loader_opens_it() -> None:
    pipelines, one, two = OpenPipelines(), client(), client()
    number = pipelines.enter(one, opening("one"), 0.0)
    assert pipelines.enter(two, opening("two"), 0.0) == number
    other = pipelines.enter(two, opening("two", 2, folder="other"), 0.0)
    pipelines.forget(one, 100.0)
    assert not pipelines.let_go(1000.0), "somebody has it open"
    pipelines.forget(two, 1000.0)
    assert not pipelines.let_go(1000.0 + KEPT_SECONDS)
    assert pipelines.enter(two, opening("two", 2, folder="other"), 1010.0) == other, "a blip"
    assert pipelines.enter(two, opening("two"), 1010.0) == number, "a blip"
    assert pipelines.enter(one, opening("one"), 1010.0) == number, "somebody has it open"
    pipelines.forget(two, 1020.0)
    pipelines.forget(one, 1021.0)
    assert pipelines.enter(two, opening("two"), 1030.0) == number, "both may come back, in any order"
    pipelines.forget(two, 1031.0)
    fresh = pipelines.enter(one, opening("three"), 1032.0)
    assert fresh not in (number, other)
    assert pipelines.let_go(1032.0) == [number]
    assert pipelines.let_go(1021.0 + KEPT_SECONDS) == [other]
    pipelines.forget(one, 2000.0)
    assert pipelines.let_go(2000.1 + KEPT_SECONDS) == [fresh]


def test_a_pipeline_whose_number_is_opened_again_with_another_is_let_go_of() -> None:
    pipelines, one = OpenPipelines(), client()
    number = pipelines.enter(one, opening("one"), 0.0)
    again = pipelines.enter(one, msgspec.structs.replace(opening("one"), lanes=2), 1.0)
    assert again != number
    assert pipelines.let_go(1.1 + KEPT_SECONDS) == [number]
    assert pipelines.number(one, PipelineNumber(1)) == again


def test_a_loader_that_comes_while_a_pipeline_is_opened_waits_for_that_one() -> None:
    pipelines, one, two = OpenPipelines(), client(), client()
    number = pipelines.enter(one, opening("one"), 0.0)
    pipelines.waiting[number] = [(one, PipelineNumber(1))]
    pipelines.forget(one, 1.0)
    assert pipelines.enter(two, opening("two"), 2.0) == number


def test_an_executor_may_have_opened_what_was_let_go_of_meanwhile() -> None:
    pipelines, one = OpenPipelines(), client()
    number = pipelines.enter(one, opening("one"), 0.0)
    pipelines.waiting[number] = [(one, PipelineNumber(1))]
    pipelines.forget(one, 0.0)
    assert pipelines.let_go(0.1 + KEPT_SECONDS) == [number]
    assert not pipelines.waiting
    pipelines.opened(messages.Opened(number, 10, True, {}))
    pipelines.failed(messages.OpenFailed(number, messages.RemoteError("builtins:ValueError", "", "")))
