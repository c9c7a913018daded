"""A job that failed is tried again when the job wants it: after which failures, with what kept, with what cleared."""

from __future__ import annotations

import shutil

import pytest
from effort import SOAK
from run_places import code, flag
from stage import agent_pid, both_isolations_at_length, groups, isolated_at_length, kill, said, text

from headrace.hosting.supervision.supervisor import Next, is_tried_again, next_step
from headrace.instance.launch_plan import Retry
from headrace.instance.lifeline import StopJob
from headrace.runs import Cause, CauseKind, Status
from headrace.runs.events import AttemptStarted, ProgramExited, ProgramStarted, SecondaryStatus
from patience import until

COUNTS = """
import os, pathlib, sys, time
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
notes = base / "checkpoints" / "attempts"
attempt = len(notes.read_text().split()) + 1 if notes.exists() else 1
with notes.open("a") as file:
    file.write(f"{attempt}\\n")
made = [path for top in ("model", "output") for path in (base / top).rglob("*") if path.is_file()]
left = [str(path.relative_to(base)) for path in made]
print("attempt", attempt, "found", left, flush=True)
(base / "model" / "weights").write_text(str(attempt))
(base / "output" / "data" / "more").write_text(str(attempt))
"""
FAILS_TWICE = COUNTS + "if attempt < 3:\n    sys.exit(attempt)\n"
WAITS_ONCE = COUNTS + "if attempt == 1:\n    time.sleep(600)\n"

OWN = Cause(CauseKind.PROGRAM_EXITED, "", "dnn", "algo-1", "0", 1)
LOST = Cause(CauseKind.HOST_LOST, "silent", "dnn", "algo-1", "agent", infrastructure=True)


@pytest.mark.promise("runs", "`retry` starts again what infrastructure failed, never what was stopped")
@pytest.mark.parametrize(
    ("retry", "attempt", "status", "cause", "again"),
    [
        (Retry(), 1, Status.FAILED, LOST, False),
        (Retry(2), 1, Status.FAILED, LOST, True),
        (Retry(2), 2, Status.FAILED, LOST, True),
        (Retry(2), 3, Status.FAILED, LOST, False),
        (Retry(2), 1, Status.FAILED, OWN, False),
        (Retry(2), 1, Status.FAILED, None, False),
        (Retry(2, any=True), 1, Status.FAILED, OWN, True),
        (Retry(2, any=True), 1, Status.STOPPED, OWN, False),
        (Retry(2, any=True), 1, Status.COMPLETED, None, False),
    ],
)
def test_only_failures_are_retried_and_by_default_only_those_of_the_infrastructure(
    retry, attempt, status, cause, again
):
    assert is_tried_again(retry, attempt, status, cause) is again


STOP = StopJob(CauseKind.STOPPED.value, "", failed=False)
TAKEN = StopJob(CauseKind.PREEMPTED.value, "", failed=True, infrastructure=True)


@pytest.mark.parametrize(
    ("status", "again", "moves", "wishes", "step"),
    [
        (Status.FAILED, True, False, [], Next.AGAIN),
        (Status.FAILED, True, True, [TAKEN], Next.ELSEWHERE),
        (Status.FAILED, True, False, [TAKEN], Next.INTERRUPTED),
        (Status.FAILED, False, False, [TAKEN, TAKEN], Next.INTERRUPTED),
        (Status.FAILED, False, True, [TAKEN], Next.END),
        (Status.FAILED, True, False, [TAKEN, STOP], Next.END),
        (Status.FAILED, False, False, [], Next.END),
        (Status.COMPLETED, False, False, [TAKEN], Next.END),
        (Status.STOPPED, False, False, [STOP], Next.END),
    ],
)
def test_what_follows_an_attempt_is_one_decision(status, again, moves, wishes, step):
    assert next_step((status, None), again, moves, wishes) is step


def test_a_program_that_fails_is_retried_if_wanted_and_finds_its_checkpoints_only(stage):
    handle = stage.start(FAILS_TWICE, instance_groups=groups(dnn=2), retry={"attempts": 4, "on": "any"})
    assert handle.wait(40) is Status.COMPLETED
    assert handle.exit_code == 0
    stage.assert_nothing_left(handle)
    for host in ("algo-1", "algo-2"):
        lines = text(handle, f"dnn/{host}[0]").splitlines()
        assert lines == [f"attempt {number} found []" for number in (1, 2, 3)]
    state = handle.run.state()
    assert [each.status.value for each in state.transitions] == [
        "Starting",
        *("Training", "Restarting") * 2,
        "Training",
        "Uploading",
        "Completed",
    ]
    assert state.attempt == 3
    assert state.cause is None
    assert state.failure_reason == ""
    assert state.transitions[2].message.startswith("Attempt 2 of 5, after: dnn/algo-")
    assert [event.number for event in handle.run.events() if isinstance(event, AttemptStarted)] == [2, 3]
    assert sorted(program.attempt for program in state.programs) == [1, 1, 2, 2, 3, 3]
    assert (handle.paths.host("algo-2") / "model" / "weights").read_text() == "3"


def test_another_attempt_finds_the_checkpoints_of_all_hosts_when_they_have_a_place(stage, tmp_path):
    script = """
    import os, pathlib, sys
    folder = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
    found = sorted(path.name for path in folder.iterdir())
    print("found", *found, flush=True)
    (folder / f"{os.environ['SM_CURRENT_HOST']}-{len(found)}").write_text("saved")
    sys.exit(not found)
    """
    kept = str(tmp_path / "kept")
    handle = stage.start(
        script, instance_groups=groups(dnn=2), checkpoint_s3_uri=kept, retry={"attempts": 1, "on": "any"}
    )
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    for host in ("algo-1", "algo-2"):
        assert text(handle, f"dnn/{host}[0]").splitlines() == ["found", "found algo-1-0 algo-2-0"]
    statuses = [each.status.value for each in handle.run.state().transitions]
    assert statuses == ["Starting", "Downloading", "Training", "Restarting", "Downloading", "Training", "Completed"]
    assert [(each.name, each.files) for each in handle.run.artefacts] == [("checkpoints", 4)]
    stage.assert_nothing_left(handle)


@isolated_at_length
def test_every_host_has_code_of_its_own_and_a_fresh_copy_for_every_attempt(stage):
    script = """
    import os, pathlib, sys, time
    me, base = os.environ["SM_CURRENT_HOST"], pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
    note = pathlib.Path("note")
    print("found", sorted(path.name for path in pathlib.Path().iterdir()), flush=True)
    note.open("x").write(me)
    with open("train.py", "a") as file:
        file.write("# " + me)
    (base / "checkpoints" / "written").open("a").write(me + " ")
    print("written", flush=True)
    while not pathlib.Path("both").exists():
        time.sleep(0.02)
    print("read", note.read_text(), open("train.py").read().count("# algo-"), flush=True)
    sys.exit(len((base / "checkpoints" / "written").read_text().split()) == 1)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2), retry={"attempts": 1, "on": "any"})
    for attempt in (1, 2):
        until(lambda attempt=attempt: text(handle).count("written") == 2 * attempt)
        flag(handle, "both")
    assert handle.wait(40) is Status.COMPLETED, text(handle)
    for host in ("algo-1", "algo-2"):
        # The string in the script itself counts once.
        [*first, third, fourth, fifth] = text(handle, f"dnn/{host}[0]").splitlines()
        assert [third, fourth, fifth] == ["found ['train.py']", "written", f"read {host} 2"]
        assert first[:2] == ["found ['train.py']", "written"]
        assert code(handle, host).joinpath("note").read_text() == host
    assert [path.name for path in handle.paths.code.iterdir()] == ["train.py"]
    assert (handle.paths.code / "train.py").read_bytes() == (stage.folder / "code" / "train.py").read_bytes()
    stage.assert_nothing_left(handle)


def test_code_that_cannot_be_copied_for_another_attempt_is_the_cause(stage):
    handle = stage.start(WAITS_ONCE, retry={"attempts": 1})
    until(said(handle, "attempt 1"))
    shutil.rmtree(handle.paths.code)
    kill(agent_pid(handle, "algo-1"))
    assert handle.wait(20) is Status.FAILED
    assert str(handle.cause).startswith("algo-1: the code could not be copied for another attempt: ")
    stage.assert_nothing_left(handle)


def test_a_program_that_fails_is_not_retried_by_default(stage):
    handle = stage.start(FAILS_TWICE, retry={"attempts": 3})
    assert handle.wait(20) is Status.FAILED
    assert handle.run.state().attempt == 1
    assert str(handle.cause).endswith("exited with code 1")


def test_attempts_come_to_an_end_and_the_last_cause_counts(stage):
    handle = stage.start(FAILS_TWICE, retry={"attempts": 1, "on": "any"})
    assert handle.wait(30) is Status.FAILED
    assert handle.exit_code == 1
    assert str(handle.cause).endswith("exited with code 2")
    assert handle.run.state().attempt == 2


@pytest.mark.promise("engines", "another attempt, on local")
@both_isolations_at_length
@pytest.mark.parametrize("host", ["algo-1", *(["algo-2"] if SOAK else [])])
def test_a_lost_agent_is_retried_whether_it_led_or_not(stage, host):
    handle = stage.start(WAITS_ONCE, instance_groups=groups(dnn=2), retry={"attempts": 1})
    until(lambda: text(handle).count("attempt 1") == 2)
    kill(agent_pid(handle, host))
    assert handle.wait(40) is Status.COMPLETED
    assert handle.run.state().attempt == 2
    assert text(handle).count("attempt 2") == 2
    stage.assert_nothing_left(handle)


def test_max_run_covers_all_attempts_together(stage):
    script = COUNTS + "time.sleep(3 if attempt == 1 else 600)\nsys.exit(1)\n"
    handle = stage.start(script, retry={"attempts": 20, "on": "any"}, stopping_condition={"max_run": 10})
    assert handle.wait(60) is Status.STOPPED
    state = handle.run.state()
    assert state.secondary_status is SecondaryStatus.MAX_RUNTIME_EXCEEDED
    assert state.attempt == 2
    events = [*handle.run.events()]
    first = next(event.t for event in events if isinstance(event, ProgramStarted))
    ended = [event.t for event in events if isinstance(event, ProgramExited)]
    assert ended[-1] - first < 10 + 2, "it is counted from the first attempt on, which took 3 s"


def test_a_stop_between_and_in_later_attempts_ends_the_job(stage):
    script = COUNTS + "time.sleep(600) if attempt == 3 else sys.exit(1)\n"
    handle = stage.start(script, retry={"attempts": 20, "on": "any"})
    until(said(handle, "attempt 3"), 30)
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert handle.run.state().attempt == 3
    stage.assert_nothing_left(handle)
