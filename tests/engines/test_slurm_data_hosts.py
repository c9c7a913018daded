"""Data hosts of a run on Slurm that come and go: each gets a job of its own, which is given back."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_places import WITHOUT_TORCH, flag
from slurm_cluster import HEAD, SlurmCluster
from slurm_stage import DATA, DNN, end_jobs, job_file, needs_slurm, started_cluster, submit
from stage import text
from test_local_data_hosts import DATA as DATASET
from test_local_data_hosts import TRAIN

from headrace import engines
from headrace.job import Job
from headrace.runs import RunPaths
from headrace.runs.events import DataWorkerLost, FeedReady, HostJoined, HostLost, HostReleased
from patience import until

GROUPS = [{**DATA, "count": 2}, DNN]
FEED = {"enabled": True, "workers_per_host": 1, "workers": {"min": 1, "max": 2, "idle_after": 1.0}}
SERVICE = {"feed": FEED, "instance_groups": ["data_group"]}


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with started_cluster() as started:
        yield started
        end_jobs(started)


def test_hosts_that_come_later_are_no_part_of_the_job_and_have_scripts_of_their_own(tmp_path: Path) -> None:
    nodes = {"data_group": {"partition": "cheap", "step_options": ["--cpu-bind=none"]}, "dnn_group": {"gres": "gpu:1"}}
    job = Job(
        "digits",
        source_dir=str(tmp_path),
        entry_point="train.py",
        instance_groups=GROUPS,
        data_service=SERVICE,
        engines={"slurm": {"groups": nodes}},
    )
    documents = {each.name: each.text for each in engines.find("slurm").render(job)}
    assert [line for line in documents["job.sbatch"].splitlines() if "--nodes" in line] == [
        "#SBATCH --nodes=1 --ntasks-per-node=1 --no-kill --no-requeue"
    ] * 2
    assert "--partition=cheap" in documents["algo-2.sbatch"]
    assert documents["algo-2.sbatch"].splitlines()[-1].endswith('data_group algo-2 "$1"')
    assert documents.keys() == {"job.sbatch", "algo-1.sbatch", "algo-2.sbatch", "plan.json"}
    planned = engines.find("slurm").plan(job)
    assert "1 to 2 of the 2 data hosts are there, as needed" in planned.limits
    assert not planned.without_effect


@needs_slurm
@pytest.mark.timeout(240)
@pytest.mark.promise("job-file", "data hosts come and go with the need, and one that is lost is replaced")
def test_a_data_host_comes_in_a_job_of_its_own_is_replaced_when_that_is_taken_and_gives_its_node_back(
    cluster: SlurmCluster,
) -> None:
    fields = {"instance_groups": GROUPS, "data_service": SERVICE, "environment": WITHOUT_TORCH}
    file = job_file(cluster, "digits", textwrap.dedent(TRAIN), **fields)
    (cluster.folder / "digits" / "data.py").write_text(textwrap.dedent(DATASET))
    run = submit(cluster, file)

    def hosts_of(kind: type) -> list[str]:
        assert not run.run.finished, f"{run.run.cause}: {run._logs()}"
        return [event.host for event in run.run.events() if isinstance(event, kind)]

    def jobs() -> list[str]:
        return cluster.on(HEAD, "squeue", "-h", "--states=RUNNING", "-o", "%j %A %N").stdout.split("\n")[:-1]

    until(lambda: hosts_of(FeedReady) == ["algo-1"], 90, "the first data host")
    assert len(jobs()) == 2
    until(lambda: hosts_of(FeedReady) == ["algo-1", "algo-2"], 60, "another one")
    assert hosts_of(HostJoined) == ["algo-2"]
    (own,) = [line.split() for line in jobs() if line.startswith("digits-algo-2 ")]
    cluster.on(HEAD, "scancel", own[1])  # Slurm takes its node
    until(lambda: hosts_of(HostLost) == ["algo-2"], 30, "it is lost")
    until(lambda: hosts_of(FeedReady) == ["algo-1", "algo-2", "algo-2"], 60, "another one in its place")
    flag(run.run, "slow")
    until(lambda: hosts_of(HostReleased).count("algo-2") == 3, 60, "it leaves")
    until(lambda: not any(line.startswith("digits-algo-2 ") for line in jobs()), 30, "its node is given back")
    flag(run.run, "enough")
    run.completed()
    [line] = [line for line in text(run).splitlines() if line.startswith("steps")]
    assert "same True" in line
    lost = [event.host for event in run.run.events() if isinstance(event, DataWorkerLost)]
    assert lost == ["algo-2"]
    until(lambda: jobs() == [], 30, "no job is left")
    assert not (RunPaths(run.run.paths.root).engine / "environment.json").exists()


FAILS_ONCE = """
import os, pathlib
mark = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "mark"
first = not mark.exists()
mark.touch()
"""


@needs_slurm
@pytest.mark.timeout(240)
@pytest.mark.promise("engines", "another attempt, on slurm")
def test_in_another_attempt_a_data_host_gets_another_job_of_its_own(cluster: SlurmCluster) -> None:
    fields = {"instance_groups": GROUPS, "data_service": SERVICE, "environment": WITHOUT_TORCH}
    script = FAILS_ONCE + textwrap.dedent(TRAIN) + "raise SystemExit(3 if first else 0)\n"
    file = job_file(cluster, "again", script, retry={"attempts": 1, "on": "any"}, **fields)
    (cluster.folder / "again" / "data.py").write_text(textwrap.dedent(DATASET))
    run = submit(cluster, file)

    def ready() -> list[str]:
        assert not run.run.finished, f"{run.run.cause}: {run._logs()}"
        return [event.host for event in run.run.events() if isinstance(event, FeedReady)]

    until(lambda: ready() == ["algo-1", "algo-2"], 120, "both data hosts")
    flag(run.run, "enough")
    until(lambda: sorted(ready()[2:]) == ["algo-1", "algo-2"], 120, "both in the other attempt")
    flag(run.run, "enough")
    run.completed()
    assert run.run.state().attempt == 2
    assert all("same True" in line for line in text(run).splitlines() if line.startswith("steps"))
    until(lambda: cluster.on(HEAD, "squeue", "-h", "--states=RUNNING", "-o", "%j").stdout == "", 30, "no job is left")
    assert not (RunPaths(run.run.paths.root).engine / "environment.json").exists()
