"""Submits a grid to AWS Batch, once: what was submitted before, by whichever machine, is found by the job's name.

The name has the tag of the bundle, so another grid, or other code, is another job. In this order: the bundle, of which
`grid.json` is stored last; the job definition, if it is another one than its newest revision; if lines need copies, the
job that makes them; the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cloud.aws_calls import Aws, call
from headrace.engines.sagemaker.service_calls import within
from headrace.errors import UsageError
from headrace.grid.batch.batch_requests import RUNS_VARIABLE, Request
from headrace.grid.batch.export_batch import BatchExport
from headrace.grid.batch.grid_bundle import GRID
from headrace.instance.s3 import S3Access
from headrace.instance.storage import Store, join

FAILED = "FAILED"
_OF_DEFINITION = ("type", "platformCapabilities", "containerProperties", "retryStrategy", "timeout", "propagateTags")


@dataclass(frozen=True)
class BatchSubmission:
    """What was done, or would be.

    Attributes:
        job: name of the job.
        job_id: of the job; empty when it is not submitted.
        status: of a job that was there before; empty for a new one.
        uploads: files of the bundle that were not stored yet.
        registers: the job definition was another one.
        submits: no such job was there.
        copies_id: of the job that makes copies, for which the new one waits; empty without copies.
    """

    job: str
    job_id: str
    status: str
    uploads: tuple[str, ...]
    registers: bool
    submits: bool
    copies_id: str = ""


def submit_array(
    export: BatchExport,
    aws: Aws,
    profile: str,
    tell: Callable[[str], None],
    *,
    again: bool = False,
    dry_run: bool = False,
) -> BatchSubmission:
    """Submits a grid.

    Args:
        export: the grid.
        aws: the account, in the region of the queue.
        profile: of the AWS configuration; empty for that of the environment.
        tell: takes a line for each thing that happens.
        again: also when an earlier submission has failed.
        dry_run: ask, and do nothing.

    Raises:
        UsageError: an earlier submission has failed; no such queue.
        CloudError, StorageError: AWS refused, or did not answer.
    """
    names, batch = export.names, aws.client("batch")
    before = _submitted(batch, names.queue, names.job)
    found = before[-1] if before else None
    if found is not None and found["status"] == FAILED and not again and not dry_run:
        hint = (
            "`aws batch describe-jobs` says why; --again submits it once more: lines whose training jobs failed or "
            "were stopped run again, all others are adopted"
        )
        raise UsageError(f"{names.job} was submitted before, and has failed: {found['jobId']}", hint=hint)
    submits = found is None or (found["status"] == FAILED and again)
    known = _newest(batch, names.definition)
    registers = submits and (known is None or not _same(export.definition, known))
    missing = store_bundle(export, profile, tell, dry_run=dry_run) if submits else ()
    job_id, copies_id = "" if found is None else str(found["jobId"]), ""
    if submits and not dry_run:
        if registers:
            known = call(batch, "register_job_definition", **export.definition)
            tell(f"{names.definition}: revision {known['revision']} registered")
        assert known is not None
        request = _with_runs({**export.submission, "jobDefinition": known["jobDefinitionArn"]}, len(before) + 1)
        if export.copying is not None:
            copies_id = _copying(export.copying, batch, known["jobDefinitionArn"], tell)
            request["dependsOn"] = [{"jobId": copies_id}]
        job_id = str(call(batch, "submit_job", **request)["jobId"])
    return BatchSubmission(
        job=names.job,
        job_id=job_id,
        status="" if submits or found is None else str(found["status"]),
        uploads=missing,
        registers=registers,
        submits=submits,
        copies_id=copies_id,
    )


def _copying(request: Request, batch: Any, definition: str, tell: Callable[[str], None]) -> str:
    """Returns the id of the job that makes the copies; it is submitted unless one is there that has not failed."""
    before = _submitted(batch, request["jobQueue"], request["jobName"])
    if before and before[-1]["status"] != FAILED:
        return str(before[-1]["jobId"])
    tell(f"{request['jobName']}: submitted; no line begins before the copies are whole")
    return str(call(batch, "submit_job", **{**request, "jobDefinition": definition})["jobId"])


def _with_runs(request: Request, runs: int) -> Request:
    """Returns the request of a submission, whose number among those of its name is how often a line may run."""
    if runs == 1:
        return request
    given = request["containerOverrides"]
    variable = {"name": RUNS_VARIABLE, "value": str(runs)}
    return {**request, "containerOverrides": {**given, "environment": [*given["environment"], variable]}}


def store_bundle(
    export: BatchExport, profile: str, tell: Callable[[str], None], *, dry_run: bool = False
) -> tuple[str, ...]:
    """Stores the bundle of a grid in S3, and returns which of its files were not there. Raises StorageError."""
    place = export.names.bundle
    with Store(access=S3Access(profile, export.names.region, "")) as store:
        missing = _missing(store, place, export.bundle)
        for name in () if dry_run else missing:
            store.write(export.bundle[name], join(place, name))
    if missing and not dry_run:
        tell(f"{place}: {len(missing)} files stored")
    return missing


def _submitted(batch: Any, queue: str, name: str) -> list[Mapping[str, Any]]:
    """Returns all jobs of a name in a queue, the newest last. Batch forgets jobs after some days."""
    found: list[Mapping[str, Any]] = []
    asked: Request = {"jobQueue": queue, "filters": [{"name": "JOB_NAME", "values": [name]}]}
    while True:
        page = call(batch, "list_jobs", **asked)
        listed = (each for each in page["jobSummaryList"] if each["jobName"] == name)  # the filter ignores case
        found += (each for each in listed if ":" not in each["jobId"])  # no child
        if not page.get("nextToken"):
            break
        asked["nextToken"] = page["nextToken"]
    return sorted(found, key=lambda each: each.get("createdAt", 0))


def _newest(batch: Any, name: str) -> Mapping[str, Any] | None:
    """Returns the newest active revision of a job definition."""
    found: list[Mapping[str, Any]] = []
    asked: Request = {"jobDefinitionName": name, "status": "ACTIVE"}
    while True:
        page = call(batch, "describe_job_definitions", **asked)
        found += page["jobDefinitions"]
        if not page.get("nextToken"):
            return max(found, key=lambda each: each["revision"], default=None)
        asked["nextToken"] = page["nextToken"]


def _same(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Tells whether a job definition that is there does what is wanted; what the service adds does not count."""
    return all(within(wanted[name], _as_sent(known.get(name))) for name in _OF_DEFINITION if name in wanted)


def _as_sent(part: object) -> object:
    """Returns a part of a definition with actions as requests have them: Batch gives them back in small letters."""
    if isinstance(part, Mapping) and "evaluateOnExit" in part:
        rules = [{**rule, "action": str(rule["action"]).upper()} for rule in part["evaluateOnExit"]]
        return {**part, "evaluateOnExit": rules}
    return part


def _missing(store: Store, bundle: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Returns what of a bundle must be stored, `grid.json` last: where that is, all is."""
    if store.has(join(bundle, GRID)):
        return ()
    return (*(name for name in files if name != GRID), GRID)
