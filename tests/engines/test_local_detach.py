"""A detached run lives without its caller, its shell and its terminal; others follow, stop and wait for it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from run_places import flag
from stage import agent_pid, kill

from headrace import engines
from headrace.errors import EngineRefused
from headrace.hosting.supervision.cleanup import is_of_run
from headrace.processes.process_table import pids
from headrace.runs import Run, Status, read_header
from patience import until

SLOW = """
import pathlib, sys, time
print("running", flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.02)
print("done", flush=True)
"""
STARTER = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
sys.path[:0] = {path!r}
from headrace import engines
from headrace.job import Job
handle = engines.start(Job(
    "job", source_dir={source!r}, entry_point="train.py", instance_type="ml.c5.xlarge", instance_count=2,
    engines={{"local": {{"address_prefix": {prefix!r}, "stop_grace": 3}}}},
), detach=True)
print(handle.id, flush=True)
{after}
"""


def lines(run):
    return [line.text for line in run.logs() if line.stream.name != "agent"]


def start(stage, after=""):
    """Starts a detached run in a process with a terminal and a session of its own."""
    job = stage.job(SLOW)
    code = STARTER.format(path=sys.path, source=job.source_dir, prefix=stage.prefix, after=textwrap.dedent(after))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        start_new_session=True,
    )
    os.close(slave)
    run = Run.open(process.stdout.readline().strip())
    process.stdout.close()
    return process, run, master


@pytest.fixture
def ended():
    """Ends the runs that a test leaves."""
    runs = []
    yield runs.append
    for run in runs:
        if not run.finished:
            engines.stop(run, now=True)
            until(lambda run=run: run.finished)


def test_it_goes_on_when_its_starter_has_ended_and_comes_to_its_own_end(stage, ended):
    process, run, master = start(stage)
    ended(run)
    assert process.wait(20) == 0
    os.close(master)
    until(lambda: lines(run).count("running") == 2)
    assert run.status is Status.IN_PROGRESS
    flag(run, "enough")
    until(lambda: run.finished)
    assert run.status is Status.COMPLETED
    assert lines(run).count("done") == 2
    stage.observer.assert_nothing_left(run.id, run.paths.root, within=2)


@pytest.mark.promise("engines", "the submitting process is killed, on local")
@pytest.mark.promise("running", "`--detach`: a run goes on without its starter; it is listed, followed and stopped")
def test_it_survives_the_death_of_its_starter_and_of_the_terminal(stage, ended):
    process, run, master = start(stage, "import time; time.sleep(600)")
    ended(run)
    until(lambda: lines(run).count("running") == 2)
    os.killpg(process.pid, signal.SIGHUP)
    os.close(master)
    assert process.wait(20) == -signal.SIGHUP
    supervisor = read_header(run.paths).supervisor_pid
    os.kill(supervisor, signal.SIGHUP)
    for host in ("algo-1", "algo-2"):
        assert os.getsid(agent_pid_of(run, host)) != os.getsid(0)
    time.sleep(1.0)  # the supervisor looks twice a second whether its caller lives
    assert run.status is Status.IN_PROGRESS
    assert engines.stop(run)
    until(lambda: run.finished)
    assert run.status is Status.STOPPED
    assert run.state().exit_code == 130
    stage.observer.assert_nothing_left(run.id, run.paths.root, within=2)


def agent_pid_of(run, host):
    from types import SimpleNamespace

    return agent_pid(SimpleNamespace(run=run), host)


@pytest.mark.promise("engines", "who answers for a run, on local")
def test_when_its_supervisor_is_killed_its_hosts_end_and_the_next_start_removes_what_is_left(stage, ended):
    process, run, master = start(stage)
    ended(run)
    process.wait(20)
    os.close(master)
    until(lambda: lines(run).count("running") == 2)
    kill(read_header(run.paths).supervisor_pid)
    until(lambda: run.finished)
    assert (run.status, str(run.cause)) == (Status.FAILED, "the engine was killed")
    until(lambda: not any(is_of_run(pid, run.id) for pid in pids()), what="the end of its last process")
    after = engines.start(stage.job(SLOW))
    stage.handles.append(after)
    until(lambda: lines(after.run).count("running") == 1)
    stage.observer.assert_nothing_left(run.id, run.paths.root)


def test_a_supervisor_that_is_killed_at_its_start_is_told_with_the_signal(stage, monkeypatch):
    (stage.folder / "killed_at_once.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(stage.folder), prepend=os.pathsep)
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR", "killed_at_once")
    with pytest.raises(EngineRefused, match="supervisor did not start: it was killed by SIGKILL") as caught:
        engines.start(stage.job(SLOW))
    assert "memory" in caught.value.hint
    assert not list((stage.folder / "home" / "runs").iterdir())


def test_a_supervisor_that_comes_slowly_is_waited_for_as_long_as_it_works(stage, monkeypatch):
    (stage.folder / "slow_start.py").write_text(
        "import runpy, time\n"
        "while time.process_time() < 1.5:\n    pass\n"
        "runpy.run_module('headrace.hosting.supervision.supervisor', run_name='__main__')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(stage.folder), prepend=os.pathsep)
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR", "slow_start")
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR_SECONDS", 1.0)
    handle = engines.start(stage.job(SLOW))
    stage.handles.append(handle)
    until(lambda: "running" in lines(handle.run))
    handle.stop()
    assert handle.wait(20) is Status.STOPPED


def test_a_supervisor_that_does_nothing_is_ended_and_the_reason_told(stage, monkeypatch):
    (stage.folder / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(stage.folder), prepend=os.pathsep)
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR", "sleeps")
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR_SECONDS", 0.5)
    with pytest.raises(EngineRefused, match=r"it used no CPU time for 0\.5 s") as caught:
        engines.start(stage.job(SLOW))
    assert "file system" in caught.value.hint
    assert not list((stage.folder / "home" / "runs").iterdir())


def test_its_handle_waits_stops_and_has_the_last_word_too(stage):
    handle = engines.start(stage.job(SLOW), detach=True)
    stage.handles.append(handle)
    until(lambda: "running" in lines(handle.run))
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert handle.exit_code == 130
    stage.assert_nothing_left(handle)
