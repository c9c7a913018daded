"""What `headrace.engines` calls: checks a job, submits it, brings its record, and says what the service knows."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone

import msgspec

from headrace.engines.capability import Capability
from headrace.engines.documents import Document
from headrace.engines.engine_logs import log_documents
from headrace.engines.new_run import new_run
from headrace.engines.remote_handle import RemoteHandle
from headrace.engines.remote_job import plan_document
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.recover_submission import resume_submission, take_up_run
from headrace.engines.sagemaker.refresh_training_job import has_ended, refresh_training_job
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, check_sagemaker_job, plan_sagemaker_job, region_of
from headrace.engines.sagemaker.sagemaker_ticket import read_ticket
from headrace.engines.sagemaker.service_calls import ServiceAccess
from headrace.engines.sagemaker.submit_again import stop_run
from headrace.engines.sagemaker.submit_training_job import submit_training_job
from headrace.errors import EngineRefused
from headrace.job import Job
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.runs import Run, RunPaths, runs_dir


def plan(job: Job) -> SageMakerJob:
    """Returns what would run where; whether it could start now is not checked.

    Raises:
        JobInvalid: what this engine or the service does not have.
        EngineRefused: no region is named.
    """
    return plan_sagemaker_job(job, RunPaths(runs_dir().resolve() / job.job_name))


def check(job: Job) -> SageMakerJob:
    """Checks everything that can be known before a job is submitted, and returns what `start` goes on with.

    Raises:
        JobInvalid, EngineRefused: it could not be submitted.
        UsageError: its code cannot be used.
    """
    planned = plan(job)
    check_sagemaker_job(planned)
    return planned


def render(job: Job) -> tuple[Document, ...]:
    """Returns the request, what is uploaded and must be allowed, and the launch plan. Raises as `plan` does."""
    planned = plan(job)
    shown = planned.submission
    request = Document("request.json", json.dumps(shown.request, indent=2) + "\n")
    parts = {"uploads": shown.uploads, "permissions": shown.permissions}
    needed = Document("needed.json", msgspec.json.format(msgspec.json.encode(parts)).decode() + "\n")
    return (request, needed, plan_document(planned))


def start(job: Job, detach: bool = False) -> RemoteHandle:
    """Submits a run. It lives without this process, detached or not.

    Raises:
        JobInvalid, EngineRefused: then nothing is left.
    """
    checked = check(job)
    with new_run(job, "sagemaker") as made:
        paths = RunPaths(made.root.resolve())
        submit_training_job(checked.in_run(paths), paths)
    return RemoteHandle(paths)


def resume(run: Run) -> None:
    """Submits a run again whose submission was killed before the service had it. Raises HeadraceError, OSError."""
    resume_submission(run)


def take_up(job: Job, tags: dict[str, str]) -> RemoteHandle | None:
    """Returns the run of a training job that is named after its job, and that the service has already; else None.

    Raises:
        NameInUse: the training job of that name has other tags, or its run has ended here.
        HeadraceError, OSError: the service cannot be asked.
    """
    if job.sagemaker.naming != "job":
        return None
    paths = take_up_run(plan(job), tags)
    return None if paths is None else RemoteHandle(paths)


def stop(run: Run, now: bool = False) -> bool:
    """Asks the service to stop a run. Returns whether it was still waiting or running.

    The service gives programs 120 s to save, with `now` too: it has nothing faster.

    Raises:
        EngineRefused: it cannot be asked.
    """
    ticket = read_ticket(run.paths)
    if not ticket.submitted and not ticket.refused and ticket.submitter_lives:
        raise EngineRefused(f"{run.id} is being submitted", "ask again in a moment")
    return not has_ended(run) and stop_run(run.paths)


def refresh(run: Run) -> None:
    """Brings what the service knows of a run into its record. Raises HeadraceError, OSError when it cannot be asked."""
    refresh_training_job(run)


def alive(run: Run) -> bool:
    """Returns whether a run goes on: `refresh` writes its end as soon as the service has ended it."""
    return not has_ended(run)


def logs(run: Run) -> tuple[Document, ...]:
    """Returns what supervisors and agents of a run have logged, what CloudWatch has of its containers, and what the
    service says of its job.

    Raises:
        HeadraceError, OSError: it cannot be asked now.
    """
    ticket = read_ticket(run.paths)
    service = BotoService(ticket.service)
    told = json.dumps(service.describe(ticket.name) or {}, indent=2, default=str) + "\n"
    lines: dict[str, list[str]] = {}
    for event in service.logs(ticket.name, {}):
        lines.setdefault(event.stream, []).append(f"{_when(event.milliseconds)} {event.text}\n")
    containers = [Document(f"{stream}.log", "".join(found)) for stream, found in sorted(lines.items())]
    return (*log_documents(run.paths), *containers, Document("training_job.json", told))


def _when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")


def capabilities() -> tuple[Capability, ...]:
    """Returns what works from this machine, with the region and the credentials of the environment."""
    try:
        region = region_of(SageMakerOptions(), os.environ)
        service = BotoService(ServiceAccess(region))
        next(service.names("headrace"), None)
    except EngineRefused as error:
        hint = error.hint or "docs/sagemaker-engine.md says what must be allowed"
        return (Capability("sagemaker", False, error.message, hint, needed=True),)
    what = f"the service answers in {region}, at {service.address}"
    return (Capability("sagemaker", True, what, needed=True),)
