"""Processes that stand still: a start that uses no CPU time, a run that is stopped as a whole, a file that stalls."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from effort import SOAK
from stage import groups, text

from headrace.agent.control.control_messages import SILENCE_LIMIT
from headrace.processes.process_table import Idling, RunningClock
from headrace.runs import Status, Stream
from observer import processes_of
from patience import until


def test_a_running_clock_stands_while_its_process_does_not_run() -> None:
    clock = [100.0]
    running = RunningClock(1.0, lambda: clock[0])
    for step in (0.5, 0.9, 60.0, 0.5):
        clock[0] += step
        seconds = running()
    assert seconds == pytest.approx(0.5 + 0.9 + 1.0 + 0.5)


STARTS = {
    "sleeps": "import time; time.sleep(60)",
    "goes on": "import time\nwhile True: time.sleep(0.03); sum(range(300_000))",
    "spins": "while True: pass",
}


@pytest.mark.parametrize(
    ("start", "limit", "why"),
    [
        ("sleeps", 0.3, "was not ready: it has used no CPU time for 0.3 s"),
        ("goes on", 1.0, ""),
        ("spins", 0.5, "was not ready after 0.5 s of CPU time"),
    ],
)
def test_a_start_is_waited_for_as_long_as_it_uses_cpu_time_and_not_too_much_of_it(start, limit, why) -> None:
    process = subprocess.Popen(["sh", "-c", f'"{sys.executable}" -S -c "$0"; :', STARTS[start]], start_new_session=True)
    try:
        idling, end = Idling(process.pid), time.monotonic() + 3 * limit
        while not (late := idling.overdue(limit)) and (why or time.monotonic() < end):
            time.sleep(0.02)
        assert late == why
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


UNTIL_TOLD = """
import os, pathlib, time
print("running", flush=True)
while not pathlib.Path(os.environ["SM_MODEL_DIR"]).parent.joinpath("checkpoints", "go").exists():
    time.sleep(0.05)
"""


@pytest.mark.promise("slurm-reference", "a run that is stopped or suspended as a whole goes on when it is continued")
def test_a_run_that_is_stopped_as_a_whole_goes_on_when_it_is_continued(stage) -> None:
    handle = stage.start(UNTIL_TOLD, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    pids = [pid for pid, _ in processes_of(handle.id, handle.run.paths.root)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(15 if SOAK else SILENCE_LIMIT + 1)  # so long nobody hears anybody
    time.sleep(1)
    assert not handle.run.finished, handle.run.cause
    for host in ("algo-1", "algo-2"):
        handle.run.paths.host(host).joinpath("checkpoints", "go").touch()
    assert handle.wait(60) is Status.COMPLETED


WRITES = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints"
while not (folder / "write").exists():
    time.sleep(0.05)
for number in range(4000):
    print(number, "x" * 100)
sys.stdout.flush()
(folder / "written").touch()
"""


@pytest.mark.parametrize("host", ["algo-2", *(["algo-1"] if SOAK else [])])
def test_a_file_that_cannot_be_written_for_a_while_does_not_make_its_host_silent(stage, host) -> None:
    handle = stage.start(WRITES, instance_groups=groups(dnn=2))
    paths, hosts = handle.run.paths, ("algo-1", "algo-2")
    until(lambda: all(paths.host(each).joinpath("checkpoints").exists() for each in hosts))
    log = paths.log(Stream("dnn", host, "0"))
    log.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(log)  # who writes there waits until somebody reads it, as on a file system that does not answer
    for each in hosts:
        paths.host(each).joinpath("checkpoints", "write").touch()
    until(lambda: all(paths.host(each).joinpath("checkpoints", "written").exists() for each in hosts))
    time.sleep(SILENCE_LIMIT + 2)
    assert not handle.run.finished, handle.run.cause
    reader = subprocess.Popen(["grep", "-c", "o [0-9]* x", log], stdout=subprocess.PIPE)
    assert handle.wait(60) is Status.COMPLETED
    assert int(reader.communicate()[0]) == 4000


def test_a_disk_that_is_full_for_the_record_makes_no_failure_of_a_job_that_is_complete(stage) -> None:
    handle = stage.start("print('trained')", instance_groups=groups(dnn=1), retry={"attempts": 1})
    record = handle.run.paths.events("algo-1")
    record.parent.mkdir(exist_ok=True)
    record.symlink_to("/dev/full")  # before the agent opens it
    assert handle.wait(60) is Status.COMPLETED
    assert text(handle).count("trained") == 1
