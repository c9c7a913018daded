"""An attempt of a grid's line on a real `headrace serve`: one training job, whoever was killed, whatever was lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import pytest
from effort import SOAK
from sagemaker_loop import Loop
from service_relay import QUOTA, Relay

from headrace import engines
from headrace.engines.handle import RemoteHandle
from headrace.errors import NameInUse
from headrace.grid.controller.attempt_runner import start_or_adopt
from headrace.job import Job, load_job
from headrace.runs import RunPaths, Status
from headrace.runs.store import list_paths_of

pytestmark = pytest.mark.namespaces

DYING = """
import os, signal, sys
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.grid.controller.attempt_runner import start_or_adopt
from headrace.job import load_job
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
create = BotoService.create
def create_and_die(*arguments):
    create(*arguments)
    die()
BotoService.create = {patch}
start_or_adopt(load_job({file!r}), "sagemaker")
"""


def written(loop: Loop, name: str, **fields: object) -> Job:
    """A job of one host as whoever comes later reads it, too."""
    groups = [{"name": "dnn", "type": "ml.m5.xlarge", "count": 1}]
    file = loop.folder / f"{name}.yaml"
    job = loop.job("print('once')", name, instance_groups=groups, **fields)
    file.write_text(json.dumps(job.model_dump(mode="json", exclude_unset=True)))
    return load_job(file)


def names(loop: Loop) -> list[str]:
    found = loop.service.client().list_training_jobs(MaxResults=100)["TrainingJobSummaries"]
    return [each["TrainingJobName"] for each in found]


@pytest.mark.promise("grid", "a training job of a grid exists once, also after a killed submission or a lost record")
def test_a_training_job_is_named_after_its_job_and_found_again_without_its_run(loop: Loop) -> None:
    job = written(loop, "lost-0123456789ab")
    first = start_or_adopt(job, "sagemaker")
    assert (first.adopted, names(loop).count(job.job_name)) == (False, 1)
    shutil.rmtree(first.run.paths.root)  # as on another machine
    again = start_or_adopt(job, "sagemaker")
    assert (again.adopted, again.run.id) == (True, first.run.id)
    other = written(loop, "lost-0123456789ab", hyperparameters={"lr": 1})
    with pytest.raises(NameInUse):
        start_or_adopt(other, "sagemaker")
    shutil.rmtree(again.run.paths.root)
    with pytest.raises(NameInUse, match="another training job"):
        start_or_adopt(other, "sagemaker")
    assert list_paths_of(job.job_name) == [], "nothing is left of what was refused"
    again = start_or_adopt(job, "sagemaker")
    assert again.handle is None
    told = loop.service.client().describe_training_job(TrainingJobName=job.job_name)
    assert again.run.header.created == told["CreationTime"].timestamp(), "it may be taken up when it has ended"
    handle = RemoteHandle(again.run.paths)
    assert handle.wait(60) is Status.COMPLETED, (handle.cause, loop.service.log)
    assert [line.text for line in handle.logs()] == ["once"]
    assert names(loop).count(job.job_name) == 1


def test_the_attempt_that_runs_is_found_where_the_first_one_was_refused(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[QUOTA]) as relay:
        options = {"endpoint_urls": {"sagemaker": relay.url}, "retry": {"attempts": 3, "delay": 0}}
        job = written(loop, "second-0123456789ab", options=options)
        first = start_or_adopt(job, "sagemaker")
        engines.refresh(first.run)  # submits the second attempt
        second = f"{job.job_name}-try2"
        assert [name for name in names(loop) if name.startswith(job.job_name)] == [second]
        shutil.rmtree(first.run.paths.root)  # as on another machine
        again = start_or_adopt(job, "sagemaker")
        assert (again.adopted, again.run.id) == (True, first.run.id)
        handle = RemoteHandle(again.run.paths)
        assert handle.wait(60) is Status.COMPLETED, (handle.cause, loop.service.log)
        assert [name for name in names(loop) if name.startswith(job.job_name)] == [second]


@pytest.mark.promise("grid", "a training job of a grid exists once, also after a killed submission or a lost record")
@pytest.mark.parametrize("patch", ["die", *(["create_and_die"] if SOAK else [])])
def test_a_killed_submission_goes_on_as_the_same_training_job(loop: Loop, patch: str) -> None:
    job = written(loop, f"killed-{len(patch):012x}")
    code = DYING.format(patch=patch, file=str(loop.folder / f"{job.job_name}.yaml"))
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120).returncode == -9
    (left,) = list_paths_of(job.job_name)
    assert names(loop).count(job.job_name) == (patch != "die")
    found = start_or_adopt(job, "sagemaker")
    assert (found.adopted, found.run.id) == (True, left.id)
    assert RemoteHandle(RunPaths(left.root)).wait(60) is Status.COMPLETED, loop.service.log
    assert names(loop).count(job.job_name) == 1
