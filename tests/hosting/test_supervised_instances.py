"""A supervisor prepares, runs and finishes the hosts of any engine: here one host of two, whose agent is a shell."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.hosting.supervision import supervisor_process
from headrace.hosting.supervision.start import start_supervisor
from headrace.hosting.supervision.supervisor_process import SupervisorProcess
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan, Retry
from headrace.runs import CauseKind, RunPaths, Status, create_run, give_to_engine, read_header
from headrace.runs.store import ASK_ENGINE
from patience import allowed

PROVIDER = """
import os, signal, subprocess
from headrace.runs import Cause, CauseKind, Status

class Shell:
    hosts = ("algo-2",)
    others = ()
    leader_ended = False

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
        self._log("start")
        script = ["sh", "-c", (self._paths.root / "agent.sh").read_text(), "agent", str(self._attempt)]
        self._process = subprocess.Popen(script, cwd=self._paths.root, start_new_session=True)
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


def until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + allowed(20)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SupervisorProcess]]:
    """Starts a run of two hosts, of which this machine has the second; its agent is a shell script."""
    (tmp_path / "shell_instances.py").write_text(PROVIDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # of the supervisor
    monkeypatch.syspath_prepend(tmp_path)  # of its caller
    monkeypatch.delitem(sys.modules, "shell_instances", raising=False)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    started: list[SupervisorProcess] = []

    def make(script: str, attempts: int = 0, by_engine: bool = False) -> SupervisorProcess:
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
        started.append(start_supervisor(paths, "shell_instances"))
        return started[-1]

    yield make
    for each in started:
        each.stop(now=True)
        each.wait(20)
        assert each.finished


def calls(supervisor: SupervisorProcess) -> list[str]:
    path = supervisor.run.paths.root / "calls"
    return path.read_text().splitlines() if path.exists() else []


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
    assert calls(supervisor) == ["prepare", "start", "ended 1", "prepare", "start", "ended 0", "close", "remove"]
    assert (run.paths.host("algo-2") / "code/t.py").read_text() == "as it was sent"
    assert [path.name for path in (run.paths.host("algo-2") / "model").iterdir()] == ["of-attempt-2"]
    assert not run.paths.host("algo-1").exists(), "nothing is done for a host of another machine"


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

    monkeypatch.setattr(supervisor_process, "store_rest", hung)
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
