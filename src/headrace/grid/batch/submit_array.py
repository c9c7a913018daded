"""A grid for AWS Batch as files, and submitted once: what was submitted before, by whichever machine, is found by the
job's name.

The name has the tag of the bundle, so another grid, or other code, is another job, and the same grid gives the same
bytes. In this order: the bundle, of which `grid.json` is stored last; the job definition, if it is another one than its
newest revision; if lines need copies, the job that makes them; the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cloud.aws_calls import Aws, call, pages
from headrace.cloud.image_files import PLATFORM, content_tag
from headrace.cloud.stacks import StackTemplate
from headrace.engines.sagemaker.boto_service import within
from headrace.errors import UsageError
from headrace.grid.batch.batch_requests import (
    EXITS,
    RUNS_VARIABLE,
    BatchNames,
    Request,
    batch_names,
    image_definition,
    job_definition,
    rendered,
    roles_stack,
    submit_copies,
    submit_job,
)
from headrace.grid.batch.grid_bundle import GRID, bundle_tag, freeze_grid, read_frozen_grid
from headrace.grid.grid_file import BatchOptions
from headrace.grid.load_grid import Grid
from headrace.grid.plan_grid import GridPlan
from headrace.instance.s3 import S3Access
from headrace.instance.storage import Store, join

_ELSEWHERE = ("limits", "retry", "budget", "deadline", "early_stop")
"""Parts of a grid's file that a controller heeds, which there is none of here."""


@dataclass(frozen=True)
class BatchExport:
    """A grid for AWS Batch.

    Attributes:
        names: of everything.
        lines: number of lines.
        bundle: files that the children read, by name.
        image: definition of their image, by name of the file; empty when the user names an image.
        roles: stack of their roles; None when the user names both.
        definition: the RegisterJobDefinition request.
        submission: the SubmitJob request.
        copying: the SubmitJob request of the job that makes copies, before which no child begins; None without copies.
        unheeded: parts of the grid's file that count for `headrace grid run` only.
    """

    names: BatchNames
    lines: int
    bundle: Mapping[str, bytes]
    image: Mapping[str, bytes]
    roles: StackTemplate | None
    definition: Request
    submission: Request
    copying: Request | None
    unheeded: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What of the grid's file has no effect on AWS Batch, in words; empty when all has."""
        if not self.unheeded:
            return ""
        return (
            f"{', '.join(self.unheeded)} of the grid's file: no effect on AWS Batch, where each line runs by itself. A "
            "job's own `budget`, `retry` and `engines.sagemaker.retry` count; the compute environment limits how many "
            "children run at once"
        )

    @property
    def files(self) -> dict[str, bytes]:
        """All of it, by name."""
        found = {f"bundle/{name}": content for name, content in self.bundle.items()}
        found |= {f"image/{name}": content for name, content in self.image.items()}
        found |= {"roles.yaml": self.roles.text.encode()} if self.roles is not None else {}
        requests = {
            "job-definition.json": self.definition, "submit-copies.json": self.copying,
            "submit-job.json": self.submission,
        }  # fmt: skip
        for name, request in requests.items():
            if request is not None:
                found[name] = (json.dumps(request, indent=2) + "\n").encode()
        return {**found, "README.md": rendered("README.md", export=self, platform=PLATFORM, exits=EXITS).encode()}


def export_batch(
    grid: Grid, options: BatchOptions, plan: GridPlan, wheel: tuple[str, bytes], region: str
) -> BatchExport:
    """Freezes a grid, and makes all that AWS Batch needs to run it.

    Args:
        grid: as it was read.
        options: what the user says of AWS Batch.
        plan: where its lines run.
        wheel: name and content of headrace's wheel, for the image.
        region: of the queue.

    Raises:
        JobInvalid, UsageError: it cannot run there.
        OSError, StorageError: code that cannot be read.
    """
    frozen = freeze_grid(grid, plan)
    image = {} if options.image else image_definition(options.base, wheel)
    tag = bundle_tag(frozen.files)
    names = batch_names(grid.file.name, tag, options, region, frozen.planned, content_tag(image))
    array = read_frozen_grid(frozen.files[GRID], GRID).array
    return BatchExport(
        names=names,
        lines=len(plan.lines),
        bundle=frozen.files,
        image=image,
        roles=roles_stack(names, options, frozen.planned, frozen.copies),
        definition=job_definition(names, options),
        submission=submit_job(names, options, array, len(plan.lines)),
        copying=submit_copies(names, options) if frozen.copies else None,
        unheeded=tuple(part for part in _ELSEWHERE if part in grid.file.model_fields_set),
    )


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
    asked = {"jobQueue": queue, "filters": [{"name": "JOB_NAME", "values": [name]}]}
    listed = (job for page in pages(batch, "list_jobs", **asked) for job in page["jobSummaryList"])
    # The filter ignores case; a child has a colon in its id.
    found = [job for job in listed if job["jobName"] == name and ":" not in job["jobId"]]
    return sorted(found, key=lambda job: job.get("createdAt", 0))


def _newest(batch: Any, name: str) -> Mapping[str, Any] | None:
    """Returns the newest active revision of a job definition."""
    answers = pages(batch, "describe_job_definitions", jobDefinitionName=name, status="ACTIVE")
    found = (definition for page in answers for definition in page["jobDefinitions"])
    return max(found, key=lambda definition: definition["revision"], default=None)


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
