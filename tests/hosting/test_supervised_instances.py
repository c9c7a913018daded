"""A supervisor prepares, runs and finishes the hosts of any engine: here one host of two, whose agent is a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace.hosting.supervision.start as supervisor_start
from headrace.hosting.supervision.start import SupervisorProcess, start_supervisor
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan, Retry
from headrace.runs import CauseKind, EventWriter, Run, RunPaths, Status, create_run, give_to_engine, read_header
from headrace.runs.events import AttemptStarted, SecondaryStatus
from headrace.runs.store import ASK_ENGINE
from patience import allowed, until

PROVIDER = """
import os, signal, subprocess
from headrace.runs import Cause, CauseKind, Status

class Shell:
    hosts = ("algo-2",)
    others = ()
    decided = True

    def __init__(self, plan, paths, events):
        self.pids = set()
        self._paths = paths
        self._attempt = 0
        self._stopped = False

    def _log(self, what):
        with open(self._paths.root / "calls", "a") as file:
            print(what, file=file)

    def prepare(self):
        self._log("prepare")

    def start(self, used):
        self._attempt += 1
        self._log("start" if used["HEADRACE_ATTEMPT"] == "1" else f"start {used['HEADRACE_ATTEMPT']}")
        with open(self._paths.root / "used", "a") as file:
            print(used["HEADRACE_SPENT"], file=file)
        script = ["sh", "-c", (self._paths.root / "agent.sh").read_text(), "agent", str(self._attempt)]
        variables = {**os.environ, **used}
        self._process = subprocess.Popen(script, cwd=self._paths.root, start_new_session=True, env=variables)
        self.pids.add(self._process.pid)

    def stop(self, command):
        self._stopped = True
        self._log(f"stop {command.kind}")
        os.killpg(self._process.pid, signal.SIGTERM)

    def ended(self, pid, status):
        if pid not in self.pids:
            return None
        self.pids.discard(pid)
        self._process.returncode = self._code = os.waitstatus_to_exitcode(status)
        self._log(f"ended {self._code}")

    def look_after(self):
        pass

    def verdict(self):
        if self._stopped:
            return Status.STOPPED, Cause(CauseKind.STOPPED, "stopped by the user")
        if self._code == 0:
            return Status.COMPLETED, None
        return Status.FAILED, Cause(CauseKind.HOST_LOST, f"exit code {self._code}", infrastructure=True)

    def explained(self, command):
        return command

    def needs_others(self):
        return (self._paths.root / "gone").exists()

    def close(self):
        self._log("close")

    def remove(self):
        self._log("remove")


open_instances = Shell

def clean_up(run):
    os.kill(int((run.paths.root / "agent.pid").read_text()), signal.SIGKILL)
    with open(run.paths.root / "calls", "a") as file:
        print("clean_up", file=file)
"""


CLOSED = ("close", "remove")


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunPaths]:
    """Makes a run of two hosts, of which this machine has the second; its agent is a shell script."""
    (tmp_path / "shell_instances.py").write_text(PROVIDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # of the supervisor
    monkeypatch.syspath_prepend(tmp_path)  # of its caller
    monkeypatch.delitem(sys.modules, "shell_instances", raising=False)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))

    def make(script: str, attempts: int = 0, by_engine: bool = False) -> RunPaths:
        paths = create_run("job", "shell")
        if by_engine:
            give_to_engine(paths)
        plan = LaunchPlan(
            job_name="job",
            run_id=paths.id,
            entry_point="t.py",
            groups=(GroupPlan("all", "ml.c5.xlarge", ("algo-1", "algo-2")),),
            hosts=tuple(HostPlan(f"algo-{n}", "all", f"10.0.0.{n}", "/opt/ml", str(paths.root)) for n in (1, 2)),
            leader="algo-1",
            retry=Retry(attempts),
        )
        paths.plan.write_bytes(msgspec.json.encode(plan))
        paths.code.mkdir()
        (paths.code / "t.py").write_text("as it was sent")
        (paths.host("algo-2") / "code").mkdir(parents=True)
        (paths.root / "agent.sh").write_text(script)
        return paths

    return make


@pytest.fixture
def start(make_run: Callable[..., RunPaths]) -> Iterator[Callable[..., SupervisorProcess]]:
    """Starts such a run."""
    started: list[SupervisorProcess] = []

    def make(*given: Any, **more: Any) -> SupervisorProcess:
        started.append(start_supervisor(make_run(*given, **more), "shell_instances"))
        return started[-1]

    yield make
    for each in started:
        each.stop(now=True)
        each.wait(20)
        assert each.finished


def calls(supervisor: SupervisorProcess) -> list[str]:
    path = supervisor.run.paths.root / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.promise("own-engine", "a supervisor leads the hosts of any engine, again after a failure, and cleans up")
def test_its_hosts_run_again_after_a_failure_of_the_infrastructure_and_finish(start) -> None:
    script = """
    cd hosts/algo-2; mkdir -p model; touch model/of-attempt-$1
    [ "$1" = 2 ] || { echo spoilt > code/t.py; exit 1; }
    """
    supervisor = start(script, attempts=1)
    supervisor.wait(20)
    run = supervisor.run
    assert supervisor.finished
    assert (run.status, run.cause) == (Status.COMPLETED, None)
    assert calls(supervisor) == ["prepare", "start", "ended 1", "prepare", "start 2", "ended 0", "close", "remove"]
    assert (run.paths.host("algo-2") / "code/t.py").read_text() == "as it was sent"
    assert [path.name for path in (run.paths.host("algo-2") / "model").iterdir()] == ["of-attempt-2"]
    assert not run.paths.host("algo-1").exists(), "nothing is done for a host of another machine"


def test_a_supervisor_that_needs_other_hosts_leaves_the_run_to_another_one_with_what_it_has_used(
    make_run: Callable[..., RunPaths],
) -> None:
    paths = make_run("sleep 1; [ $HEADRACE_ATTEMPT = 2 ]", attempts=1, by_engine=True)
    (paths.root / "gone").touch()
    assert supervise(paths) == 1
    first = Run(paths, alive=lambda _: True).state()
    assert (first.finished, first.attempt, first.secondary_status) == (False, 1, SecondaryStatus.PENDING)
    assert [part.status.value for part in first.transitions] == ["Starting", "Training", "Restarting", "Pending"]
    assert "Attempt 2 of 2, after: exit code 1" in first.transitions[-1].message
    with EventWriter(paths.events("engine")) as events:
        events.write(AttemptStarted(t=time.time(), number=2))
    assert supervise(paths) == 0
    state = Run(paths).state()
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    lines = (paths.root / "calls").read_text().splitlines()
    assert lines == [*("prepare", "start", "ended 1"), *CLOSED, *("prepare", "start 2", "ended 0"), *CLOSED]
    used = [float(line) for line in (paths.root / "used").read_text().splitlines()]
    assert used[0] < 1 < used[1], "seconds of max_run before each attempt"
    assert state.instances_started == first.instances_started, "clocks go on"


def supervise(paths: RunPaths) -> int:
    """Supervises a run as a platform does it, without a caller. Returns the exit code."""
    words = [sys.executable, "-m", "headrace.hosting.supervision.supervisor", str(paths.root), "0", "shell_instances"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        return process.wait(allowed(20))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.promise("own-engine", "a supervisor leads the hosts of any engine, again after a failure, and cleans up")
def test_a_stop_reaches_them_and_what_they_leave_running_is_ended(start) -> None:
    supervisor = start("sleep 600 & echo $! > left; setsid sleep 600 & echo $! >> left; touch running; wait")
    until(lambda: (supervisor.run.paths.root / "running").exists())
    supervisor.stop(now=False)
    supervisor.wait(20)
    assert supervisor.finished
    assert supervisor.run.status is Status.STOPPED
    assert calls(supervisor) == ["prepare", "start", f"stop {CauseKind.STOPPED.value}", "ended -15", "close", "remove"]
    left = (supervisor.run.paths.root / "left").read_text().split()
    assert len(left) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)


@pytest.mark.promise("own-engine", "a supervisor leads the hosts of any engine, again after a failure, and cleans up")
def test_when_their_supervisor_is_killed_the_engine_cleans_up_before_the_end_is_written(start) -> None:
    supervisor = start("echo $$ > agent.pid; touch running; exec sleep 600")
    until(lambda: (supervisor.run.paths.root / "running").exists())
    os.kill(read_header(supervisor.run.paths).supervisor_pid, signal.SIGKILL)
    supervisor.wait(20)
    assert supervisor.finished
    assert str(supervisor.run.cause) == "the engine's supervisor was killed by SIGKILL"
    assert calls(supervisor) == ["prepare", "start", "clean_up"]


def test_a_run_that_its_engine_answers_for_is_supervised_too(start) -> None:
    supervisor = start("exit 0", by_engine=True)
    assert read_header(supervisor.run.paths).supervisor_pid == ASK_ENGINE
    supervisor.wait(20)
    assert supervisor.run.status is Status.COMPLETED


def test_storing_the_record_after_a_killed_supervisor_keeps_to_the_time_of_the_wait_and_a_stop_ends_it(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, broken_off = threading.Event(), threading.Event()

    def hung(paths: RunPaths, seconds: float, unwanted: Callable[[], bool], environment: object) -> None:
        began.set()
        until(unwanted)
        broken_off.set()

    monkeypatch.setattr(supervisor_start, "store_rest", hung)
    supervisor = start("echo $$ > agent.pid; touch running; exec sleep 600")
    until(lambda: (supervisor.run.paths.root / "running").exists())
    os.kill(read_header(supervisor.run.paths).supervisor_pid, signal.SIGKILL)
    supervisor.wait(1)
    until(lambda: supervisor.finished)
    assert began.wait(allowed(20))
    supervisor.wait(0.1)
    assert not broken_off.is_set()
    supervisor.stop(now=False)
    supervisor.wait()
    assert broken_off.is_set()
