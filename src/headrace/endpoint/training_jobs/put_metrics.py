"""SageMaker Metrics: values that the programs of a job put themselves (BatchPutMetrics), and what became of them.

They belong to the trial component that the service makes of a training job, whose name is the job's, in lower case, and
``-aws-training-job``. Its caller signs for ``sagemaker`` and names the operation by method and path.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.services.service import Operation
from headrace.endpoint.training_jobs.job_store import JobStore, PutMetric, StoredJob
from headrace.endpoint.wire.requests import Members

COMPONENT = "-aws-training-job"
MOST_VALUES = 250_000  # of a job: a loop that has run wild does not fill the disk
STEPS = 1 << 63  # the store keeps smaller ones
_SECONDS = {"OneMinute": 60.0, "FiveMinute": 300.0, "OneHour": 3600.0}
_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "Min": min,
    "Max": max,
    "Avg": statistics.fmean,
    "Count": lambda values: float(len(values)),
    "StdDev": statistics.pstdev,
    "Last": lambda values: values[-1],
}


class PutMetrics:
    """The operations.

    Args:
        store: the jobs.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def operations(self) -> dict[str, Operation]:
        """Returns them, by name."""
        return {"BatchPutMetrics": self.put, "BatchGetMetrics": self.get}

    def put(self, members: Members, caller: Caller) -> Mapping[str, object]:
        """BatchPutMetrics. What cannot be kept is told with its place in the list, and the others are kept."""
        given = cast("list[dict[str, object]]", members["MetricData"])
        job = self._job_of(str(members["TrialComponentName"]))
        if job is None or not caller.owns(job.name):
            return _errors(range(len(given)), "VALIDATION_ERROR")
        room = MOST_VALUES - self._store.metric_count(job)
        if room < len(given):
            return _errors(range(len(given)), "METRIC_LIMIT_EXCEEDED")
        values = [_metric(each) for each in given]
        self._store.add_metrics(job, [each for each in values if each is not None])
        wrong = [place for place, each in enumerate(values) if each is None]
        return _errors(wrong, "VALIDATION_ERROR") if wrong else {}

    def get(self, members: Members, caller: Caller) -> Mapping[str, object]:
        """BatchGetMetrics: of each query the values by time or by step."""
        queries = cast("list[dict[str, object]]", members["MetricQueries"])
        return {"MetricQueryResults": [self._answer(query, caller) for query in queries]}

    def _answer(self, query: Mapping[str, object], caller: Caller) -> dict[str, object]:
        arn, axis, period = (str(query[name]) for name in ("ResourceArn", "XAxisType", "Period"))
        kind, _, name = arn.rpartition(":")[2].partition("/")
        job = self._store.find(name) if kind == "training-job" else self._job_of(name)
        by_step = axis == "IterationNumber"
        if job is not None and not caller.owns(job.name):
            job = None
        if job is None or by_step != (period == "IterationNumber"):
            words = "no such training job" if job is None else "Period and XAxisType do not fit"
            return {"Status": "ValidationError", "Message": words, "XAxisValues": [], "MetricValues": []}
        found: dict[int, list[float]] = {}
        for each in self._store.metrics(job, str(query["MetricName"])):
            if by_step and each.step is not None:
                found.setdefault(each.step, []).append(each.value)
            elif not by_step:
                seconds = _SECONDS[period]
                found.setdefault(int(math.floor(each.t / seconds) * seconds), []).append(each.value)
        begin, end = (cast("int | None", query.get(name)) for name in ("Start", "End"))
        places = [x for x in sorted(found) if (begin is None or x >= begin) and (end is None or x <= end)]
        values = [_STATISTICS[str(query["MetricStat"])](found[x]) for x in places]
        return {"Status": "Complete", "XAxisValues": places, "MetricValues": values}

    def _job_of(self, component: str) -> StoredJob | None:
        if not component.endswith(COMPONENT):
            return None
        wanted = component.removesuffix(COMPONENT)
        return next((job for job in self._store.all() if job.name.lower() == wanted), None)


def _metric(given: Mapping[str, object]) -> PutMetric | None:
    """Returns a value that was put; None if it is none that can be kept."""
    value, moment, step = given["Value"], given["Timestamp"], given.get("Step")
    if not isinstance(value, (int, float)) or not isinstance(moment, (int, float)):
        return None
    if not math.isfinite(value) or not 0 <= moment < 1e11:
        return None
    if step is not None and not (isinstance(step, int) and 0 <= step < STEPS):
        return None
    return PutMetric(str(given["MetricName"]), float(moment), step, float(value))


def _errors(places: Sequence[int], code: str) -> dict[str, object]:
    return {"Errors": [{"Code": code, "MetricIndex": place} for place in places]}
