"""The workloads, and running one cluster as a job of the local engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.advise.accuracy import BANDWIDTH, CLUSTERS, Cluster, Outcome

from headrace import engines, insight
from headrace.errors import HeadraceError
from headrace.job import Job
from headrace.runs import Run, Status

CODE = Path(__file__).parent / "code"
BATCH = 8
LAST_LINES = 20

WORKLOADS: dict[str, dict[str, float]] = {
    # seconds of a sample: waiting and CPU; seconds of a step: waiting (a device) and CPU; bytes of a sample
    "waiting": {"sample_wait": 0.010, "sample_burn": 0.0003, "step_wait": 0.030, "step_burn": 0.0, "bytes": 1000},
    "computing": {"sample_wait": 0.0, "sample_burn": 0.005, "step_wait": 0.0, "step_burn": 0.020, "bytes": 1000},
    "mixed": {"sample_wait": 0.005, "sample_burn": 0.003, "step_wait": 0.010, "step_burn": 0.010, "bytes": 1000},
    "large": {"sample_wait": 0.010, "sample_burn": 0.0, "step_wait": 0.020, "step_burn": 0.0, "bytes": 400_000},
}


def run_cluster(cluster: Cluster, number: int, seconds: float) -> Run:
    """Runs all workloads on one cluster.

    Args:
        cluster: which.
        number: of the round.
        seconds: of every workload.

    Raises:
        HeadraceError: the job failed.
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
        said = "\n".join(line.text for line in list(run.logs())[-LAST_LINES:])
        raise HeadraceError(f"{handle.id} ended as {handle.status.value}: {handle.cause}\n{said}")
    return run


def outcomes_of(run: Run, cluster: Cluster, number: int) -> Sequence[Outcome]:
    """Returns what every workload took in a run. Raises HeadraceError when a loader told nothing."""
    loaders = {one.loader: one for one in insight.report(run).loaders}
    found = []
    for workload in WORKLOADS:
        one = loaders.get(workload)
        if one is None or one.step_time.value is None or one.data_wait.value is None:
            raise HeadraceError(f"{cluster.title}: the workload {workload} wrote no metrics after its first second")
        step, wait = one.step_time.value / 1000, one.data_wait.value / 100
        found.append(Outcome(cluster, workload, number, run.id, step, wait))
    return found
