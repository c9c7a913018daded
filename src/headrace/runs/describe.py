"""A run as others show it: as the service describes a training job (the answer of DescribeTrainingJob, as far as it is
known), and as one line of a list, in `headrace ps` and on the first page of `headrace ui`.

Times are `datetime` in UTC. What the service would bill is in `BillableTimeInSeconds`, as there without the number of
instances: seconds from the start of the instances to their end; of a run that a platform bills, what that says of all
attempts. `headrace` holds what the service does not know: the
run, the attempt, the first cause, and seconds for every host and group, where a host that was released early has a
clock of its own.
"""

from __future__ import annotations

import json
import math
import time
from datetime import datetime, timezone

import msgspec

from headrace.own_runs import started_here
from headrace.record_files import read_record
from headrace.runs.cause import in_words
from headrace.runs.reader import Run
from headrace.runs.run_paths import RunPaths
from headrace.runs.state import RunState, billable_seconds
from headrace.runs.store import RunHeader, read_plan


class GroupLine(msgspec.Struct, frozen=True):
    """One instance group of a plan: its name, its instance type and its hosts."""

    name: str
    instance_type: str = ""
    hosts: tuple[str, ...] = ()


class RunLine(msgspec.Struct, frozen=True):
    """One run in a list.

    Attributes:
        run_id, job_name, engine: which one.
        status, secondary_status: SageMaker's.
        attempt: from 1.
        hosts: how many instances it has; 0 before they run.
        created: seconds since the epoch.
        seconds: from there to its end, or to now, or to the newest part of a copy that is not complete; 0 when it
            ended before anything was written of it.
        exit_code: None while it goes on.
        cause: why it did not succeed, in words.
        degraded: the data service lost workers or servers while the job went on.
        groups: its instance groups, as planned; empty when there is no readable plan.
        silent_seconds: for how long a copy that is not complete has had nothing new; None of every other run.
        bytes: what its directory takes on disk; None where nobody has looked.
        foreign: this user has not started, or fetched, it here: it is only read.
        serves: the run for which this one is the service's side, on an endpoint of this machine; empty for all others.
    """

    run_id: str
    job_name: str
    engine: str
    status: str
    secondary_status: str
    attempt: int
    hosts: int
    created: float
    seconds: float
    exit_code: int | None
    cause: str
    degraded: bool = False
    groups: tuple[GroupLine, ...] = ()
    silent_seconds: float | None = None
    bytes: int | None = None
    foreign: bool = False
    serves: str = ""


class _Plan(msgspec.Struct, frozen=True):
    groups: tuple[GroupLine, ...] = ()


def planned_groups(paths: RunPaths) -> tuple[GroupLine, ...]:
    """Returns the instance groups of a run's plan, in the job file's order; none when the plan cannot be read."""
    try:
        return read_plan(paths, _Plan).groups
    except (OSError, msgspec.DecodeError):  # the run is listed without its plan
        return ()


def run_line(run: Run, now: float, state: RunState | None = None) -> RunLine:
    """Returns the line of a run. Raises OSError or msgspec.DecodeError when its header cannot be read.

    Args:
        run: which one.
        now: seconds since the epoch.
        state: what its events say; None to read them.
    """
    header, state = run.header, state or run.state()
    until = state.ended
    if until is None:  # it goes on, or was over before anything was written of it
        until = header.created if state.finished else run.present(now)
    return RunLine(
        run_id=run.id,
        job_name=header.job_name,
        engine=header.engine,
        status=state.status.value,
        secondary_status=state.secondary_status.value,
        attempt=state.attempt,
        hosts=len(state.hosts),
        created=header.created,
        seconds=round(max(0.0, until - header.created), 3),
        exit_code=state.exit_code,
        cause=str(state.cause or ""),
        degraded=state.degraded,
        groups=planned_groups(run.paths),
        silent_seconds=run.silent_seconds(now),
        foreign=not started_here(run.paths.root),
    )


_DEPTH = 50
_SECRET = "AWS_SECRET_ACCESS_KEY"
_NOT_DESCRIBED = ("TrainingJobName", "Tags")  # the service has other operations for tags


def describe(run: Run) -> dict[str, object]:
    """Returns the description of a run as of now.

    Raises:
        OSError, msgspec.DecodeError: the run's header cannot be read.
    """
    header, state = run.header, run.state()
    clock = time.time()
    now = run.present(clock)
    last = run.events()[-1:]
    found: dict[str, object] = {
        "TrainingJobName": header.job_name,
        "TrainingJobArn": job_arn(header.job_name),
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
        **_request(run),
        **_final_metrics(run),
        **_seconds(state, now),
    }
    model = next((each.uri for each in state.artefacts if each.name == "model"), "")
    if model:
        found["ModelArtifacts"] = {"S3ModelArtifacts": model}
    ours = _ours(run, header, state, now)
    return {
        **found,
        "headrace": {**ours, "silent_seconds": run.silent_seconds(clock), "foreign": not started_here(run.paths.root)},
    }


def job_arn(job_name: str) -> str:
    """Returns TrainingJobArn of a job that no AWS account knows: its programs have it as TRAINING_JOB_ARN."""
    return f"arn:aws:sagemaker:local:000000000000:training-job/{job_name}"


def billed(state: RunState, now: float) -> int | None:
    """Returns BillableTimeInSeconds, None when no instance has started."""
    if state.instances_started is None:
        return None
    return math.ceil(max(0.0, (now if state.ended is None else state.ended) - state.instances_started))


def _seconds(state: RunState, now: float) -> dict[str, object]:
    training = billable = billed(state, now)
    if state.billed:
        training = sum(each.training_seconds for each in state.billed)
        billable = sum(each.billable_seconds for each in state.billed)
    return {} if billable is None else {"TrainingTimeInSeconds": training, "BillableTimeInSeconds": billable}


def _times(state: RunState) -> dict[str, object]:
    if state.instances_started is None:
        return {}
    times = {"TrainingStartTime": _when(state.instances_started)}
    if state.ended is not None:
        times["TrainingEndTime"] = _when(state.ended)
    return dict(times)


def _final_metrics(run: Run) -> dict[str, object]:
    newest = run.values.seconds()
    if not newest:
        return {}
    final = [
        {"MetricName": name, "Value": second.last, "Timestamp": _when(second.t)}
        for name, second in sorted(newest.items())
    ]
    return {"FinalMetricDataList": final}


def _ours(run: Run, header: RunHeader, state: RunState, now: float) -> dict[str, object]:
    return {
        "run_id": run.id,
        "run_dir": str(run.paths.root),
        "engine": header.engine,
        "attempt": state.attempt,
        "degraded": state.degraded,
        "cause": in_words(state.cause),
        "exit_code": state.exit_code,
        "artefacts": state.artefacts,
        "files_left": state.files_left,
        "record_not_stored": state.record_not_stored,
        "billable_seconds": {
            "groups": {name: round(value, 3) for name, value in billable_seconds(state.hosts, now).items()},
            "hosts": _seconds_of_hosts(state, now),
            "released": [host.host for host in state.hosts if host.released],
        },
    }


def _seconds_of_hosts(state: RunState, now: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for host in state.hosts:  # other instances of another attempt may have given it another group
        found[host.host] = round(found.get(host.host, 0.0) + host.seconds(now), 3)
    return found


def _request(run: Run) -> dict[str, object]:
    """The run's request.json: what was asked for, in the service's terms."""
    try:
        request = json.loads(read_record(run.paths.request))
    except (OSError, ValueError, RecursionError):  # the run is described without its request
        return {}
    if not isinstance(request, dict) or not _is_flat(request):
        return {}
    if isinstance(variables := request.get("Environment"), dict) and _SECRET in variables:
        request["Environment"] = {**variables, _SECRET: "..."}
    return {name: value for name, value in request.items() if name not in _NOT_DESCRIBED}


def _is_flat(value: object) -> bool:
    """Returns whether a document is nested no deeper than any request is; a deeper one could not be written again."""
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
