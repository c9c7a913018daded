"""`run --detach`, `ps`, `status`, `wait`, and the filters of `logs`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Cli
from effort import SOAK

from headrace.runs import EventWriter, LogWriter, Run, RunPaths, Status, Stream, create_run
from headrace.runs.events import (
    AttemptBilled,
    HostReleased,
    InstancesStarted,
    RunFinished,
    SecondaryStatus,
    StatusChanged,
)
from patience import allowed

JobFile = Callable[..., str]
SLOW = """
    import pathlib, sys, time
    print("training", flush=True)
    def wait_for_the_end():
        while not pathlib.Path("enough").exists():
            time.sleep(0.02)
    wait_for_the_end()
    print("done", flush=True)
    sys.exit(CODE)
"""
NOW = 1_795_201_200.0


@pytest.fixture
def detached(cli: Cli, job_file: JobFile) -> Iterator[Callable[..., Run]]:
    """Starts a detached run of a script that ends when it is told to; ends what a test leaves."""
    runs: list[Run] = []

    def start(code: int = 0, *arguments: str) -> Run:
        began = time.monotonic()
        result = cli("run", job_file(SLOW.replace("CODE", str(code))), "--detach", *arguments)
        assert result.returncode == 0, result.stderr
        assert time.monotonic() - began < allowed(10)
        name = json.loads(result.stdout)["run_id"] if "json" in arguments else result.stdout.strip()
        runs.append(Run.open(name, cli.runs))
        return runs[-1]

    yield start
    for run in runs:
        cli("stop", run.id, "--now")
        cli("wait", run.id, "--timeout", "20")


def finish(run: Run) -> None:
    for code in (run.paths.root / "hosts").glob("*/code"):
        (code / "enough").touch()


@pytest.mark.promise("running", "`--detach`: a run goes on without its starter; it is listed, followed and stopped")
@pytest.mark.promise("sagemaker-differences", "absent here: nothing survives the process; no list, no stop")
def test_a_detached_run_is_listed_followed_and_waited_for(cli: Cli, detached: Callable[..., Run]) -> None:
    run = detached()
    follower = cli.start("logs", run.id, "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "dnn/algo-1[0] training\n"
    listed = cli("ps").stdout.splitlines()
    assert listed[0].split() == ["run", "status", "hosts", "started", "ran", "for"]
    assert listed[1].startswith(f"{run.id}  InProgress  Training  1 ".replace("  1 ", "      1"))
    (line,) = json.loads(cli("ps", "--output", "json").stdout)
    assert (line["run_id"], line["status"], line["secondary_status"], line["exit_code"]) == (
        run.id,
        "InProgress",
        "Training",
        None,
    )
    assert cli("wait", run.id, "--timeout", "0.2").returncode == 124
    finish(run)
    waited = cli("wait", "small")
    assert (waited.returncode, waited.stdout) == (0, f"{run.id}: Completed\n")
    rest, _ = follower.communicate(timeout=20)
    assert "dnn/algo-1[0] done" in rest
    assert cli("ps").stdout.startswith("no run is going on")
    assert "Completed" in cli("ps", "--all").stdout


def test_the_stacks_of_a_run_say_where_its_programs_are(cli: Cli, detached: Callable[..., Run]) -> None:
    run = detached()
    follower = cli.start("logs", run.id, "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "dnn/algo-1[0] training\n"
    (program,) = json.loads(cli("stacks", "small/dnn/algo-1/0", "--output", "json").stdout)["programs"]
    assert program["stream"] == "dnn/algo-1[0]"
    assert "wait_for_the_end (train.py" in program["stacks"], program
    finish(run)
    follower.communicate(timeout=20)
    assert cli("wait", "small").returncode == 0
    over = cli("stacks", "small")
    assert (over.returncode, over.stderr.splitlines()[-1]) == (2, "hint: it has ended")


@pytest.mark.parametrize("how", ["stopped", *(["fails"] if SOAK else [])])
def test_wait_exits_as_the_run_does(cli: Cli, detached: Callable[..., Run], how: str) -> None:
    run = detached(3, "--output", "json")
    waiting = cli.start("wait", run.id)
    if how == "fails":
        finish(run)
    else:
        assert cli("stop", run.id).returncode == 0
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == {"fails": 1, "stopped": 130}[how]
    assert {"fails": "Failed: dnn/algo-1[0]: exited with code 3", "stopped": "Stopped"}[how] in out


def test_a_run_that_goes_on_is_not_started_again_and_ctrl_c_ends_the_waiting_alone(
    cli: Cli, detached: Callable[..., Run]
) -> None:
    run = detached()
    result = cli("run", str(next(cli.cwd.glob("*.yaml"))), "--detach")
    assert result.returncode == 2
    assert f"a job named 'small' is already running: {run.id}" in result.stderr
    code = f"""
import sys, time
from headrace.cli.main import invoke
sleep = time.sleep
time.sleep = lambda seconds: (print("waits", flush=True), sleep(seconds))
sys.exit(invoke(["wait", {run.id!r}]))
"""
    waiting = subprocess.Popen([sys.executable, "-c", code], env=cli.env, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waits\n"
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert run.status is Status.IN_PROGRESS


def test_a_detached_job_that_cannot_start_says_so_and_leaves_nothing(cli: Cli, job_file: JobFile) -> None:
    result = cli("run", job_file("pass"), "--detach", "--set", "engines.local.cpu_sets.dnn=4096")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert not cli.runs.exists() or list(cli.runs.iterdir()) == []


def make(cli: Cli, name: str, *, finished: bool = True) -> RunPaths:
    paths = create_run(name, runs=cli.runs, created=NOW)
    with EventWriter(paths.events("engine")) as events:
        events.write(StatusChanged(t=NOW, status=SecondaryStatus.STARTING, message="Preparing"))
        events.write(InstancesStarted(t=NOW + 2, hosts={"dnn": ("algo-1",), "data": ("algo-2",)}))
        events.write(StatusChanged(t=NOW + 2, status=SecondaryStatus.TRAINING, message="Training in progress"))
        events.write(HostReleased(t=NOW + 5, group="data", host="algo-2"))
        if finished:
            reason = "bad label file"
            events.write(RunFinished(t=NOW + 12, status=Status.FAILED, failure_reason=reason))
    return paths


def orphan(cli: Cli, name: str) -> Run:
    """A run whose engine was killed."""
    code = f"""
import sys
from headrace.runs import EventWriter, create_run
from headrace.runs.events import JobStarted
paths = create_run({name!r})
EventWriter(paths.events("engine")).write(JobStarted(t={NOW + 1}))
print(paths.root)
"""
    done = subprocess.run([sys.executable, "-c", code], env=cli.env, check=True, capture_output=True, text=True)
    return Run(RunPaths(Path(done.stdout.strip())))


def test_a_run_whose_engine_was_killed_is_listed_as_failed_and_does_not_go_on(cli: Cli) -> None:
    run = orphan(cli, "stale")
    assert cli("ps").stdout.startswith("no run is going on")
    (line,) = json.loads(cli("ps", "-a", "--output", "json").stdout)
    assert (line["run_id"], line["status"], line["cause"]) == (run.id, "Failed", "the engine was killed")
    result = cli("status", "stale")
    assert "failure reason: the engine was killed" in result.stdout
    assert cli("wait", "stale").returncode == 1
    assert "Failed: the engine was killed" in cli("logs", "stale", "-f").stderr
    assert "is not running: Failed" in cli("stop", "stale").stdout


@pytest.mark.promise("sagemaker-differences", "absent here: billable seconds of 0 with groups")
def test_status_shows_the_parts_the_reason_and_what_each_host_cost(cli: Cli) -> None:
    paths = make(cli, "j")
    shown = cli("status", "j").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == [paths.id, "Failed"]
    assert "failure reason: bad label file" in shown
    assert ["Training", "2026-11-20", "19:00:02", "10.0", "s", "Training", "in", "progress"] in lines
    assert ["data", "algo-2", "3.0", "s", "released", "early"] in lines
    assert "billable seconds of all hosts: dnn 10.0 s, data 3.0 s" in shown
    found = json.loads(cli("status", "j", "--output", "json").stdout)
    assert (found["TrainingJobStatus"], found["FailureReason"]) == ("Failed", "bad label file")
    assert found["SecondaryStatusTransitions"][0]["StartTime"] == "2026-11-20T19:00:00Z"
    with EventWriter(paths.events("service")) as events:
        types = {"data": ("ml.c5.xlarge", 1), "dnn": ("ml.g5.xlarge", 1)}
        events.write(AttemptBilled("j", 1, "us-east-1", types, 30, 9, NOW, NOW + 30, t=NOW + 31))
    shown = cli("status", "j").stdout
    assert "seconds of all hosts by headrace's clocks: dnn 10.0 s, data 3.0 s" in shown
    assert "billable seconds of all hosts as the service has told them: data 9 s, dnn 9 s" in shown


def test_ps_without_any_run_says_so(cli: Cli) -> None:
    assert cli("ps", "--all").stdout == "no run yet\n"
    assert json.loads(cli("ps", "--output", "json").stdout) == []


# --- logs ------------------------------------------------------------------------------------------------------------


def with_lines(cli: Cli, hosts: int = 2, each: int = 5, finished: bool = True) -> RunPaths:
    paths = make(cli, "j", finished=finished)
    for number in range(1, hosts + 1):
        with LogWriter(paths.log(Stream("dnn", f"algo-{number}", str(number - 1)))) as log:
            for step in range(each):
                log.write_line(
                    "e" if step == 3 else "o", f"step {step} of {number}".encode(), NOW + step + number / 100
                )
    return paths


@pytest.mark.promise("runs", "no line of output is lost at the end, or mixed, and a full pipe blocks no program")
@pytest.mark.promise("sagemaker-differences", "absent here: no group in a line; lines of 50 hosts loop for ever")
def test_logs_of_sixty_hosts_are_whole_in_order_and_have_true_labels(cli: Cli) -> None:
    with_lines(cli, hosts=60, each=4)
    expected = [f"dnn/algo-{n}[{n - 1}] step {step} of {n}" for step in range(4) for n in range(1, 61)]
    assert cli("logs", "j").stdout.splitlines() == expected
    assert cli("logs", "j", "-f").stdout.splitlines() == expected


def test_logs_can_be_searched_cut_and_begun_later(cli: Cli) -> None:
    with_lines(cli)
    assert cli("logs", "j", "--grep", "step [13] of 2").stdout.splitlines() == [
        "dnn/algo-2[1] step 1 of 2",
        "dnn/algo-2[1] step 3 of 2",
    ]
    assert cli("logs", "j/dnn/algo-1", "--tail", "2").stdout.splitlines() == [
        "dnn/algo-1[0] step 3 of 1",
        "dnn/algo-1[0] step 4 of 1",
    ]
    assert cli("logs", "j", "--tail", "2", "--grep", "of 1", "-f").stdout.count("\n") == 2
    assert cli("logs", "j", "--tail", "3").stdout.splitlines() == cli("logs", "j").stdout.splitlines()[-3:]
    assert cli("logs", "j", "--tail", "0").stdout == ""
    assert cli("logs", "j", "--since", "2026-11-20T19:00:03Z").stdout.count("\n") == 4
    assert cli("logs", "j", "--since", "100d").stdout.count("\n") == 10 or time.time() > NOW + 100 * 86400


@pytest.mark.parametrize(("option", "value"), [("--grep", "("), ("--since", "yesterday"), ("--tail", "-1")])
def test_a_filter_that_is_none_is_a_mistake(cli: Cli, option: str, value: str) -> None:
    with_lines(cli)
    result = cli("logs", "j", option, value)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "\nhint: " in result.stderr


def test_logs_as_json_are_one_object_a_line(cli: Cli) -> None:
    with_lines(cli, hosts=1)
    found = [json.loads(line) for line in cli("logs", "j", "--output", "json").stdout.splitlines()]
    assert found[3] == {
        "t": NOW + 3.01,
        "group": "dnn",
        "host": "algo-1",
        "stream": "0",
        "kind": "stderr",
        "text": "step 3 of 1",
    }


def test_a_tail_that_is_followed_goes_on_with_every_new_line(cli: Cli) -> None:
    paths = with_lines(cli, hosts=1, finished=False)
    child = cli.start("logs", "j", "--tail", "1", "-f")
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "dnn/algo-1[0] step 4 of 1\n"
        with LogWriter(paths.log(Stream("dnn", "algo-1", "0"))) as log:
            for number in range(3):
                log.write_line("o", f"new {number}".encode(), time.time())
        assert [child.stdout.readline() for _ in range(3)] == [f"dnn/algo-1[0] new {n}\n" for n in range(3)]
    finally:
        with EventWriter(paths.events("engine")) as events:
            events.write(RunFinished(t=time.time(), status=Status.STOPPED))
        _, errors = child.communicate(timeout=20)
    assert ": Stopped" in errors
