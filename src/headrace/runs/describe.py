"""A run as the service describes a training job: the answer of DescribeTrainingJob, as far as it is known.

Times are `datetime` in UTC. What the service would bill is in `BillableTimeInSeconds`, as there without the number of
instances: seconds from the start of the instances to their end. `headrace` holds what the service does not know: the
run, the attempt, the first cause, and seconds for every host and group, where a host that was released early has a
clock of its own.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import datetime, timezone

from headrace.runs.lifecycle import billable_seconds
from headrace.runs.reading import Run
from headrace.runs.state import RunState
from headrace.runs.store import RunHeader


def describe(run: Run) -> dict[str, object]:
    """Returns the description of a run as of now.

    Raises:
        OSError, msgspec.DecodeError: the run's header cannot be read.
    """
    header, state = run.header, run.state()
    now = time.time()
    job = _job(run)
    last = run.events()[-1:]
    seconds = billed(state, now)
    found: dict[str, object] = {
        "TrainingJobName": header.job_name,
        "TrainingJobArn": f"arn:aws:sagemaker:local:000000000000:training-job/{header.job_name}",
        "TrainingJobStatus": state.status.value,
        "SecondaryStatus": state.secondary_status.value,
        "SecondaryStatusTransitions": [
            {
                "Status": each.status.value,
                "StartTime": _when(each.start),
                **({} if each.end is None else {"EndTime": _when(each.end)}),
                "StatusMessage": each.message,
            }
            for each in state.transitions
        ],
        **({"FailureReason": state.failure_reason} if state.failure_reason else {}),
        "CreationTime": _when(header.created),
        **_times(state),
        "LastModifiedTime": _when(max([header.created, *(event.t for event in last)])),
        **_request(job),
        **({} if seconds is None else {"TrainingTimeInSeconds": seconds, "BillableTimeInSeconds": seconds}),
    }
    model = next((uri for event in run.events() if (uri := _model(event))), "")
    if model:
        found["ModelArtifacts"] = {"S3ModelArtifacts": model}
    return {**found, "headrace": _ours(run, header, state, now)}


def billed(state: RunState, now: float) -> int | None:
    """Returns BillableTimeInSeconds, None when no instance has started."""
    if state.instances_started is None:
        return None
    return math.ceil(max(0.0, (now if state.ended is None else state.ended) - state.instances_started))


def _times(state: RunState) -> dict[str, object]:
    if state.instances_started is None:
        return {}
    times = {"TrainingStartTime": _when(state.instances_started)}
    if state.ended is not None:
        times["TrainingEndTime"] = _when(state.ended)
    return dict(times)


def _model(event: object) -> str:
    return str(getattr(event, "uri", "")) if getattr(event, "name", "") == "model" else ""


def _ours(run: Run, header: RunHeader, state: RunState, now: float) -> dict[str, object]:
    return {
        "run_id": run.id,
        "run_dir": str(run.paths.root),
        "engine": header.engine,
        "attempt": state.attempt,
        "degraded": state.degraded,
        "cause": state.cause,
        "exit_code": state.exit_code,
        "artefacts": state.artefacts,
        "billable_seconds": {
            "groups": {name: round(value, 3) for name, value in billable_seconds(state.hosts, now).items()},
            "hosts": {host.host: round(host.seconds(now), 3) for host in state.hosts},
            "released": [host.host for host in state.hosts if host.released],
        },
    }


def _job(run: Run) -> Mapping[str, object]:
    try:
        job = json.loads((run.paths.root / "job.json").read_bytes())
    except (OSError, ValueError):  # the record of what happened stands without the wish
        return {}
    return job if isinstance(job, dict) else {}


def _request(job: Mapping[str, object]) -> dict[str, object]:
    """What was asked for, from the run's job.json, whose keys are those of the job file."""
    found: dict[str, object] = {}
    groups = job.get("instance_groups")
    if isinstance(groups, list):
        names = (("InstanceType", "instance_type"), ("InstanceCount", "instance_count"))
        found["ResourceConfig"] = {
            "InstanceGroups": [
                {ours: group.get(key) for ours, key in (*names, ("InstanceGroupName", "instance_group_name"))}
                for group in groups
                if isinstance(group, dict)
            ]
        }
    elif "instance_type" in job:
        count = job.get("instance_count", 1)
        found["ResourceConfig"] = {"InstanceType": job["instance_type"], "InstanceCount": count}
    stopping = job.get("stopping_condition")
    if isinstance(stopping, dict) and "max_run" in stopping:
        found["StoppingCondition"] = {"MaxRuntimeInSeconds": stopping["max_run"]}
    for name, key in (("Environment", "environment"), ("HyperParameters", "hyperparameters")):
        if isinstance(values := job.get(key), dict) and values:
            texts = (
                (str(each), value if isinstance(value, str) else json.dumps(value)) for each, value in values.items()
            )
            found[name] = dict(texts)
    if isinstance(retry := job.get("retry"), dict):
        found["RetryStrategy"] = {"MaximumRetryAttempts": retry.get("attempts")}
    found["EnableInterContainerTrafficEncryption"] = bool(job.get("encrypt_inter_container_traffic"))
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
