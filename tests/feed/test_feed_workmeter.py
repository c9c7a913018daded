"""What real data workers tell of their time: a line a second."""

from __future__ import annotations

import itertools
import signal
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import feed_data
import msgspec
import pytest
from feed_servers import Server, receivers, wait_until

from headrace.feed import DataLoader
from headrace.feed.metrics.worker_meter import LinkUse, busy_seconds
from headrace.runs.metric_records import LoaderSecond, Metric, WorkerSecond


def records(path: Path) -> list[LoaderSecond | WorkerSecond]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Metric) for line in lines]  # type: ignore[misc]


def workers(path: Path) -> list[WorkerSecond]:
    return [line for line in records(path) if isinstance(line, WorkerSecond)]


def check(lines: list[WorkerSecond], executors: int) -> None:
    """What is true of every line."""
    assert {line.executors for line in lines} == {executors}
    for line in lines:
        assert line.produce + line.blocked + line.idle == pytest.approx(executors * line.seconds, abs=1e-5)
        assert min(line.produce, line.blocked, line.idle, line.cpu, line.sending) >= 0
        assert line.cpu <= 1.1 * executors * line.seconds + 0.05
        assert line.sending <= line.seconds
    for before, after in itertools.pairwise(lines):
        assert after.t - before.t == pytest.approx(after.seconds, abs=0.02)  # no time is left out


class Told:
    """What one feed server told while a loader used it in three ways."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = [0]

    def mark(self) -> list[WorkerSecond]:
        """Returns the lines of the time since the last mark, when the line of the present second is there."""
        known = len(workers(self.path))
        wait_until(lambda: len(workers(self.path)) > known, "the next line")
        lines = workers(self.path)
        self.marks.append(len(lines))
        return lines[self.marks[-2] :]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    directory = tmp_path_factory.mktemp("measured")
    path = directory / "feed.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_METRICS", str(path))
        started = Server(directory, "host-m")
    yield started.wait_ready(), path
    started.stop()


def all_blocked(lines: list[WorkerSecond]) -> bool:
    return bool(lines) and sum(line.blocked for line in lines) > 0.9 * sum(2 * line.seconds for line in lines)


def test_a_server_tells_what_its_executors_made_sent_and_waited_for(server: tuple[Server, Path]) -> None:
    feed, path = server
    told = Told(path)
    nobody = told.mark()
    check(nobody, 2)
    assert sum(line.produce for line in nobody) == sum(line.samples for line in nobody) == 0
    options = {"workers": feed.tcp, "secret_file": str(feed.secret), "seed": 1, "verify": 0.0, "hedge": False}
    with DataLoader(feed_data.busy(80), batch_size=4, **options) as loader:  # 12 ms of CPU time each
        size = sum(leaf.nbytes for batch in loader for leaf in (batch[0], batch[1], *batch[2].values()))
    lines = told.mark()
    check(lines, 2)
    assert sum(line.samples for line in lines) >= 80  # the next epoch is begun
    assert sum(line.bytes for line in lines) > size
    assert size < sum(line.sent for line in lines) < 2 * size + 100_000
    assert sum(line.slices for line in lines) > 4
    assert sum(line.produce for line in lines) > 0.9  # more on a busy machine
    assert 0.011 < sum(line.cpu for line in lines) / sum(line.samples for line in lines) < 0.019
    # A receiver that does not read: results wait to be sent, and executors wait for them.
    # Whether both executors still have something to do when it stops is chance: then another one is stopped.
    deadline = time.monotonic() + 60
    stopped: list[WorkerSecond] = []
    while not all_blocked(stopped) and time.monotonic() < deadline:
        with DataLoader(feed_data.noise(4000, rows=250_000), batch_size=2, **options) as loader:
            batches = iter(loader)
            next(batches)
            [receiver] = receivers()
            receiver.send_signal(signal.SIGSTOP)
            told.mark()
            stopped = told.mark()  # before the server takes the client for dead
            receiver.send_signal(signal.SIGCONT)
            next(batches)
    check(stopped, 2)
    assert all_blocked(stopped)
    assert sum(line.sending for line in stopped) < 0.2, "it was the receiver, not the network"


def test_a_server_that_is_stopped_tells_of_its_last_second(server: tuple[Server, Path]) -> None:
    feed, path = server
    Told(path).mark()
    stopped = time.time()
    feed.stop()
    assert workers(path)[-1].t >= stopped


def test_a_rank_tells_of_its_own_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.jsonl"
    monkeypatch.setenv("HEADRACE_METRICS", str(path))
    with DataLoader(
        feed_data.Busy(60, 0.012), batch_size=4, num_workers=2, verify=0.0, hedge=False, name="mine"
    ) as loader:
        for _ in range(2):  # the second time with new workers
            for step, _ in enumerate(loader):
                if step == 5:
                    time.sleep(0.3)  # the trainer computes
    lines = workers(path)
    assert {line.loader for line in lines} == {"mine"}
    for line in lines:
        assert line.produce + line.blocked + line.idle == pytest.approx(2 * line.seconds, abs=1e-5)
    assert sum(line.samples for line in lines) == 120
    assert sum(line.produce for line in lines) > 1.4  # 120 samples of 12 ms of CPU time
    assert sum(line.cpu for line in lines) > 1.0
    assert sum(line.sent for line in lines) == 0


def test_outside_a_job_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with DataLoader(feed_data.Noise(16), batch_size=4, num_workers=1) as loader:
        list(loader)
        assert not loader._worker_pool()._work.measures  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


class Connection:
    """A connection whose kernel says what the test wants."""

    def __init__(self) -> None:
        self.bytes_sent, self.busy, self.limited = 0, 0, 0

    def tcp_info(self, size: int) -> bytes:
        return bytes(168) + self.busy.to_bytes(8, "little") + self.limited.to_bytes(8, "little")


def test_the_busiest_connection_tells_how_busy_the_link_is() -> None:
    links, one, two = LinkUse(), Connection(), Connection()
    links.begin(one)
    links.begin(two)
    one.bytes_sent, one.busy, one.limited = 10, 900_000, 500_000  # 0.5 s of them the receiver had no room
    two.bytes_sent, two.busy = 5, 300_000
    assert links.take() == (15, pytest.approx(0.4))
    two.bytes_sent, two.busy = 25, 400_000
    links.end(two)
    assert links.take() == (20, pytest.approx(0.1))
    assert links.take() == (0, 0.0)
    assert busy_seconds(b"") == 0.0


def test_a_connection_that_has_ended_is_not_kept_though_nobody_takes_the_sums() -> None:
    links, connection = LinkUse(), Connection()
    ended = weakref.ref(connection)
    links.begin(connection)
    connection.bytes_sent, connection.busy = 10, 250_000
    links.end(connection)
    del connection
    assert ended() is None  # a server outside a job writes no lines, and may serve for months
    assert links.take() == (10, 0.25)
    assert links.take() == (0, 0.0)
