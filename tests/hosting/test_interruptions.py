"""Machines that a platform takes away and replaces by itself, as spot instances: that is no try of the job's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import SOAK
from machines_of_a_run import Machine, Machines, groups, job

from headrace.runs import CauseKind, Status
from objectstore import ObjectStore
from patience import until

CONTAINER = """
import os, sys
from pathlib import Path
from headrace.hosting.supervision.one_host import supervise_host
from headrace.runs import RunPaths, Status
status = supervise_host(RunPaths(Path(sys.argv[1])), sys.argv[2], interruptions=1000, anew=True)
os._exit(0 if status is Status.COMPLETED else 1)
"""
TRAIN = """
import os, sys, time
from pathlib import Path
started = Path(os.environ["STARTED"])
with started.open("a") as file:
    file.write("x")
if "COMPLETES" in os.environ:
    sys.exit(0)
if started.stat().st_size > 2:
    sys.exit(3)
print("waits", flush=True)
time.sleep(600)
"""


def start(machine: Machine) -> None:
    """Starts the machine as a platform does that brings others by itself."""
    env = {**os.environ, "TMPDIR": str(machine.folder / "tmp")}
    command = [sys.executable, "-X", "utf8", "-c", CONTAINER, str(machine.paths.root), machine.host]
    with (machine.folder / "log").open("ab") as log:
        machine.process = subprocess.Popen(
            command, env=env, cwd=machine.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: ObjectStore) -> Iterator[Machines]:
    """Makes the machine of a job that is tried again once, after any failure."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    record = {"uri": s3.uri("runs"), "interval": 1}
    retry = {"attempts": 1, "on": "any"}
    made = Machines(
        tmp_path,
        job(tmp_path, TRAIN, instance_groups=groups(dnn=1), record=record, retry=retry),
        f"127.{80 + os.getpid() % 20}.7",
    )
    yield made
    made.close()


def test_interruptions_go_on_beyond_the_jobs_retry_and_a_program_that_fails_is_not_started_more_often(
    machines: Machines, tmp_path: Path
) -> None:
    leader, started = machines.leader, tmp_path / "started"
    for number in (1, 2):
        start(leader)
        until(lambda number=number: started.exists() and started.stat().st_size == number, 30, "the program")  # type: ignore[misc]
        leader.signal()
        assert leader.wait() == 1
        assert not machines.run.finished, machines.explain()
        leader.set_up()
    start(leader)
    assert leader.wait() == 1
    state = machines.run.state()
    assert (state.status, state.attempt) == (Status.FAILED, 3), machines.explain()
    assert state.cause is not None
    assert (state.cause.kind, state.cause.exit_code) == (CauseKind.PROGRAM_EXITED, 3)
    assert started.stat().st_size == 3


if SOAK:  # in every run: interruptions, above; pods that take another's place, engines/test_kubernetes_pods.py

    def test_a_process_that_takes_the_place_of_one_whose_run_had_ended_runs_it_again(
        machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COMPLETES", "1")
        leader, started = machines.leader, tmp_path / "started"
        for number in (1, 2):  # what the first one had made was lost with its machine
            start(leader)
            assert leader.wait() == 0, machines.explain()
            assert started.stat().st_size == number
            if number == 1:
                leader.set_up()
        state = machines.run.state()
        assert (state.status, state.attempt, state.finished) == (Status.COMPLETED, 2, True)
        assert [(program.attempt, program.exit_code) for program in state.programs] == [(1, 0), (2, 0)]
