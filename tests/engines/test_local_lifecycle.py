"""The parts of a run's life: which processes work when, and how their failures and a stop end the run."""

from __future__ import annotations

import os
import signal
import time

import pytest
from effort import SOAK
from play_helpers import play, played
from stage import assert_failed, groups, kill, said

from headrace.runs import Status
from headrace.runs.events import SecondaryStatus
from patience import allowed, until

HELLO = """
import pathlib
print("hello", flush=True)
"""
SLEEP = """
import time
print("running", flush=True)
time.sleep(600)
"""
BEFORE = "log('done')"
SERVE = """
signal.signal(signal.SIGTERM, lambda *_: (log("told"), sys.exit(0)))
ready()
log("ready")
while True:
    signal.pause()
"""
COLLECT = "log(os.environ['HEADRACE_JOB_STATUS'])"
ENDLESS = """
signal.signal(signal.SIGTERM, lambda *_: (log("told"), sys.exit(1)))
log("begun")
while True:
    signal.pause()
"""
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
log("begun")
while True:
    signal.pause()
"""


def statuses(handle) -> list[str]:
    return [each.status.value for each in handle.run.state().transitions]


@pytest.fixture
def parts(tmp_path, monkeypatch):
    return lambda **codes: play(tmp_path, monkeypatch, codes)


def begun(handle, name):
    until(lambda: any(line.startswith(f"{name} ") for line in played(handle)), what=f"{name} has begun")


@pytest.mark.promise("engines", "queue, on local")
@pytest.mark.promise("runs", "statuses, secondary statuses and failure reasons are those of the service")
@pytest.mark.promise("sagemaker-differences", "absent here: `describe` says Training for ever, no reason")
def test_a_run_goes_through_all_its_parts_in_order(stage, parts):
    parts(install=BEFORE, stage=BEFORE, restore=BEFORE, serve_channels=SERVE, sync=SERVE, collect=COLLECT)
    handle = stage.start(HELLO, instance_groups=groups(dnn=2))
    assert handle.wait(30) is Status.COMPLETED
    assert [line for line in played(handle) if line != "sync ready"] == [
        "install done",
        "stage done",
        "restore done",
        "serve_channels ready",
        "serve_channels told",
        "sync told",
        "collect Completed",
    ]
    state = handle.run.state()
    assert statuses(handle) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert [each.end for each in state.transitions[:-1]] == [each.start for each in state.transitions[1:]]
    assert state.transitions[-1].end == state.ended
    assert state.instances_started == pytest.approx(state.transitions[1].start, abs=0.05)
    leader, other = state.hosts
    assert (leader.host, leader.ended, leader.released) == ("algo-1", state.ended, False)
    assert (other.host, other.ended == state.ended) == (
        "algo-2",
        not other.released,
    )  # it may be done before the leader
    stage.assert_nothing_left(handle)


def test_a_run_without_channels_does_not_download_and_one_that_leaves_nothing_does_not_upload(stage):
    handle = stage.start(HELLO)
    assert handle.wait(30) is Status.COMPLETED
    assert statuses(handle) == ["Starting", "Training", "Completed"]
    handle = stage.start('import os; open(os.environ["SM_MODEL_DIR"] + "/model", "w").close()', name="model")
    assert handle.wait(30) is Status.COMPLETED
    assert statuses(handle) == ["Starting", "Training", "Uploading", "Completed"]


@pytest.mark.parametrize("name", ["install", "serve_channels", *(["stage", "restore"] if SOAK else [])])
def test_work_before_the_programs_that_fails_is_the_cause_with_its_last_line(stage, parts, name):
    parts(**{name: "print('noise')\nfail('channel train: no such bucket: b')"})
    handle = stage.start(HELLO)
    assert handle.wait(30) is Status.FAILED
    assert str(handle.cause).endswith(" failed: channel train: no such bucket: b")
    assert handle.cause.exit_code == 1
    assert handle.run.programs == ()
    stage.assert_nothing_left(handle)


def test_a_reason_in_the_words_of_the_service_stands_as_it_is(stage, parts):
    parts(stage="fail('ClientError: Data download failed: no such bucket', of_service=True)")
    handle = stage.start(HELLO)
    assert handle.wait(30) is Status.FAILED
    assert str(handle.cause) == "ClientError: Data download failed: no such bucket"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in ("install", "stage", "serve_channels", "collect")
        for how in ("in order", "stubborn", "now")
        if SOAK or how == "in order" or name == "serve_channels"
    ],
)
def test_a_stop_in_every_part_ends_it_soon(stage, parts, name, how):
    parts(**{name: ENDLESS if how == "in order" else STUBBORN})
    handle = stage.start(HELLO)
    begun(handle, name)
    began = time.monotonic()
    handle.stop(now=how == "now")
    assert handle.wait(20) is Status.STOPPED
    assert time.monotonic() - began < allowed({"in order": 2, "stubborn": 8, "now": 2}[how])
    assert handle.exit_code == 130
    assert statuses(handle)[-2:] == ["Stopping", "Stopped"]
    if how == "in order":
        assert played(handle)[-1] == f"{name} told"
    stage.assert_nothing_left(handle)


def test_a_stop_before_the_checkpoints_are_kept_is_no_failure(stage, parts):
    parts(sync="log('begun')\ntime.sleep(600)")  # neither ready, nor does it take SIGTERM
    handle = stage.start(HELLO)
    begun(handle, "sync")
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert handle.run.programs == ()
    stage.assert_nothing_left(handle)


def test_max_run_ends_a_download_that_does_not_end(stage, parts):
    parts(stage=ENDLESS)
    handle = stage.start(HELLO, stopping_condition={"max_run": 1})
    assert handle.wait(20) is Status.STOPPED
    assert handle.cause.reason.startswith("MaxRuntimeExceeded: filling the channels")
    assert handle.run.state().secondary_status is SecondaryStatus.MAX_RUNTIME_EXCEEDED
    assert handle.exit_code == 1


@pytest.mark.parametrize("name", ["serve_channels", "sync"])
def test_what_works_beside_the_programs_and_is_killed_fails_the_job(stage, parts, name):
    parts(**{name: f"log(os.getpid())\n{SERVE}", "collect": COLLECT})
    handle = stage.start(SLEEP)
    until(said(handle, "running"))
    pid = int(next(line for line in played(handle) if line.startswith(name)).split()[1])
    began = time.monotonic()
    kill(pid)
    assert_failed(handle, began)
    assert handle.cause.reason.endswith(" failed: killed by SIGKILL")
    assert handle.cause.signal == signal.SIGKILL
    assert played(handle)[-1] == "collect Failed"
    stage.assert_nothing_left(handle)


def test_a_last_sync_that_fails_fails_the_job(stage, parts):
    failing = "signal.signal(signal.SIGTERM, lambda *_: fail('disk full'))"
    parts(sync=f"{failing}\nready()\nwhile True:\n    signal.pause()")
    handle = stage.start("import time; time.sleep(1)")
    assert handle.wait(20) is Status.FAILED
    assert handle.cause.reason == "keeping the checkpoints failed: disk full"


def test_a_model_that_cannot_be_collected_fails_the_job_but_hides_no_earlier_cause(stage, parts):
    parts(collect="fail('model.pt comes from algo-1 and algo-2')")
    handle = stage.start(HELLO)
    assert handle.wait(20) is Status.FAILED
    assert handle.cause.reason == "collecting model and output failed: model.pt comes from algo-1 and algo-2"
    handle = stage.start("raise SystemExit(3)", name="other")
    assert handle.wait(20) is Status.FAILED
    assert str(handle.cause) == "homogeneousCluster/algo-1[0]: exited with code 3"


def test_what_such_work_leaves_running_is_ended(stage, parts):
    parts(stage="import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)")
    handle = stage.start(HELLO)
    assert handle.wait(20) is Status.COMPLETED
    stage.assert_nothing_left(handle)


@pytest.mark.parametrize("name", ["stage", "sync"])
def test_the_death_of_the_supervisor_takes_such_work_with_it(stage, parts, name):
    from headrace.runs import read_header

    parts(**{name: f"log(os.getpid())\n{STUBBORN}"})
    handle = stage.start(SLEEP)
    begun(handle, name)
    os.kill(read_header(handle.paths).supervisor_pid, signal.SIGKILL)
    assert handle.wait(20) is Status.FAILED
    stage.assert_nothing_left(handle, within=2)


def failing(write, code=3):
    return f"""
    import os, sys, time
    failure = os.environ["SAGEMAKER_BASE_DIR"] + "/output/failure"
    host = os.environ["SM_CURRENT_HOST"]
    {write}
    if host.endswith("-2"):
        time.sleep(0.5)
        sys.exit({code})
    time.sleep(600)
    """


@pytest.mark.promise("runs", "statuses, secondary statuses and failure reasons are those of the service")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        ("open(failure, 'w').write(f'{host}: the label file is empty')", "algo-2: the label file is empty"),
        ("host == 'algo-1' and open(failure, 'w').write('bad flag')", "bad flag"),
        ("os.mkfifo(failure)", "dnn/algo-2[0]: exited with code 3"),
        ("open(failure, 'w').write('x' * 3000)", "x" * 1024),
        ("open(failure, 'w').write('  ')", "dnn/algo-2[0]: exited with code 3"),
        ("pass", "dnn/algo-2[0]: exited with code 3"),
    ][: None if SOAK else 3],
    ids=["its own host's", "another host's", "a pipe", "long", "blank", "none"][: None if SOAK else 3],
)
@pytest.mark.promise("sagemaker-differences", "absent here: the user's failure text")
def test_the_failure_reason_is_what_the_user_wrote_else_the_cause(stage, write, reason):
    handle = stage.start(failing(write), instance_groups=groups(dnn=2))
    assert handle.wait(20) is Status.FAILED
    assert handle.run.state().failure_reason == reason


SAYS_WHY_LATER = """
import os, pathlib, signal, sys, time
failure = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "output", "failure")
ready = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "output", "ready")
def say(*_):
    text = failure.read_text() if failure.exists() else "nothing"
    failure.write_text("the other rank is gone; " + text.splitlines()[0])
    sys.exit(1)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, say)
    ready.touch()
    time.sleep(600)
while not ready.exists():
    time.sleep(0.01)
sys.exit(3)
"""


def test_the_failure_reason_is_what_the_user_wrote_in_place_of_what_headrace_had_written(stage):
    handle = stage.start(SAYS_WHY_LATER, distribution={"torch_distributed": {"enabled": True, "processes_per_host": 2}})
    assert handle.wait(20) is Status.FAILED
    found = "the other rank is gone; headrace: homogeneousCluster/algo-1[1]: exited with code 3"
    assert handle.run.state().failure_reason == found
