"""What a real job measures of itself: memory, network, disk, GPUs and the values that its programs print."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from stage import Stage, text

from headrace import insight
from headrace.runs import Run, Status, Stream, ValueSecond, of_kind
from headrace.runs.describe import describe
from needs import require
from nvml import build_nvml, write_smi

pytestmark = pytest.mark.namespaces

SENT = 8 << 20
WRITTEN = 16 << 20
HELD = 256 << 20
SECONDS = 4.5

SCRIPT = f"""
import mmap, os, socket, sys, time
began = time.monotonic()
hosts = ("algo-1", "algo-2")
me = os.environ["SM_CURRENT_HOST"]
if me == "algo-1":
    shared = mmap.mmap(-1, {HELD})          # shared memory that four processes map: it must count once
    for place in range(0, {HELD}, 4096):
        shared[place] = 1
    held = []
    for _ in range(3):
        held.append(os.fork())
        if held[-1] == 0:
            touched = sum(shared[place] for place in range(0, {HELD}, 4096))
            time.sleep({SECONDS})
            os._exit(0)
    with socket.create_server(("", 5555)) as server:
        print("step 1 loss=1.50;", flush=True)
        peer, _ = server.accept()
        got = 0
        while data := peer.recv(1 << 20):
            got += len(data)
    print("got", got)
    print("step 2 loss=0.25; and nothing after it")
    print("lr=1e-3 loss=nan;")
    print("a" * 5000 + " loss=7;")          # beyond the part of a line that is searched
    print("x" * 60 + "!", flush=True)      # what the regex `evil` never ends with
    while time.monotonic() < began + {SECONDS}:
        time.sleep(0.1)
        print("speed 42")
    for pid in held:
        os.waitpid(pid, 0)
else:
    for _ in range(200):
        try:
            peer = socket.create_connection((hosts[0], 5555), timeout=1)
            break
        except OSError:
            time.sleep(0.05)
    time.sleep(1.5)                         # inside the window of the figures, which begins with a whole second
    peer.sendall(bytes({SENT}))
    peer.close()
    with open("big", "wb") as file:
        file.write(os.urandom({WRITTEN}))
        file.flush()
        os.fsync(file.fileno())
    print("loss=9.0; from the other host", file=sys.stderr, flush=True)
    time.sleep({SECONDS} - 2)
"""
DEFINITIONS = [
    {"Name": "loss", "Regex": "loss=(.*?);"},
    {"Name": "speed", "Regex": "speed ([0-9]+)"},
    {"Name": "evil", "Regex": "(x+)+$"},
    {"Name": "never", "Regex": "never ([0-9])"},
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory):
    """One finished run of two hosts, of which the first owns GPUs 1 and 2 of the machine."""
    require("namespaces", "g++")
    folder = tmp_path_factory.mktemp("measuring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(folder / "home"))
        patch.setenv("LD_LIBRARY_PATH", str(build_nvml(folder / "lib")), prepend=os.pathsep)
        patch.setenv("PATH", str(write_smi(folder / "bin")), prepend=os.pathsep)
        patch.setenv("FAKE_NVML_LOST", "2")
        stage = Stage(folder, "namespace")
        handle = stage.start(
            SCRIPT,
            instance_groups=[
                {"instance_group_name": "gpu", "instance_type": "ml.g5.12xlarge", "instance_count": 1},
                {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "instance_count": 1},
            ],
            metric_definitions=DEFINITIONS,
            local={"gpus": {"gpu": "1,2"}},
        )
        try:
            assert handle.wait(60) is Status.COMPLETED, text(handle)
        finally:
            if handle.exit_code is None:
                handle.stop(now=True)
                handle.wait(20)
        stage.assert_nothing_left(handle)
        run = handle.run
        hosts = {stream.host: found for stream, found in run.host_seconds().items()}
        yield SimpleNamespace(run=run, hosts=hosts, notes=text(handle, "gpu/algo-1[agent]"), report=insight.report(run))


def group(done: SimpleNamespace, name: str) -> insight.GroupReport:
    return next(each for each in done.report.groups if each.name == name)


def test_the_network_of_a_host_is_its_own(done) -> None:
    first, second = done.hosts["algo-1"], done.hosts["algo-2"]
    received = first[-1].received - first[0].received
    assert SENT < received < 1.3 * SENT
    assert SENT < second[-1].sent - second[0].sent < 1.3 * SENT
    assert first[-1].sent - first[0].sent < SENT / 4
    figure = group(done, "gpu").network_received
    assert figure.unit == "bytes/s"
    assert figure.window is not None
    assert figure.value == pytest.approx(SENT / figure.window.seconds, rel=0.35)


def test_bytes_that_went_to_the_disk_are_counted_and_never_go_back(done) -> None:
    seconds = done.hosts["algo-2"]
    assert WRITTEN <= seconds[-1].written < 1.5 * WRITTEN  # after its program has ended
    for found in done.hosts.values():
        for before, after in itertools.pairwise(found):
            assert after.read >= before.read
            assert after.written >= before.written
    assert group(done, "data").disk_written.value > 0
    assert done.hosts["algo-1"][-1].written < WRITTEN / 4


@pytest.mark.needs("memory groups")
def test_memory_in_use_counts_a_shared_page_once_and_the_limit_is_the_instances(done) -> None:
    seconds = done.hosts["algo-1"]
    assert all(second.memory == seconds[0].memory and second.used is not None for second in seconds)
    peak = max(second.used for second in seconds)
    assert HELD < peak < 2 * HELD
    assert max(second.rss for second in seconds) > 3 * HELD  # four processes have touched it
    memory = group(done, "gpu").memory
    assert memory.value == pytest.approx(100 * peak / seconds[0].memory)
    assert memory.note == ""


def test_only_the_gpus_of_a_host_are_read_and_one_that_fails_is_told_once(done) -> None:
    assert not any(second.gpus for second in done.hosts["algo-2"])
    shown = [second.gpus for second in done.hosts["algo-1"] if second.gpus]
    assert [gpu.index for gpu in shown[0]] == [1, 2]
    assert (shown[0][0].name, shown[0][0].use, shown[0][0].power) == ("Fake 1", 20.0, 50.0)
    assert (shown[0][0].memory, shown[0][0].memory_total) == (8 << 30, 16 << 30)
    assert [gpu.index for gpu in shown[-1]] == [1]
    assert done.notes.count("no figures of GPU 2 while it fails: GPU is lost") == 1
    report = group(done, "gpu")
    assert report.gpu_memory.value == 50.0
    assert report.gpu_power.value == 150.0
    assert report.gpu_use.value == 25.0
    assert report.by_host[0].gpus == ("1: Fake 1", "2: Fake 2")
    data = group(done, "data")
    assert data.gpu_use.value is None
    assert "no GPU" in data.gpu_use.note
    log = done.run.logs("data/algo-2/agent")
    assert not any("GPU" in line.text for line in log)  # it has none, so nothing is missing


def test_metric_definitions_find_values_in_the_lines_of_every_host(done) -> None:
    seconds = of_kind(done.run.metrics(), ValueSecond)
    assert {stream.name for stream in seconds} == {"values"}
    loss = {each.name: each for each in done.report.values}["loss"]
    assert loss.programs == ("data/algo-2[0]", "gpu/algo-1[0]")
    assert (loss.count.value, loss.min.value, loss.max.value) == (3, 0.25, 9.0)
    assert loss.mean.value == pytest.approx((1.5 + 0.25 + 9) / 3)
    speed = [each for each in seconds[Stream("gpu", "algo-1", "values")] if each.name == "speed"]
    assert sum(each.count for each in speed) > 10
    assert 2 <= len(speed) <= SECONDS + 2  # summed up once a second
    never = {each.name: each for each in done.report.values}["never"]
    assert never.last.value is None
    assert "matched" in never.last.note


def test_what_was_left_out_of_the_lines_is_told(done) -> None:
    assert "values of loss were no finite numbers, the first: 'nan'" in done.notes
    assert "lines were searched in their first 4096 characters only" in done.notes
    assert "searches of evil were broken off after 50 ms" in done.notes
    assert done.notes.count("1 searches of evil were broken off") == 1


def test_the_description_has_the_last_value_of_each_metric_as_the_service_has_it(done) -> None:
    final = {each["MetricName"]: each for each in describe(done.run)["FinalMetricDataList"]}
    assert final.keys() == {"loss", "speed"}
    assert final["speed"]["Value"] == 42.0
    assert abs(final["speed"]["Timestamp"].timestamp() - time.time()) < 600


def test_a_run_without_metric_definitions_has_no_such_list(tmp_path: Path) -> None:
    from headrace.runs import create_run

    run = Run(create_run("job", "local", tmp_path))
    assert "FinalMetricDataList" not in describe(run)
