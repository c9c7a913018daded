"""The clusters and workloads, and running one cluster as a job of the local engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bench.advise.accuracy import Outcome

from headrace import engines
from headrace.errors import HeadraceError, UsageError
from headrace.insight.advise.advising import measured_of
from headrace.job import Job
from headrace.runs import Run, Status

CODE = Path(__file__).parent / "code"
BATCH = 8
BANDWIDTH = "200mbit"
BYTES_A_SECOND = 200e6 / 8

WORKLOADS: dict[str, dict[str, float]] = {
    # seconds of a sample: waiting and CPU; seconds of a step: waiting (a device) and CPU; bytes of a sample
    "waiting": {"sample_wait": 0.010, "sample_burn": 0.0003, "step_wait": 0.030, "step_burn": 0.0, "bytes": 1000},
    "computing": {"sample_wait": 0.0, "sample_burn": 0.005, "step_wait": 0.0, "step_burn": 0.020, "bytes": 1000},
    "mixed": {"sample_wait": 0.005, "sample_burn": 0.003, "step_wait": 0.010, "step_burn": 0.010, "bytes": 1000},
    "large": {"sample_wait": 0.010, "sample_burn": 0.0, "step_wait": 0.020, "step_burn": 0.0, "bytes": 400_000},
}


@dataclass(frozen=True)
class Cluster:
    """One cluster: CPU 0 trains; CPU 1 is divided among the data hosts.

    Attributes:
        title: in words.
        data_hosts: how many.
        workers: data workers on every host that has some.
        trainer_helps: the host that trains has data workers too.
    """

    title: str
    data_hosts: int
    workers: int
    trainer_helps: bool


CLUSTERS = (
    Cluster("no data hosts", 0, 1, trainer_helps=True),
    Cluster("1 data host", 1, 1, trainer_helps=True),
    Cluster("2 data hosts on one core", 2, 1, trainer_helps=True),
    Cluster("1 data host of 3 workers, trainer makes none", 1, 3, trainer_helps=False),
)


def run_cluster(cluster: Cluster, number: int, seconds: float) -> list[Outcome]:
    """Runs all workloads on one cluster.

    Args:
        cluster: which.
        number: of the round.
        seconds: of every workload.

    Raises:
        HeadraceError: the job failed, or told nothing.
    """
    data = [{"name": "data", "type": "ml.c5.xlarge", "count": cluster.data_hosts}] if cluster.data_hosts else []
    makers = [*(["data"] if data else []), *(["train"] if cluster.trainer_helps else [])]
    local: dict[str, object] = {"cpu_sets": {"train": "0", **({"data": "1"} if data else {})}}
    if data:
        local["network"] = {"data": {"bandwidth": BANDWIDTH}}
    job = Job(
        job_name=f"advise-{number}-{CLUSTERS.index(cluster)}",
        source_dir=str(CODE),
        entry_point="train.py",
        hyperparameters={"workloads": json.dumps(WORKLOADS), "seconds": seconds, "batch_size": BATCH},
        instance_groups=[*data, {"name": "train", "type": "ml.g5.xlarge", "count": 1}],
        completion={"instance_groups": ["train"]},
        data_service={"feed": {"enabled": True, "workers_per_host": cluster.workers}, "instance_groups": makers},
        stopping_condition={"max_run": 300},
        engines={"local": local},
    )
    handle = engines.start(job)
    handle.wait()
    run = Run.open(handle.id)
    if handle.status is not Status.COMPLETED:
        said = "\n".join(line.text for line in list(run.logs())[-20:])
        raise HeadraceError(f"{handle.id} ended as {handle.status.value}: {handle.cause}\n{said}")
    found = []
    for workload in WORKLOADS:
        try:
            measured = measured_of(run, loader=workload)
        except UsageError as error:
            raise HeadraceError(f"{cluster.title}, {workload}: {error.message}") from error
        found.append(Outcome(cluster.title, workload, number, measured))
    return found
