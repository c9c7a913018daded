"""CloudWatch metrics of training jobs, out of the runs' own records: what the metric definitions found, and the hosts'.

TrainingJobName=<job>   the metrics that the job defines
Host=<job>/algo-N       CPUUtilization, MemoryUtilization, GPUUtilization, GPUMemoryUtilization, DiskUtilization: in
                        percent; of CPUs and GPUs the sum of all of a host, as the service has it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Protocol

import numpy as np

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.services.service import Service
from headrace.endpoint.wire.models import ServiceError
from headrace.endpoint.wire.requests import Members
from headrace.insight.figures.columns import (
    DISK,
    GPU_MEMORY,
    GPU_USE,
    MEMORY,
    SERVER_CPU,
    Columns,
    Table,
    at_once,
    read_columns,
)
from headrace.runs import Run, Selector, ValueFollower
from headrace.runs.run_paths import HOST

NAMESPACE = "/aws/sagemaker/TrainingJobs"
_WRONG = "InvalidParameterValue"
_MOST_POINTS = 1440
_COLUMNS = ("t", "count", "low", "high", "total")


class RunSource(Protocol):
    """Whatever has the runs of jobs."""

    def run_of(self, job_name: str) -> Run | None:
        """Returns the run of a job; None for a job that is not known, or has not begun."""


def monitoring(source: RunSource) -> Service:
    """Returns the service."""

    def get_metric_statistics(members: Members, caller: Caller) -> dict[str, object]:
        name, unit = str(members["MetricName"]), members.get("Unit")
        begin, end, period = (float(str(members[key])) for key in ("StartTime", "EndTime", "Period"))
        kinds = members.get("Statistics")
        if not isinstance(kinds, list) or members.get("ExtendedStatistics"):
            raise ServiceError(_WRONG, "Statistics must be given, and no ExtendedStatistics")
        if not -1e9 < begin < end < 1e11:
            raise ServiceError(_WRONG, "The parameter StartTime must be less than the parameter EndTime.")
        if period % 60 and period not in (1, 5, 10, 30):
            raise ServiceError(_WRONG, "The parameter Period must be 1, 5, 10, 30 or a multiple of 60.")
        if (end - begin) / period > _MOST_POINTS * 1000:
            raise ServiceError("InvalidParameterCombination", "You have requested too many datapoints.")
        own, values = _find(source, members, name, caller)
        wanted = "None" if own else "Percent"
        if unit not in (None, wanted):
            return {"Label": name, "Datapoints": []}
        points = statistics(values, begin, end, period)
        if len(points) > _MOST_POINTS:
            raise ServiceError("InvalidParameterCombination", f"You have requested up to {len(points)} datapoints.")
        shown = [
            {"Timestamp": moment, **{kind: point[kind] for kind in kinds}, "Unit": wanted} for moment, point in points
        ]
        return {"Label": name, "Datapoints": shown}

    return Service("monitoring", ("cloudwatch",), {"GetMetricStatistics": get_metric_statistics}, _WRONG)


def statistics(
    values: Sequence[Table], begin: float, end: float, period: float
) -> list[tuple[datetime, dict[str, float]]]:
    """Returns count, average, sum, least and greatest value for each period that has some, in the order of time.

    Args:
        values: rows of numbers, as those of a job's own metric: t, count, low, high and total.
        begin, end: from when, and before when, seconds since the epoch.
        period: seconds; periods begin at multiples of it.
    """
    if not values:
        return []
    rows = Table({name: np.concatenate([table[name] for table in values]) for name in _COLUMNS})
    finite = np.isfinite([rows[name] for name in _COLUMNS]).all(axis=0)
    found = rows.where((begin <= rows["t"]) & (rows["t"] < end) & (rows["count"] > 0) & finite)
    found = Table({**found.columns, "period": np.floor(found["t"] / period)})
    points = []
    for number, part in found.parted("period").items():
        count, total = math.fsum(part["count"]), math.fsum(part["total"])
        point = {"SampleCount": count, "Average": total / count, "Sum": total}
        point |= {"Minimum": part["low"].min().item(), "Maximum": part["high"].max().item()}
        points.append((datetime.fromtimestamp(number * period, timezone.utc), point))
    return points


def _find(source: RunSource, members: Members, name: str, caller: Caller) -> tuple[bool, list[Table]]:
    """Returns the values that a request names, and whether they are of a metric that the job defines."""
    dimensions = members.get("Dimensions")
    given = {each["Name"]: each["Value"] for each in dimensions} if isinstance(dimensions, list) else {}
    if members.get("Namespace") != NAMESPACE or len(given) != 1:
        return True, []
    job, _, host = str(given.get("Host", "")).partition("/")
    job = str(given.get("TrainingJobName", job))
    if not caller.owns(job):
        raise ServiceError("AccessDenied", "the key of a job's programs reads the metrics of their own job")
    run = source.run_of(job)
    if run is None:
        return True, []
    if "Host" in given:
        return False, _of_host(run, host, name)
    values = Columns(
        (stream, each) for stream, each in ValueFollower(run.paths, run.on_damage).poll() if each.name == name
    )
    return True, list(values.tables("value").values())


_SHARES = {
    "CPUUtilization": ("host", SERVER_CPU),
    "MemoryUtilization": ("host", MEMORY),
    "GPUUtilization": ("gpu", GPU_USE),
    "GPUMemoryUtilization": ("gpu", GPU_MEMORY),
    "DiskUtilization": ("host", DISK),
}
"""Of which rows a metric of hosts is, and what: of CPUs and GPUs the sum of all of a host."""


def _of_host(run: Run, host: str, name: str) -> list[Table]:
    kind, quantity = _SHARES.get(name, ("", DISK))
    tables = read_columns(run, Selector(host=host, name=HOST)).tables(kind).values()
    if not tables:
        return []
    t, used, one = at_once(map(quantity.each, tables), np.add)
    return [Table({"t": t, "count": np.ones_like(one), "low": used, "high": used, "total": used})]
