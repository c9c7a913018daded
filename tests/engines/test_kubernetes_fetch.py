"""The record of a run comes home from its leader's pod, byte for byte, whatever breaks on the way.

The pod is a folder of its own; a command in it is a real process, which is told the folder's name for the run's.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import SOAK
from kube_server import Exec, Fault, KubeServer, run_process

from headrace.engines.kubernetes.cluster import Cluster, ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import FetchTrouble, RecordFetch, has_end, take_end
from headrace.engines.kubernetes.send_record import (
    ASKED,
    FETCHED,
    OUTPUT_BYTES,
    LastWord,
    decode_known,
    encode_known,
    write_last_word,
)
from headrace.engines.platform_news import alone, platform_news
from headrace.runs import EventWriter, Run, RunPaths, Status, create_run, give_to_engine
from headrace.runs.events import RunFinished, SecondaryStatus, StatusChanged
from headrace.runs.record_pieces import BATCH_BYTES, PIECE_BYTES, Known, known_here

FILES = ("logs/dnn/algo-1/0.log", "logs/data%20x/algo-2/feed.log", "metrics/dnn/algo-1/host.jsonl", "engine/agent.log")


class Pod:
    """The leader's pod: its run directory, its part of the server, and the run's directory here."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.here = create_run("demo", "kubernetes", folder / "runs")
        give_to_engine(self.here)
        self.here.engine.mkdir()
        self.there = RunPaths(folder / "pod" / self.here.id)
        for name in FILES:
            (self.there.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.there.root / "events").mkdir()
        self.there.header.write_bytes(self.here.header.read_bytes())
        self.log = folder / "termination-log"
        self.processes = 0
        server.put("pods", {"metadata": {"name": "lead"}, "status": {"phase": "Running"}})
        server.run = self.run

    async def run(self, given: Exec) -> int:
        self.processes += 1
        command = [each.replace(str(self.here.root), str(self.there.root)) for each in given.command]
        return await run_process(given, command, {**os.environ, "HEADRACE_PYTHON": sys.executable})

    def write(self, name: str, data: bytes) -> None:
        with (self.there.root / name).open("ab") as file:
            file.write(data)

    def event(self, event: object, writer: str = "engine") -> None:
        with EventWriter(self.there.events(writer)) as events:
            events.write(event)

    def end(self) -> None:
        self.event(RunFinished(t=9.0, status=Status.COMPLETED))
        write_last_word(self.there, LastWord(Status.COMPLETED), self.log)

    def assert_same(self) -> None:
        for name in (*FILES, "events/engine.jsonl"):
            there = self.there.root / name
            if there.exists():
                assert (self.here.root / name).read_bytes() == there.read_bytes(), name


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    with KubeServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture
def pod(module_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    monkeypatch.setenv("KUBECONFIG", str(module_server.kubeconfig()))
    monkeypatch.setattr("headrace.engines.kubernetes.cluster.PAUSE_SECONDS", 0.01)
    module_server.objects.clear()
    module_server.faults.clear()
    return Pod(module_server, tmp_path)


@pytest.fixture
def fetch(pod: Pod) -> Iterator[RecordFetch]:
    cluster = Cluster()
    yield RecordFetch(cluster, pod.here, "lead")
    cluster.close()


def text(number: int, size: int) -> bytes:
    line = b"".join(random.Random(number).randbytes(37).hex().encode() + b"\n" for _ in range(max(1, size // 75)))
    return line[: size - 1] + b"\n"


def test_a_record_comes_while_it_grows_and_its_end_is_the_last_of_it(pod: Pod, fetch: RecordFetch) -> None:
    for round_ in range(3):
        for number, name in enumerate(FILES):
            pod.write(name, text(number + 10 * round_, 20_000))
        pod.event(StatusChanged(t=float(round_), status=SecondaryStatus.TRAINING, message=str(round_)))
        pod.write(FILES[0], b"a torn line")
        assert not fetch.fetch(10)
        assert not (pod.here.root / FILES[0]).read_bytes().endswith(b"a torn line"), "whole lines while it grows"
        pod.write(FILES[0], b" is whole\n")
    pod.write(FILES[0], b"the last words of a program that was killed")
    (pod.there.root / "output").mkdir()
    (pod.there.root / "output" / "model.tar.gz").write_bytes(random.Random(1).randbytes(3 << 20))
    pod.end()
    assert fetch.fetch(10)
    assert has_end(pod.here)
    assert not Run(pod.here).finished, "the end waits until the pod and its objects are looked after"
    assert (pod.here.root / "output" / "model.tar.gz").read_bytes() == random.Random(1).randbytes(3 << 20)
    fetch.tell_fetched()
    assert (pod.there.engine / FETCHED).exists()
    assert (pod.there.engine / ASKED).exists()
    take_end(pod.here)
    take_end(pod.here)
    assert not has_end(pod.here)
    assert Run(pod.here).status is Status.COMPLETED
    pod.assert_same()
    assert not list((pod.here.root / "output").glob("*.part"))


def test_what_each_side_has_of_its_own_stays_there(pod: Pod, fetch: RecordFetch) -> None:
    with platform_news(pod.here) as news:
        news.status(SecondaryStatus.PENDING, "no room", 1.0)
    pod.event(StatusChanged(t=2.0, status=SecondaryStatus.STARTING), writer="platform")
    pod.there.plan.write_text("{}")
    (pod.there.root / "secret").write_text("no part of a record")
    header = pod.here.header.read_bytes()
    pod.there.header.write_text("another header")
    fetch.fetch(10)
    assert [event.status for event in Run(pod.here).events()] == [SecondaryStatus.PENDING]
    assert pod.here.plan.read_text() == "{}"
    assert pod.here.header.read_bytes() == header
    assert not (pod.here.root / "secret").exists()


if SOAK:  # in every run: a large output, below

    def test_a_large_backlog_comes_in_bounded_answers(pod: Pod, fetch: RecordFetch) -> None:
        sizes = [3 * BATCH_BYTES // 2, BATCH_BYTES, 2 * PIECE_BYTES, 5]
        for number, (name, size) in enumerate(zip(FILES, sizes, strict=True)):
            pod.write(name, text(number, 1000) * (size // 1000 + 1))
        pod.end()
        assert not fetch.fetch(0), "one answer, and its time is up"
        assert 0 < sum(known_here(pod.here).sent.values()) <= 2 * BATCH_BYTES
        assert fetch.fetch(60)
        take_end(pod.here)
        pod.assert_same()
        assert pod.processes <= 5


FAULTS = ("half", 500, "half", 503)


def test_whatever_breaks_off_nothing_is_lost_or_doubled(pod: Pod, fetch: RecordFetch) -> None:
    output = random.Random(5).randbytes(400_000)
    (pod.there.root / "output" / "below").mkdir(parents=True)
    (pod.there.root / "output" / "below" / "model.bin").write_bytes(output)
    for number, fault in enumerate(FAULTS):
        for name in FILES:
            pod.write(name, text(number, 30_000))
        pod.server.faults.append(Fault(fault, resource="pods/exec"))
        with pytest.raises((KubernetesUnreachable, ExecFailed)):
            fetch.fetch(10)
    pod.end()
    for _ in range(2):
        pod.server.faults[:] = [Fault("none", resource="pods/exec", times=2), Fault("half", resource="pods/exec")]
        with pytest.raises(KubernetesUnreachable):
            fetch.fetch(10)
    assert (pod.here.root / "output" / "below" / "model.bin.part").stat().st_size == 400
    assert fetch.fetch(10)
    take_end(pod.here)
    pod.assert_same()
    assert (pod.here.root / "output" / "below" / "model.bin").read_bytes() == output


def test_an_output_that_broke_off_goes_on_where_it_ended(pod: Pod, fetch: RecordFetch) -> None:
    output = random.Random(6).randbytes(100_000)
    (pod.there.root / "output").mkdir()
    (pod.there.root / "output" / "model.bin").write_bytes(output)
    (pod.here.root / "output").mkdir()
    (pod.here.root / "output" / "model.bin.part").write_bytes(output[:60_000])
    pod.end()
    assert fetch.fetch(10)
    assert (pod.here.root / "output" / "model.bin").read_bytes() == output


def test_what_another_pod_had_made_is_not_mixed_with_what_this_one_makes(pod: Pod, fetch: RecordFetch) -> None:
    pod.here.output.mkdir()
    (pod.here.output / "model.tar.gz.part").write_bytes(b"of the first pod, which broke off")
    fetch.align()
    pod.there.output.mkdir()
    (pod.there.output / "model.tar.gz").write_bytes(b"of the second one, which is longer than what came of the first")
    pod.end()
    assert fetch.fetch(10)
    assert (pod.here.output / "model.tar.gz").read_bytes() == (pod.there.output / "model.tar.gz").read_bytes()


def test_a_large_output_comes_in_bounded_answers_over_several_looks(pod: Pod, fetch: RecordFetch) -> None:
    (pod.there.root / "output").mkdir()
    with (pod.there.root / "output" / "model.bin").open("wb") as file:
        for number in range(5):
            file.seek(number * OUTPUT_BYTES // 2 - number)
            file.write(b"part %d" % number)
    pod.end()
    for looks in range(1, 5):
        if fetch.fetch(0.0 if looks < 2 else 10):
            break
    assert looks == 2, "the first look has no time for it"
    assert pod.processes == 2 + 2 + 3
    there = (pod.there.root / "output" / "model.bin").read_bytes()
    assert (pod.here.root / "output" / "model.bin").read_bytes() == there


def test_a_pod_that_sends_something_else_is_not_believed(pod: Pod, fetch: RecordFetch) -> None:
    pod.there.header.unlink()
    pod.there.root.rename(pod.there.root.with_name("other"))
    pod.there = RunPaths(pod.there.root.with_name("other"))
    with pytest.raises(FetchTrouble, match="a record of other"):
        fetch.fetch(10)

    async def mad(given: Exec) -> int:
        await given.send(1, b"Welcome!\n")
        return 0

    pod.server.run = mad
    with pytest.raises(FetchTrouble, match="is no segment"):
        fetch.fetch(10)

    async def broken(given: Exec) -> int:
        await given.send(2, b"Traceback ...\nModuleNotFoundError: No module named 'msgspec'\n")
        return 1

    pod.server.run = broken
    with pytest.raises(FetchTrouble, match="No module named 'msgspec'"):
        fetch.fetch(10)


def test_several_who_fetch_at_once_and_are_killed_have_one_record(pod: Pod, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from headrace.engines.kubernetes.fetch_record import RecordFetch, has_end\n"
        "from headrace.engines.platform_news import alone\n"
        "from headrace.engines.kubernetes.cluster import connect\n"
        "from headrace.runs import RunPaths\n"
        "paths = RunPaths(Path(sys.argv[1]))\nprint('begun', flush=True)\n"
        "while True:\n"
        "    with alone(paths) as mine:\n"
        "        if mine and RecordFetch(connect(), paths, 'lead').fetch(10):\n"
        "            break\n"
        "    if has_end(paths):\n"
        "        break\n"
        "    time.sleep(0.01)\n"
    )
    command = [sys.executable, "-c", script, str(pod.here.root)]
    stop = threading.Event()

    def grow() -> None:
        number = 0
        while not stop.wait(0.005):
            number += 1
            for name in FILES:
                pod.write(name, text(number, 4000))

    writer = threading.Thread(target=grow)
    writer.start()
    watchers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        for each in watchers:
            assert each.stdout is not None
            assert each.stdout.readline() == b"begun\n"
        for _ in range(1):
            seen = sum(known_here(pod.here).sent.values())
            while sum(known_here(pod.here).sent.values()) < seen + 10_000:
                assert all(each.poll() is None for each in watchers[1:])
                time.sleep(0.02)
            watchers[0].kill()
            watchers[0].communicate()
            watchers[0] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stop.set()
        writer.join()
        pod.end()
        for each in watchers:
            _, errors = each.communicate(timeout=60)
            assert each.returncode == 0, errors.decode()
    finally:
        stop.set()
        writer.join()
        for each in watchers:
            if each.poll() is None:
                each.send_signal(signal.SIGKILL)
                each.communicate()
    with alone(pod.here) as mine:
        assert mine
        take_end(pod.here)
    pod.assert_same()


def test_one_process_at_a_time_fetches(pod: Pod) -> None:
    with alone(pod.here) as mine:
        assert mine
        with alone(pod.here) as also:
            assert not also
    with alone(pod.here, wait=True) as mine:
        assert mine


def test_what_is_known_travels_as_one_short_word() -> None:
    sent = {f"logs/data/algo-{number}/{stream}.log": number for number in range(300) for stream in ("0", "agent")}
    known = Known(sent, {"plan.json": "0123456789abcdef"})
    word = encode_known(known)
    assert decode_known(word) == known
    assert len(word) < 12_000
    for wrong in ("", "????", encode_known(known)[:-9]):
        with pytest.raises(ValueError, match="not what is known"):
            decode_known(wrong)


def test_the_end_of_a_run_does_not_come_before_all_else_is_there(pod: Pod) -> None:
    """Its supervisor writes it, and then closes what is open: a look in between must not be the last one."""
    cluster = Cluster()
    fetch = RecordFetch(cluster, pod.here, "lead")
    pod.event(StatusChanged(t=1.0, status=SecondaryStatus.TRAINING, message=""))
    pod.event(RunFinished(t=9.0, status=Status.COMPLETED))
    for _ in range(2):
        assert not fetch.fetch(10)
        assert len(Run(pod.here).events()) == 1
    (pod.there.root / "output").mkdir()
    (pod.there.root / "output" / "model.tar.gz").write_bytes(b"model")
    write_last_word(pod.there, LastWord(Status.COMPLETED), pod.log)
    assert fetch.fetch(10)
    assert (pod.here.output / "model.tar.gz").read_bytes() == b"model"
    take_end(pod.here)
    pod.assert_same()
    cluster.close()
