"""Runs that a platform answers for, no process of this machine, with an engine of another package (`queue_engine`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from effort import SOAK
from queue_engine import DOWN, OPEN, QUEUE
from stage import Stage

from headrace.runs import CauseKind, Run, RunPaths, Status, list_runs
from headrace.runs.events import HostRegistered, ProgramStarted
from installed_engines import install_engine
from patience import until

WORK = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: {deaf} or (print("saved", flush=True), sys.exit(0)))
print("working", flush=True)
while {forever}:
    time.sleep(600)
"""


class Platform:
    """The queue, and commands of a user of it."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.queue = folder / "queue"
        self.queue.mkdir()
        site = folder / "site"
        install_engine(site, "queue")
        path = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent), str(site)]
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), QUEUE: str(self.queue)}

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *arguments], cwd=self.stage.folder, env={**self.env, **env},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def file(self, forever: bool = False, deaf: bool = False, **fields: object) -> Path:
        job = self.stage.job(WORK.format(forever=forever, deaf=deaf), **fields)
        file = self.stage.folder / "job.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(job.to_yaml()), "source_dir": "code"}))
        return file

    def submit(self, **fields: object) -> RunPaths:
        run_id = self("run", str(self.file(**fields)), "--engine", "queue", "--detach").stdout.strip()
        return RunPaths(Path(os.environ["HEADRACE_HOME"]) / "runs" / run_id)

    def secondary(self, paths: RunPaths) -> str:
        return json.loads(self("status", paths.id, "--output", "json").stdout)["SecondaryStatus"]

    def open(self) -> None:
        (self.queue / OPEN).touch()


@pytest.fixture
def platform(stage: Stage, tmp_path: Path) -> Platform:
    return Platform(stage, tmp_path)


def started(paths: RunPaths) -> list[ProgramStarted]:
    return [event for event in Run(paths).events() if isinstance(event, ProgramStarted)]


@pytest.mark.promise("own-engine", "an engine of your own is found by entry point, and every command takes its runs")
@pytest.mark.promise("engines", "a run on a platform needs no process where it was submitted")
def test_a_run_is_queued_runs_and_is_followed_to_its_end_without_whoever_submitted_it(platform: Platform) -> None:
    paths = platform.submit()
    header = json.loads(paths.header.read_text())
    assert (header["supervisor_pid"], header["engine"]) == (0, "queue")
    (line,) = json.loads(platform("ps", "--output", "json").stdout)
    assert (line["run_id"], line["status"], line["secondary_status"]) == (paths.id, "InProgress", "Pending")
    assert "no slot is free" in platform("status", paths.id).stdout
    platform("wait", paths.id, "--timeout", "0.1", code=124)
    (platform.queue / DOWN).touch()
    told = platform("ps")
    assert paths.id in told.stdout, "a platform that does not answer says nothing about the run"
    assert f"{paths.id}: the engine queue cannot be asked: the queue does not answer" in told.stderr
    (platform.queue / DOWN).unlink()
    platform.open()
    followed = platform("logs", paths.id, "--follow")
    assert "working" in followed.stdout
    assert f"headrace: {paths.id}: Completed" in followed.stderr
    assert platform("wait", paths.id).stdout == f"{paths.id}: Completed\n"
    events = [event["status"] for event in map(json.loads, paths.events("platform").read_text().splitlines())]
    assert events == ["Pending"], "what the platform says again is written once"
    platform.stage.observer.assert_nothing_left(paths.id, paths.root, 2.0)


def test_a_run_that_is_queued_says_why_and_ctrl_c_stops_it_through_its_engine(platform: Platform) -> None:
    command = [sys.executable, "-m", "headrace.cli", "run", str(platform.file()), "--engine", "queue"]
    with subprocess.Popen(
        command, cwd=platform.stage.folder, env=platform.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as shown:  # fmt: skip
        lines = []
        while not lines or "Pending: no slot is free" not in lines[-1]:
            lines.append(shown.stdout.readline())
            assert lines[-1], lines
        shown.send_signal(signal.SIGINT)
        rest = shown.communicate(timeout=60)[0]
    assert shown.returncode == 130, rest
    assert "Stopped" in rest
    (run,) = list_runs()
    assert started(run.paths) == []


def said(paths: RunPaths, words: str) -> int:
    return sum(line.text == words for line in Run(paths).logs())


@pytest.mark.promise("engines", "SIGTERM by a platform gives time to save; only the user's stop is Stopped")
@pytest.mark.parametrize("now", [False, *([True] if SOAK else [])])
def test_a_stop_by_the_user_reaches_agents_without_a_supervisor(platform: Platform, now: bool) -> None:
    platform.open()
    paths = platform.submit(forever=True, deaf=now, instance_count=2, local={"stop_grace": 300})
    until(lambda: said(paths, "working") == 2, what="the programs work")
    platform("stop", paths.id, *(["--now"] if now else []))
    assert "Stopped: stopped by the user" in platform("wait", paths.id, "--timeout", "60", code=130).stdout
    assert said(paths, "saved") == (0 if now else 2)
    platform.stage.observer.assert_nothing_left(paths.id, paths.root, 2.0)


@pytest.mark.promise("engines", "SIGTERM by a platform gives time to save; only the user's stop is Stopped")
def test_what_the_platform_ends_has_time_to_save_and_has_failed_for_the_infrastructure(platform: Platform) -> None:
    platform.open()
    paths = platform.submit(forever=True, instance_count=2)
    until(lambda: said(paths, "working") == 2, what="the programs work")
    os.kill(json.loads((paths.engine / "ticket.json").read_text())["pid"], signal.SIGTERM)
    assert "was told to end by SIGTERM, by the platform" in platform("wait", paths.id, code=1).stdout
    state = Run(paths).state()
    assert (state.status, state.cause.kind, state.cause.infrastructure) == (Status.FAILED, CauseKind.HOST_LOST, True)
    assert said(paths, "saved") == 2
    platform.stage.observer.assert_nothing_left(paths.id, paths.root, 2.0)


@pytest.mark.promise("engines", "a run on a platform needs no process where it was submitted")
def test_a_run_that_its_platform_has_lost_is_failed_and_says_why(platform: Platform) -> None:
    platform.open()
    paths = platform.submit(forever=True)
    until(lambda: started(paths), what="the program starts")
    pid = json.loads((paths.engine / "ticket.json").read_text())["pid"]
    agents = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout.split()
    for each in (str(pid), *agents):
        os.kill(int(each), signal.SIGKILL)
    ended = platform("wait", paths.id, code=1)
    assert "Failed: the queue has no such job any more" in ended.stdout
    platform("ps")
    assert [event for event in Run(paths).events() if isinstance(event, HostRegistered)]
    assert len(paths.events("platform").read_text().splitlines()) == 1
