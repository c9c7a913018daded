"""What the service has measured of an attempt that has ended: the seconds that it bills, and what its hosts used.

A host whose agent was killed, or a leader that was killed before it stored the record, leaves no metrics. CloudWatch
measures every host from outside, once a minute. These minutes come into the run's record beside the others, as records
of a kind of their own that name their source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import datetime

from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.service_calls import Answer, HostPoint
from headrace.errors import EngineRefused
from headrace.runs import MetricWriter, Run, RunState, Stream, state_of
from headrace.runs.events import AttemptBilled
from headrace.runs.metric_records import PlatformMinute
from headrace.runs.run_paths import PLATFORM
from headrace.sagemaker_parameters import HOMOGENEOUS

_log = logging.getLogger(__name__)

SOURCE = "CloudWatch"
PERIOD = 60  # seconds; CloudWatch has no less of training jobs
SILENT = 120.0  # seconds without a record of its own, after which a host's end is not told
UNKNOWN_GROUP = "unknown"
"""Group of hosts in a job of several groups whose record does not tell which host the service gave to which group."""
NAMES = {
    "CPUUtilization": "cpu",
    "MemoryUtilization": "memory",
    "GPUUtilization": "gpu",
    "GPUMemoryUtilization": "gpu_memory",
    "DiskUtilization": "disk",
}
"""CloudWatch's names, and fields of `PlatformMinute`."""


def bill_of(answer: Answer, number: int, region: str) -> AttemptBilled | None:
    """Returns what the service bills for an attempt; None when it does not tell, although instances ran.

    Args:
        answer: what DescribeTrainingJob says of its job, which has ended.
        number: of the attempt, from 1.
        region: where it was.
    """
    seconds = [answer.get(name) for name in ("TrainingTimeInSeconds", "BillableTimeInSeconds")]
    if answer.get("TrainingStartTime") is None and seconds == [None, None]:
        seconds = [0, 0]  # no instance has started
    training, billable = seconds
    if not isinstance(training, int) or not isinstance(billable, int):
        return None
    ended = _moment(answer.get("TrainingEndTime"))
    return AttemptBilled(
        t=max(time.time(), ended or 0.0),  # behind all that the instances have recorded, whatever the clock here says
        name=str(answer["TrainingJobName"]),
        number=number,
        region=region,
        groups=_groups(answer.get("ResourceConfig")),
        training_seconds=training,
        billable_seconds=billable,
        started=_moment(answer.get("TrainingStartTime")),
        ended=ended,
    )


def _groups(resources: object) -> dict[str, tuple[str, int]]:
    if not isinstance(resources, Mapping):
        return {}
    groups = resources.get("InstanceGroups")
    if groups:
        return {
            str(each["InstanceGroupName"]): (str(each["InstanceType"]), int(each["InstanceCount"])) for each in groups
        }
    kind = resources.get("SelectedInstanceType") or resources.get("InstanceType")
    count = resources.get("SelectedInstanceCount") or resources.get("InstanceCount")
    return {HOMOGENEOUS: (str(kind), int(count))} if kind and count else {}


def _moment(when: object) -> float | None:
    return when.timestamp() if isinstance(when, datetime) else None


def bring_host_metrics(run: Run, service: BotoService) -> int:
    """Brings what is not told of the run's last attempt, which has ended. Returns how many minutes were brought.

    What CloudWatch refuses is told in the log of this process, and left out: the end of the run does not hang on it.

    Args:
        run: the run.
        service: where its job was.
    """
    state = state_of(run.events(), True)  # `run.state` would ask the engine, which is asked now
    last = state.billed[-1] if state.billed else None
    if last is None or last.started is None or last.ended is None:
        return 0
    own = {stream.host: seconds[-1].t for stream, seconds in run.host_seconds().items() if seconds}
    brought = 0
    for group, host in _hosts(state, last):
        begin = own.get(host, last.started)
        if last.ended - begin < (SILENT if host in own else 0.0):
            continue
        try:
            points = {name: service.host_points(last.name, host, name, begin, last.ended) for name in NAMES}
        except EngineRefused as error:
            _log.warning("what CloudWatch measured of %s cannot be read: %s", last.name, error)
            return brought
        with MetricWriter(run.paths.metrics(Stream(group, host, PLATFORM))) as writer:
            for minute in minutes(points):
                writer.write(minute)
                brought += 1
    return brought


def minutes(points: Mapping[str, list[HostPoint]]) -> Iterator[PlatformMinute]:
    """Yields the minutes of a host, in the order of time. Pure.

    Args:
        points: values by CloudWatch's name of the metric.
    """
    found: dict[float, dict[str, float]] = {}
    for name, values in points.items():
        for point in values:
            found.setdefault(point.t, {})[NAMES[name]] = point.average
    for t, measured in sorted(found.items()):
        yield PlatformMinute(t=t, seconds=float(PERIOD), source=SOURCE, **measured)


def _hosts(state: RunState, attempt: AttemptBilled) -> list[tuple[str, str]]:
    """Returns group and name of every host of an attempt."""
    known = {host.host: host.group for host in state.hosts if attempt.number in host.billed}
    alone = next(iter(attempt.groups)) if len(attempt.groups) == 1 else UNKNOWN_GROUP
    count = sum(instances for _, instances in attempt.groups.values())
    names = [f"algo-{number}" for number in range(1, count + 1)]
    return [(known.get(name, alone), name) for name in names]
