"""Real runs: groups that wait for others, hosts that are released early, jobs that stand still, SIGTERM to the tree."""

from __future__ import annotations

import time

import pytest
from run_places import code, flag
from stage import assert_failed, groups, said, text

from headrace.agent.control.control_messages import SILENCE_LIMIT
from headrace.runs import Status
from headrace.runs.events import HostReleased, HostStarted, ProgramStarted
from patience import allowed, until

SERVER = """
import os, socket, time
host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
if group == "data":
    time.sleep({pause})
    server = socket.create_server((os.environ["ADDRESS"], 6000)) if {listens} else None
    print("serving", time.time(), flush=True)
    time.sleep(600)
socket.create_connection((os.environ["ADDRESS"], 6000), 1).close()
print("connected", time.time(), flush=True)
"""


def after(stage, script, port=6000, timeout=20, **fields):
    wanted = groups(dnn=1, data=1)
    wanted[0]["depends_on"] = ["data"]
    wanted[1]["ready"] = {"port": port, "timeout": timeout}
    address = f"{stage.prefix}.2"
    return stage.start(
        script,
        instance_groups=wanted,
        completion={"instance_groups": ["dnn"]},
        environment={"ADDRESS": address},
        **fields,
    )


@pytest.mark.promise("sagemaker-differences", "absent here: data is not ready when the trainer starts")
def test_training_starts_when_the_data_group_listens(stage):
    handle = after(stage, SERVER.format(pause=1.0, listens=True))
    assert handle.wait(30) is Status.COMPLETED
    serving, connected = (float(text(handle, f"{where}[0]").split()[1]) for where in ("data/algo-2", "dnn/algo-1"))
    assert 0 < connected - serving < 3
    stage.assert_nothing_left(handle)


@pytest.mark.promise("running", "hosts may start in any order, and a wait names the host that did not come")
def test_a_data_group_that_never_listens_is_named(stage):
    handle = after(stage, SERVER.format(pause=0, listens=False), timeout=2)
    began = time.monotonic()
    assert_failed(handle, began, within=15)
    reason = "waited 2 s for data to be ready: algo-2 does not accept connections on port 6000"
    assert handle.cause.reason == reason
    assert [event.host for event in handle.run.events() if isinstance(event, ProgramStarted)] == ["algo-2"]
    stage.assert_nothing_left(handle)


def test_a_stop_while_a_group_waits_ends_the_job(stage):
    handle = after(stage, SERVER.format(pause=0, listens=False), timeout=100)
    until(said(handle, "serving"))
    handle.stop()
    assert handle.wait(15) is Status.STOPPED
    stage.assert_nothing_left(handle)


RELEASE = """
import os, pathlib, time
if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "side":
    raise SystemExit(0)
print("training", flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.02)
"""


def test_a_host_that_is_done_is_released_and_its_clock_stops(stage):
    handle = stage.start(
        RELEASE,
        instance_groups=groups(dnn=1, side=2),
        completion={"instance_groups": ["dnn"]},
        local={"stop_grace": 0.5},
    )

    def released():
        return [event for event in handle.run.events() if isinstance(event, HostReleased)]

    until(lambda: len(released()) == 2)
    pids = {event.host: event.pid for event in handle.run.events() if isinstance(event, HostStarted)}
    for host in ("algo-2", "algo-3"):
        until(lambda host=host: not _lives(pids[host]), what="its agent ends")
    until(said(handle, "training"))
    time.sleep(SILENCE_LIMIT + 2)  # longer than a host that still belongs to the job may be silent
    assert handle.status is Status.IN_PROGRESS
    flag(handle, "enough")
    assert handle.wait(20) is Status.COMPLETED
    clocks = {host.host: host for host in handle.run.state().hosts}
    assert (clocks["algo-1"].released, clocks["algo-2"].released, clocks["algo-3"].released) == (False, True, True)
    assert clocks["algo-1"].ended == handle.run.ended
    assert clocks["algo-2"].seconds(0) < clocks["algo-1"].seconds(0) - SILENCE_LIMIT
    stage.assert_nothing_left(handle)


def _lives(pid):
    from headrace.runs import process_start_time

    return process_start_time(pid) is not None


@pytest.mark.promise("runs", "`stall_after` ends a job that stands still, and names the quietest rank")
@pytest.mark.promise("sagemaker-differences", "absent here: a failed data process is never seen")
def test_a_job_that_stands_still_fails_and_names_the_quietest_rank(stage):
    script = """
    import os, time
    print("running", flush=True)
    if os.environ["SM_CURRENT_HOST"] == "algo-2":
        for _ in range(10):
            time.sleep(0.2)
            print("step", flush=True)
    time.sleep(600)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2), completion={"stall_after": 3})
    until(lambda: text(handle).count("step") == 10)
    assert_failed(handle, time.monotonic(), within=12)
    assert handle.cause.reason.startswith("stalled: no output or metrics for 3 s; the quietest: dnn/algo-1[0] (5 s)")
    assert (handle.cause.host, handle.cause.stream) == ("algo-1", "0")
    stage.assert_nothing_left(handle)


def test_metrics_without_any_output_are_a_sign_of_life(stage):
    script = """
    import os, time
    for _ in range(20):
        with open(os.environ["HEADRACE_METRICS"], "a") as file:
            file.write("\\n")
        time.sleep(0.2)
    """
    handle = stage.start(script, completion={"stall_after": 2})
    assert handle.wait(20) is Status.COMPLETED


CHILD = """
import signal, sys, time
def save(*_):
    time.sleep(1.5)
    open("saved", "w").write("weights")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("running", flush=True)
while True:
    time.sleep(0.05)
"""


SHELLS = {
    "algo-1": "python {child}; echo next",
    "algo-2": "trap 'echo trapped' TERM; python {child}",
    "algo-3": "(python {child} & wait)",
}


@pytest.mark.promise("running", "SIGTERM reaches the script, also behind a shell, with time to save; then SIGKILL")
@pytest.mark.promise("sagemaker-differences", "absent here: SIGTERM does not reach the script")
def test_sigterm_reaches_the_script_behind_a_shell_and_it_has_time_to_save(stage):
    script = f"""
    import os, sys
    open("child.py", "w").write({CHILD!r})
    shell = {SHELLS!r}[os.environ["SM_CURRENT_HOST"]].format(child="child.py").replace("python ", sys.executable + " ")
    os.execvp("bash", ["bash", "-c", shell])
    """
    handle = stage.start(script, instance_groups=groups(dnn=3), local={"stop_grace": 10})
    until(lambda: text(handle).count("running") == 3)
    began = time.monotonic()
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert time.monotonic() - began < allowed(6)
    for host, shell in SHELLS.items():
        assert (code(handle, host) / "saved").read_text() == "weights", shell
    assert "next" not in text(handle)
    stage.assert_nothing_left(handle)


@pytest.mark.promise("running", "SIGTERM reaches the script, also behind a shell, with time to save; then SIGKILL")
def test_a_trainer_that_saves_on_sigterm_keeps_its_workers(stage):
    script = """
    import multiprocessing, signal, sys, time
    def work(end):
        while True:
            end.send(end.recv() + 1)
    def save(*_):
        for number in range(5):
            here.send(number)
            assert here.poll(2), "the worker is gone"
            assert here.recv() == number + 1
            time.sleep(0.1)
        print("saved with its worker", flush=True)
        sys.exit(0)
    if __name__ == "__main__":
        here, there = multiprocessing.get_context("fork").Pipe()
        worker = multiprocessing.get_context("fork").Process(target=work, args=(there,), daemon=True)
        worker.start()
        signal.signal(signal.SIGTERM, save)
        print("running", flush=True)
        while True:
            time.sleep(0.05)
    """
    handle = stage.start(script)
    until(said(handle, "running"))
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert "saved with its worker" in text(handle)
    stage.assert_nothing_left(handle)
