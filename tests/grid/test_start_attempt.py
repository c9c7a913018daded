"""One attempt of a line is started once, whoever was killed while starting it, and found again by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_jobs import killed_in, ledger, local_job, until

from headrace import engines
from headrace.engines.new_run import check_name
from headrace.errors import NameInUse
from headrace.grid.controller.attempt_runner import (
    StartedRun,
    digest_of_run,
    find_attempt,
    never_started,
    prepared,
    request_digest,
    start_or_adopt,
)
from headrace.runs import Status, list_runs

DYING = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from grid_jobs import local_job
from headrace.grid.controller.attempt_runner import start_or_adopt
import headrace.engines.local.engine as engine, headrace.hosting.supervision.start as start
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{patch}
start_or_adopt(local_job(Path({folder!r})), "local")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    yield tmp_path
    for run in list_runs():
        if not run.finished:  # the test has failed already
            engines.stop(run, now=True)
            until(lambda run=run: run.finished)


def finish(folder: Path, started: StartedRun) -> None:
    (folder / "gate").touch()
    until(lambda: started.run.finished)
    assert started.run.status is Status.COMPLETED, started.run.cause
    started.release(20)


def test_a_second_start_finds_the_run_also_when_it_has_ended(home: Path) -> None:
    job = local_job(home)
    first = start_or_adopt(job, "local")
    assert not first.adopted
    assert digest_of_run(first.run.paths) == request_digest(job, "local")
    again = start_or_adopt(job, "local")
    assert (again.adopted, again.run.id) == (True, first.run.id)
    other = local_job(home, hyperparameters={"lr": 1})
    with pytest.raises(NameInUse, match="of another job"):
        start_or_adopt(other, "local")
    until(lambda: ledger(home))
    finish(home, first)
    again = start_or_adopt(job, "local")
    assert (again.adopted, again.run.id, again.run.finished) == (True, first.run.id, True)
    assert ledger(home) == [job.job_name]


def test_a_run_that_no_grid_has_started_is_not_taken_for_the_lines_own(home: Path) -> None:
    job = local_job(home)
    handle = engines.start(job, "local", detach=True)
    with pytest.raises(NameInUse, match="that no grid has started"):
        start_or_adopt(job, "local")
    finish(home, StartedRun(handle.run, False, handle))


def test_the_run_by_which_an_endpoint_of_the_same_home_plays_an_attempt_is_not_taken_for_it(home: Path) -> None:
    job = local_job(home)
    wanted = prepared(job, "sagemaker", request_digest(job, "sagemaker"))
    handle = engines.start(wanted, "local", detach=True)  # name and tags travel with a request
    check_name(job.job_name, "sagemaker")
    assert find_attempt(job.job_name, "sagemaker", request_digest(job, "sagemaker")) is None
    with pytest.raises(NameInUse, match="already running"):
        check_name(job.job_name, "slurm")
    with pytest.raises(NameInUse, match="of another job"):
        find_attempt(job.job_name, "sagemaker", request_digest(local_job(home, hyperparameters={"lr": 1}), "sagemaker"))
    finish(home, StartedRun(handle.run, False, handle))


@pytest.mark.promise("grid", "a controller that is killed at any instant and restarted runs each line exactly once")
@pytest.mark.parametrize(
    ("patch", "started"),
    [
        ("engine.prepare = die", False),
        ("engine.start_supervisor = die", False),
        ("start._await_supervisor = die", True),
    ],
    ids=["in a new run", "before its supervisor", "before its supervisor has begun"],
)
def test_whoever_dies_while_starting_leaves_a_run_that_is_found_or_nothing_that_runs(
    home: Path, patch: str, started: bool
) -> None:
    killed_in(DYING.format(path=sys.path, folder=str(home), patch=patch))
    (left,) = list_runs()
    job = local_job(home)
    found = start_or_adopt(job, "local")
    assert (found.adopted, found.run.id == left.id) == (started, started)
    assert never_started(left) is not started
    until(lambda: ledger(home))
    finish(home, found)
    assert ledger(home) == [job.job_name], "its program has run once"
