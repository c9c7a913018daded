"""DescribeTrainingJob and the line of a list: the run's record, and around it what a client sent and did not send.

The run says how far the job is, when, why and at what price. The request is shown as it came, and the members that it
left out have the service's defaults, because clients read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.endpoint.services.service import ACCOUNT
from headrace.endpoint.training_jobs.job_store import StoredJob
from headrace.errors import FAILURE_CHARACTERS
from headrace.runs import CauseKind, Run
from headrace.runs.describe import describe
from headrace.runs.state import RunState

ENDED = frozenset({"Completed", "Failed", "Stopped"})
_FLAGS = ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining")
_OF_PROGRAM = frozenset(
    {
        CauseKind.PROGRAM_EXITED,
        CauseKind.OUT_OF_MEMORY,
        CauseKind.CHILD_OUT_OF_MEMORY,
        CauseKind.LAUNCHER_KILLED,
        CauseKind.RANKS_MISSING,
        CauseKind.STALLED,
    }
)
_SUMMARY = ("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingEndTime", "LastModifiedTime")
_STATUS = ("TrainingJobStatus", "SecondaryStatus")


def job_arn(region: str, name: str) -> str:
    """Returns TrainingJobArn of a job of this endpoint."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"


def of_run(job: StoredJob, run: Run, region: str) -> dict[str, object]:
    """Returns the description of a job that has a run.

    Raises:
        OSError, msgspec.DecodeError: the run's header cannot be read.
    """
    found: dict[str, Any] = _storable(describe(run))
    state = run.state()
    if found.get("FailureReason"):
        found["FailureReason"] = failure_reason(state)
    if transitions := found.get("SecondaryStatusTransitions"):
        first = transitions[0]
        first["StatusMessage"] = "; ".join(filter(None, [first["StatusMessage"], job.note]))
        if first["StartTime"] - job.created > 1.0:
            transitions.insert(0, {**_transition("Pending", job.created), "EndTime": first["StartTime"]})
    if job.stop_asked is not None and found["TrainingJobStatus"] == "InProgress":
        found["TrainingJobStatus"] = found["SecondaryStatus"] = "Stopping"
    model, ours = found.pop("ModelArtifacts", None), found.pop("headrace")
    shown = {**found, "CreationTime": _when(job.created), **_asked(job, region)}
    if model is not None:  # the service's place, with the name that the model really has
        name = str(model["S3ModelArtifacts"]).rpartition("/")[2]
        shown["ModelArtifacts"] = {"S3ModelArtifacts": f"{_output(job)}/{name}"}
    return {**shown, "headrace": {**ours, "image": job.note}}


def without_run(job: StoredJob, region: str, message: str) -> dict[str, object]:
    """Returns the description of a job that waits for its run, or has ended without one.

    Args:
        job: the job.
        region: of the endpoint.
        message: why it waits, or why it failed; for a job that was stopped, empty.
    """
    return {
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Pending",
        "SecondaryStatusTransitions": [_transition("Pending", job.created, message)],
        "CreationTime": _when(job.created),
        "LastModifiedTime": _when(job.modified),
        **_asked(job, region),
        "headrace": {"image": job.note},
    }


def ended_without_run(job: StoredJob, region: str, now: float, failure: str) -> dict[str, object]:
    """Returns the last description of a job that never got a run: it was stopped before, or could not be started.

    Args:
        job: the job.
        region: of the endpoint.
        now: seconds since the epoch.
        failure: why it could not be started; empty when it was stopped.
    """
    status = "Failed" if failure else "Stopped"
    found = without_run(job, region, "")
    waited = {**_transition("Pending", job.created), "EndTime": _when(now)}
    last = {**_transition(status, now, failure), "EndTime": _when(now)}
    found |= {"TrainingJobStatus": status, "SecondaryStatus": status, "LastModifiedTime": _when(now)}
    found |= {"SecondaryStatusTransitions": [waited, last], "TrainingEndTime": _when(now)}
    found |= {"TrainingTimeInSeconds": 0, "BillableTimeInSeconds": 0}
    if failure:
        found["FailureReason"] = f"ClientError: {failure}"[:FAILURE_CHARACTERS]
    return found


def failure_reason(state: RunState) -> str:
    """Returns FailureReason in the service's form: whose fault it was, and then the words of the run."""
    cause = state.cause
    if cause is not None and cause.infrastructure:
        kind = "InternalServerError"
    elif cause is None or cause.kind in _OF_PROGRAM:
        kind = "AlgorithmError"
    else:
        kind = "ClientError" if cause.kind is CauseKind.HELPER_FAILED else "InternalServerError"
    return f"{kind}: {state.failure_reason}"[:FAILURE_CHARACTERS]


def _storable(value: object) -> Any:
    """Returns a description as JSON can hold it: times become numbers, as a client gets them."""
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    if isinstance(value, Mapping):
        return {str(name): _storable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    fields = getattr(value, "__struct_fields__", None)
    return value if fields is None else {name: _storable(getattr(value, name)) for name in fields}


def summary(described: Mapping[str, object]) -> dict[str, object]:
    """Returns the line of ListTrainingJobs."""
    found = {name: described[name] for name in (*_SUMMARY, *_STATUS) if name in described}
    resources = described.get("ResourceConfig")
    plan = resources.get("TrainingPlanArn") if isinstance(resources, Mapping) else None
    return {**found, "TrainingPlanArn": plan} if plan else found


def _asked(job: StoredJob, region: str) -> dict[str, object]:
    """The request, and the defaults of what it left out."""
    found: dict[str, object] = {**dict.fromkeys(_FLAGS, False), **job.request}
    found |= {"TrainingJobName": job.name, "TrainingJobArn": job_arn(region, job.name)}
    output = found.get("OutputDataConfig")
    if isinstance(output, dict):
        found["OutputDataConfig"] = {"KmsKeyId": "", **output}
    resources = found.get("ResourceConfig")
    if isinstance(resources, dict) and resources.get("InstanceGroups"):
        # The SDK's `attach` reads both members; without them it fails for every job with groups.
        found["ResourceConfig"] = {"InstanceCount": 0, "InstanceType": "", **resources}
    algorithm = found.get("AlgorithmSpecification")
    if isinstance(algorithm, dict):
        found["AlgorithmSpecification"] = {"EnableSageMakerMetricsTimeSeries": False, **algorithm}
    compressed = not (isinstance(output, dict) and output.get("CompressionType") == "NONE")
    name = "model.tar.gz" if compressed else "model/"
    return {**found, "ModelArtifacts": {"S3ModelArtifacts": f"{_output(job)}/{name}"}}


def _output(job: StoredJob) -> str:
    output = job.request.get("OutputDataConfig")
    place = str(output.get("S3OutputPath", "")) if isinstance(output, Mapping) else ""
    return f"{place.rstrip('/')}/{job.name}/output"


def _transition(status: str, start: float, message: str = "") -> dict[str, object]:
    return {"Status": status, "StartTime": _when(start), "StatusMessage": message}


def _when(seconds: float) -> float:
    return round(seconds, 3)
