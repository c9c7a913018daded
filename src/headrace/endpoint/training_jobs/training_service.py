"""SageMaker's operations on training jobs and their tags, with the service's rules, codes and words; and its metrics.

Values that the programs of a job put themselves (BatchPutMetrics) belong to the trial component that the service makes
of a training job, whose name is the job's, in lower case, and ``-aws-training-job``. Their caller signs for
``sagemaker`` and names the operation by method and path.
"""

from __future__ import annotations

import math
import re
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.endpoint.auth.gatekeeper import Caller, Holder
from headrace.endpoint.services.service import ACCOUNT, ROLE_NAME, Operation, Service, read_token, token_of
from headrace.endpoint.training_jobs import description
from headrace.endpoint.training_jobs.job_of_request import JobMaker
from headrace.endpoint.training_jobs.job_runs import JobQueue, JobRuns
from headrace.endpoint.training_jobs.job_store import JobStore, NameTaken, Phase, PutMetric, StoredJob
from headrace.endpoint.wire.models import ServiceError
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


@dataclass(eq=False)
class PutMetrics:
    """The operations.

    Attributes:
        store: the jobs.
    """

    store: JobStore

    def operations(self) -> dict[str, Operation]:
        """Returns them, by name."""
        return {"BatchPutMetrics": self.put, "BatchGetMetrics": self.get}

    def put(self, members: Members, caller: Caller) -> Mapping[str, object]:
        """BatchPutMetrics. What cannot be kept is told with its place in the list, and the others are kept."""
        given = cast("list[dict[str, object]]", members["MetricData"])
        job = self._job_of(str(members["TrialComponentName"]))
        if job is None or not caller.owns(job.name):
            return _errors(range(len(given)), "VALIDATION_ERROR")
        room = MOST_VALUES - self.store.metric_count(job)
        if room < len(given):
            return _errors(range(len(given)), "METRIC_LIMIT_EXCEEDED")
        values = [_metric(each) for each in given]
        self.store.add_metrics(job, [each for each in values if each is not None])
        wrong = [place for place, each in enumerate(values) if each is None]
        return _errors(wrong, "VALIDATION_ERROR") if wrong else {}

    def get(self, members: Members, caller: Caller) -> Mapping[str, object]:
        """BatchGetMetrics: of each query the values by time or by step."""
        queries = cast("list[dict[str, object]]", members["MetricQueries"])
        return {"MetricQueryResults": [self._answer(query, caller) for query in queries]}

    def _answer(self, query: Mapping[str, object], caller: Caller) -> dict[str, object]:
        arn, axis, period = (str(query[name]) for name in ("ResourceArn", "XAxisType", "Period"))
        kind, _, name = arn.rpartition(":")[2].partition("/")
        job = self.store.find(name) if kind == "training-job" else self._job_of(name)
        by_step = axis == "IterationNumber"
        if job is not None and not caller.owns(job.name):
            job = None
        if job is None or by_step != (period == "IterationNumber"):
            words = "no such training job" if job is None else "Period and XAxisType do not fit"
            return {"Status": "ValidationError", "Message": words, "XAxisValues": [], "MetricValues": []}
        found: dict[int, list[float]] = {}
        for each in self.store.metrics(job, str(query["MetricName"])):
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
        return next((job for job in self.store.all() if job.name.lower() == wanted), None)


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


INVALID = "ValidationException"
_NOT_FOUND = "Requested resource not found."
_OF_PROGRAMS = frozenset({"DescribeTrainingJob", "ListTrainingJobs", "ListTags", "BatchPutMetrics", "BatchGetMetrics"})
_PAGE = 10
_SIGNED_ALIKE = 1.0
"""Seconds in which a client signs the same request in the same way: X-Amz-Date has no parts of a second."""
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:\d{12}:([a-z-]+)/(.+)")
_SORTED = {"Name": "TrainingJobName", "CreationTime": "CreationTime", "Status": "TrainingJobStatus"}
_TIMES = ("CreationTime", "LastModifiedTime")


@dataclass(eq=False)
class TrainingJobs:
    """The operations.

    Attributes:
        store: the jobs.
        runs: their runs.
        queue: starts them.
        maker: checks requests.
        region: of the endpoint.
        most_queued: jobs that may wait.
    """

    store: JobStore
    runs: JobRuns
    queue: JobQueue
    maker: JobMaker
    region: str
    most_queued: int

    def service(self) -> Service:
        """Returns the service."""
        operations: dict[str, Operation] = {
            "CreateTrainingJob": self.create,
            "DescribeTrainingJob": self.describe,
            "ListTrainingJobs": self.list,
            "StopTrainingJob": self.stop,
            "DeleteTrainingJob": self.delete,
            "ListTags": self.list_tags,
        }
        operations |= PutMetrics(self.store).operations()
        allowed = {name: self._allowed(name, operation) for name, operation in operations.items()}
        # The job room has the shape of CreateTrainingJob, with the rules beyond it.
        return Service("sagemaker", ("sagemaker", "sagemaker-metrics"), allowed)

    def _allowed(self, name: str, operation: Operation) -> Operation:
        """An operation with what is looked at before it: by whom it is called."""

        def checked(members: Members, caller: Caller) -> Mapping[str, object]:
            if caller.holder is not Holder.USER and name not in _OF_PROGRAMS:
                who = f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE_NAME}/{caller.holder.value}"
                words = f"User: {who} is not authorized to perform: sagemaker:{name} (the key of a job's programs)"
                raise ServiceError("AccessDeniedException", words)
            job = _named(members)
            if job and not caller.owns(job):
                words = f"the key of a job's programs may ask {name} of their own job, not of {job[:63]}"
                raise ServiceError("AccessDeniedException", words)
            return operation(members, caller)

        return checked

    def create(self, members: Members, caller: Caller) -> dict[str, object]:
        """CreateTrainingJob. The same call sent again by its client is answered as the first time."""
        checked = self.maker.check(members)
        request = {name: value for name, value in members.items() if name not in ("TrainingJobName", "Tags")}
        given = cast("list[dict[str, str]]", members.get("Tags", []))
        now = time.time()
        job = StoredJob(
            name=str(members["TrainingJobName"]),
            uid=secrets.token_hex(16),
            created=now,
            modified=now,
            request=request,
            tags={tag["Key"]: tag["Value"] for tag in given},
            phase=Phase.QUEUED,
            attempt=caller.attempt,
            note=self.maker.note(members, checked),
        )
        answer: dict[str, object] = {"TrainingJobArn": description.job_arn(self.region, job.name)}
        if not self._is_new(job):
            return answer
        if self.store.signature_used(caller.signature):
            raise ServiceError(
                "InvalidSignatureException", "This request has been used; it created a job that is gone."
            )
        self.maker.check_places(members, self.region)
        waiting = len(self.store.in_phase(Phase.QUEUED))
        if waiting >= self.most_queued:
            limit = f"The account-level service limit 'jobs that wait' is {self.most_queued} Jobs, with current"
            words = f"{limit} utilization of {waiting} Jobs and a request delta of 1 Jobs."
            raise ServiceError("ResourceLimitExceeded", words)
        try:
            self.store.add(job, caller.signature)
        except NameTaken:  # by another request, just now
            if self._is_new(job):
                raise
            return answer
        self.queue.notice()
        return answer

    def _is_new(self, job: StoredJob) -> bool:
        """Returns whether a job is yet to be made: False for a call that is sent again.

        Raises:
            ServiceError: another job has its name.
        """
        there = self.store.find(job.name)
        if there is None:
            return True
        if job.attempt and (there.attempt, there.request, there.tags) == (job.attempt, job.request, job.tags):
            return False
        text = "Training job names must be unique within an AWS account and region, and a training job with this name"
        raise ServiceError("ResourceInUse", f"{text} already exists ({description.job_arn(self.region, job.name)})")

    def describe(self, members: Members, _: Caller) -> Mapping[str, object]:
        """DescribeTrainingJob."""
        found = self.runs.describe(self._find(members))
        return {name: value for name, value in found.items() if name != "SessionChainingConfig"}

    def list(self, members: Members, caller: Caller) -> dict[str, object]:
        """ListTrainingJobs, the newest first unless it says otherwise: those of the caller."""
        keeps = _filter(members)
        owned = (job for job in self.store.all() if caller.owns(job.name))
        lines = (description.summary(self.runs.describe(job)) for job in owned)
        found = [line for line in lines if keeps(line)]
        key = _SORTED[str(members.get("SortBy", "CreationTime"))]
        order = str(members.get("SortOrder", "Descending"))
        found.sort(key=lambda line: _sortable(line[key]), reverse=order == "Descending")
        first = read_token(members.get("NextToken"), int, ServiceError(INVALID, "Invalid NextToken."))
        last = first + int(str(members.get("MaxResults", _PAGE)))
        more = {"NextToken": token_of(last)} if last < len(found) else {}
        return {"TrainingJobSummaries": found[first:last], **more}

    def stop(self, members: Members, _: Caller) -> dict[str, object]:
        """StopTrainingJob. One that is being stopped already is no error."""
        job = self._find(members)
        self._require(job, INVALID, ended=False)
        self.runs.stop(job)
        self.queue.notice()
        return {}

    def delete(self, members: Members, _: Caller) -> dict[str, object]:
        """DeleteTrainingJob. The name is free then; the record of the run stays where all runs are.

        The request that made the job may not be played again, and the same call made anew within the second has its
        signature. So the job is there until that second is over: who creates it after this answer signs another one.
        """
        job = self._find(members)
        self._require(job, "ResourceInUse", ended=True)
        time.sleep(max(0.0, min(_SIGNED_ALIKE, job.created + _SIGNED_ALIKE - time.time())))
        self.runs.forget(job)
        return {}

    def list_tags(self, members: Members, _: Caller) -> dict[str, object]:
        """ListTags: all of them at once."""
        return {"Tags": [{"Key": key, "Value": value} for key, value in self._of_arn(members).tags.items()]}

    def _require(self, job: StoredJob, code: str, *, ended: bool) -> None:
        """Refuses what is asked of a job that has ended, or has not."""
        status = self.runs.describe(job)["TrainingJobStatus"]
        if (status in description.ENDED) is not ended:
            raise ServiceError(code, f"The request was rejected because the training job is in status {status}.")

    def _find(self, members: Members) -> StoredJob:
        job = self.store.find(str(members["TrainingJobName"]))
        if job is None:
            raise ServiceError(INVALID, _NOT_FOUND)
        return job

    def _of_arn(self, members: Members) -> StoredJob:
        found = _ARN.fullmatch(str(members["ResourceArn"]))
        if found is not None and found[1] != "training-job":
            raise ServiceError(INVALID, f"headrace serve keeps tags of training jobs, not of a {found[1]}")
        job = self.store.find(found[2]) if found else None
        if job is None:
            raise ServiceError(INVALID, _NOT_FOUND)
        return job


def _named(members: Members) -> str:
    """Returns the name of the job that a request is about; empty when it is about none, or looked for elsewhere."""
    arn = _ARN.fullmatch(str(members.get("ResourceArn", "")))
    return str(members.get("TrainingJobName", "")) or (arn[2] if arn is not None else "")


def _filter(members: Members) -> Callable[[Mapping[str, object]], bool]:
    """Returns what decides whether a line is in the list."""
    part, status = str(members.get("NameContains", "")), members.get("StatusEquals")

    def keeps(entry: Mapping[str, object]) -> bool:
        for name in _TIMES:
            t, after, before = _sortable(entry[name]), members.get(f"{name}After"), members.get(f"{name}Before")
            assert isinstance(t, float)
            if (after is not None and t < float(str(after))) or (before is not None and t > float(str(before))):
                return False
        if members.get("WarmPoolStatusEquals") is not None:
            return False  # there are no warm pools
        plan = members.get("TrainingPlanArnEquals")
        if plan is not None and entry.get("TrainingPlanArn") != plan:
            return False
        return part in str(entry["TrainingJobName"]) and status in (None, entry["TrainingJobStatus"])

    return keeps


def _sortable(value: object) -> float | str:
    return float(value) if isinstance(value, (int, float)) else str(value)
