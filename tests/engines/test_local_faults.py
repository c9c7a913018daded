"""Every fault ends the run soon, with the first cause, a non-zero exit code, and nothing left behind.

No test cleans up: a separate observer looks at processes, sockets, shared memory and temporary files.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from effort import SOAK
from run_places import flag
from stage import agent_pid, assert_failed, both_isolations_at_length, groups, kill, program_pid, said, text

from headrace import engines
from headrace.instance import read_failure
from headrace.runs import Run, Status, read_header
from patience import allowed, until

SLEEP = """
import os, sys, time
print("running", os.getpid(), flush=True)
time.sleep(600)
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("running", os.getpid(), flush=True)
while True:
    time.sleep(1)
"""


def running(handle, hosts):
    return until(lambda: text(handle).count("running") >= hosts, what="the programs run")


@pytest.mark.promise("runs", "the first cause is named: group, host, rank, exit code or signal, and the last lines")
@both_isolations_at_length
@pytest.mark.promise("sagemaker-differences", "absent here: the program's exit code is lost (always 1)")
@pytest.mark.promise("sagemaker-differences", "absent here: a trainer fails and the data hosts wait for ever")
def test_a_trainer_that_exits_with_3_is_the_cause_with_its_last_lines(stage):
    script = """
    import os, sys, time
    if os.environ["SM_CURRENT_HOST"] == "algo-2":
        print("step 1\\nValueError: bad label", flush=True)
        sys.exit(3)
    time.sleep(600)
    """
    handle = stage.start(script, instance_groups=groups(dnn=3))
    assert_failed(handle, time.monotonic())
    stage.assert_nothing_left(handle)
    assert handle.status is Status.FAILED
    assert str(handle.cause) == "dnn/algo-2[0]: exited with code 3"
    assert handle.cause.last_lines[-1] == "ValueError: bad label"
    assert "exited with code 3" in read_failure(handle.paths.host("algo-2"))


@pytest.mark.promise("runs", "no order of events leads from a failure to a success, and no failure ends with 0")
@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(130)", 130), ("raise OSError('no number')", 1)])
@pytest.mark.promise("sagemaker-differences", "absent here: exit code 130 is a success")
def test_a_failure_that_other_platforms_take_for_a_success_is_one(stage, script, code):
    """130 is a success in SageMaker's local mode, and an OSError without number in its containers."""
    handle = stage.start(script)
    assert handle.wait(20) is Status.FAILED
    assert (handle.exit_code, handle.cause.exit_code) == (1, code)


def killed(stage, victim, hosts=2):
    """Kills a process of a job whose programs are hard to end. Returns its handle: it has failed, and left nothing."""
    handle = stage.start(STUBBORN, instance_groups=groups(dnn=hosts))
    running(handle, hosts)
    pid = victim(handle)
    began = time.monotonic()
    kill(pid)
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    return handle


@both_isolations_at_length
@pytest.mark.promise("sagemaker-differences", "absent here: a launcher reports a killed trainer as a success")
def test_a_trainer_that_is_killed_is_the_cause_and_its_children_go(stage):
    handle = killed(stage, lambda handle: program_pid(handle, "algo-2"))
    assert str(handle.cause) == "dnn/algo-2[0]: killed by SIGKILL"
    assert handle.cause.signal == signal.SIGKILL


@pytest.mark.promise("runs", "the first cause is named: group, host, rank, exit code or signal, and the last lines")
@pytest.mark.torch
def test_of_torch_ranks_the_killed_one_is_the_cause_and_not_its_peer(stage):
    script = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    while True:
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0:
            print("step", flush=True)
    """
    handle = stage.start(
        script,
        instance_groups=groups(dnn=2),
        distribution={"torch_distributed": {"enabled": True, "processes_per_host": 1}},
        environment={"OMP_NUM_THREADS": "1"},
    )
    until(said(handle, "step"), 60)
    began = time.monotonic()
    kill(program_pid(handle, "algo-2", "1"))
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == "dnn/algo-2[1]: killed by SIGKILL"


@pytest.mark.promise("runs", "no process, socket, shared memory, cgroup or temporary file outlives a job")
@both_isolations_at_length
def test_the_supervisor_and_all_agents_are_killed(stage):
    handle = stage.start(SLEEP, instance_groups=groups(dnn=2))
    running(handle, 2)
    began = time.monotonic()
    victims = [read_header(handle.paths).supervisor_pid, *(agent_pid(handle, f"algo-{n}") for n in (1, 2))]
    for pid in victims:
        kill(pid)
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)


CALLER = """
import sys, time
sys.path[:0] = {path!r}
from headrace import engines
from headrace.job import Job
handle = engines.start(Job(
    "job", source_dir={source!r}, entry_point="train.py", instance_type="ml.c5.xlarge", instance_count=2,
    engines={{"local": {{"address_prefix": {prefix!r}, "stop_grace": 3}}}},
))
print(handle.id, flush=True)
{after}
"""


def call(stage, script, after):
    """Starts a run in another process, which then goes on with `after`."""
    job = stage.job(script)
    code = CALLER.format(path=sys.path, source=job.source_dir, prefix=stage.prefix, after=textwrap.dedent(after))
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return caller, Run.open(caller.stdout.readline().strip())


def test_a_caller_that_is_done_without_waiting_ends_its_run(stage):
    caller, run = call(stage, SLEEP, "")
    assert caller.wait(20) == 0
    caller.stdout.close()
    until(lambda: run.finished)
    stage.observer.assert_nothing_left(run.id, run.paths.root, within=2)
    assert run.status is Status.FAILED


def test_a_fork_of_the_caller_that_holds_the_lifeline_does_not_keep_the_run_alive(stage):
    caller, run = call(
        stage, SLEEP, "import os\npid = os.fork()\nprint(pid, flush=True) if pid else None\ntime.sleep(600)"
    )
    fork = int(caller.stdout.readline())
    try:
        until(lambda: "".join(line.text for line in run.logs()).count("running") >= 2)
        caller.kill()
        caller.wait()
        until(lambda: run.finished)
        assert run.status is Status.FAILED
    finally:
        kill(fork)
        caller.stdout.close()
    stage.observer.assert_nothing_left(run.id, run.paths.root, within=2)


@pytest.mark.promise("engines", "the programs save on a stop, on local")
@both_isolations_at_length
def test_a_stop_gives_time_to_save_and_ends_as_stopped(stage):
    script = """
    import signal, sys, time
    def save(*_):
        time.sleep(0.5)
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("running", flush=True)
    time.sleep(600)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2))
    running(handle, 2)
    handle.stop()
    assert handle.wait(15) is Status.STOPPED
    assert handle.exit_code == 130
    assert text(handle).count("saved") == 2
    assert handle.cause.reason == "stopped by the user"
    stage.assert_nothing_left(handle)


@pytest.mark.promise("running", "SIGTERM reaches the script, also behind a shell, with time to save; then SIGKILL")
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_whoever_stops_the_run(stage):
    handle = stage.start(STUBBORN, local={"stop_grace": 1.5})
    running(handle, 1)
    began = time.monotonic()
    assert engines.stop(Run.open("job"))
    assert handle.wait(15) is Status.STOPPED
    assert 1.5 < time.monotonic() - began < allowed(8)
    assert not engines.stop(Run.open("job"))  # its pid may belong to anybody now
    assert "asked" in text(handle)
    stage.assert_nothing_left(handle)


if SOAK:  # in every run: a stop that does not wait at all, below

    @both_isolations_at_length
    def test_a_second_stop_does_not_wait_for_the_grace(stage):
        handle = stage.start(STUBBORN, instance_groups=groups(dnn=2), local={"stop_grace": 60})
        running(handle, 2)
        handle.stop()
        until(lambda: text(handle).count("asked") == 2)
        began = time.monotonic()
        handle.stop()
        assert handle.wait(15) is Status.STOPPED
        assert time.monotonic() - began < allowed(6)
        assert handle.exit_code == 130
        stage.assert_nothing_left(handle)


def test_stop_now_does_not_ask(stage):
    handle = stage.start(STUBBORN, local={"stop_grace": 60})
    running(handle, 1)
    began = time.monotonic()
    handle.stop(now=True)
    assert handle.wait(15) is Status.STOPPED
    assert time.monotonic() - began < allowed(6)
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "exit code 1: failed, or stopped by `max_run`")
@pytest.mark.promise("sagemaker-differences", "absent here: no time limit")
def test_max_run_stops_the_job(stage):
    handle = stage.start(SLEEP, stopping_condition={"max_run": 1})
    began = time.monotonic()
    assert handle.wait(20) is Status.STOPPED
    assert time.monotonic() - began < allowed(10)
    assert handle.cause.reason.startswith("MaxRuntimeExceeded")
    assert handle.exit_code == 1
    stage.assert_nothing_left(handle)


def test_a_fork_bomb_of_short_lived_children_is_ended(stage):
    script = """
    import os, sys, time
    print("running", flush=True)
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            while True:  # hand the baton on: always a young process
                if os.fork():
                    os._exit(0)
                time.sleep(0.005)
    time.sleep(600)
    """
    handle = stage.start(script, local={"stop_grace": 1})
    running(handle, 1)
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "control traffic is under TLS with the run's certificates; strangers can do nothing")
@pytest.mark.promise("sagemaker-differences", "absent here: control ports without authentication")
def test_a_stranger_on_the_control_port_of_a_real_run_changes_nothing(stage):
    import asyncio
    import socket

    from agent_connection import connect
    from headrace.agent.control.control_messages import Exited, Report
    from headrace.engines.planning.host_certificates import make_certificates

    script = """
    import os, time
    print("running", flush=True)
    while not os.path.exists("enough"):
        time.sleep(0.02)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2))
    running(handle, 2)
    before = handle.run.events()

    async def attack():
        liar = make_certificates(handle.run.id, ["algo-2"])["algo-2"]
        async with connect(f"{stage.prefix}.1:7071", "algo-1", liar, b"i" * 16) as connection:
            await connection.send(Report(1, Exited("0", 0.0, exit_code=0)))
            await connection.receive()

    with pytest.raises(ConnectionError):
        asyncio.run(attack())
    with socket.create_connection((f"{stage.prefix}.1", 7071)) as stranger:
        stranger.sendall(os.urandom(4096))
    assert handle.run.events() == before
    flag(handle, "enough")
    assert handle.wait(20) is Status.COMPLETED
    stage.assert_nothing_left(handle)
