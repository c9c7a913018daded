"""What `headrace.engines` calls: checks a job, submits it, brings its record, and says what the service knows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

import msgspec

from headrace.engines.documents import Capability, Document
from headrace.engines.handle import RemoteHandle
from headrace.engines.platform_engine import PlatformEngine
from headrace.engines.remote_job import check_remote_job, plan_document
from headrace.engines.sagemaker.boto_service import BotoService, ServiceAccess
from headrace.engines.sagemaker.refresh_training_job import bring_training_job
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, plan_sagemaker_job, region_of
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.submit_training_job import resume_submission, stop_run, submit_training_job, take_up_run
from headrace.job import Job
from headrace.job.job_document import dump
from headrace.job.model.fields import LocalOptions
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import NO_RANGE, Unused, sagemaker_rules, service_rules, unused_keys
from headrace.runs import Run, RunPaths, runs_dir


class SageMakerEngine(PlatformEngine[SageMakerJob, ServiceTicket]):
    """See `headrace.engines.platform_engine`."""

    name, Ticket, own_trees = "sagemaker", ServiceTicket, True
    whom = "the page sagemaker-runs of the docs says what must be allowed"

    def rules(self, job: Job) -> Iterator[Finding]:
        """See `PlatformEngine.rules`: what the service refuses, and what this engine needs."""
        yield from service_rules(job)
        yield from sagemaker_rules(job)

    def without_effect(self, job: Job) -> Iterable[Unused]:
        """See `PlatformEngine.without_effect`: the service acts on nearly all."""
        yield from unused_keys(job, NO_RANGE)
        for key in dump(job.local, LocalOptions):
            yield Unused(f"engines.local.{key}", "it is for the local engine")

    def plan(self, job: Job) -> SageMakerJob:
        """See `PlatformEngine.plan`. Also raises EngineRefused where no region is named."""
        return plan_sagemaker_job(job, RunPaths(runs_dir().resolve() / job.job_name))

    def check(self, job: Job) -> SageMakerJob:
        """See `PlatformEngine.check`."""
        planned = self.plan(job)
        storage, access = planned.options.check_storage, planned.access
        check_remote_job(planned, storage=storage, programs=False, access=access, engine=self.name)
        return planned

    def render(self, job: Job) -> tuple[Document, ...]:
        """Returns the request, what is uploaded and must be allowed, and the launch plan."""
        planned = self.plan(job)
        shown = planned.submission
        request = Document("request.json", json.dumps(shown.request, indent=2) + "\n")
        parts = {"uploads": shown.uploads, "permissions": shown.permissions}
        needed = Document("needed.json", msgspec.json.format(msgspec.json.encode(parts)).decode() + "\n")
        return (request, needed, plan_document(planned))

    def submit(self, planned: SageMakerJob, paths: RunPaths) -> bool:
        """See `PlatformEngine.submit`."""
        submit_training_job(planned, paths)
        return False

    def resume(self, run: Run) -> None:
        """Submits a run again whose submission was killed before the service had it."""
        resume_submission(run)

    def take_up(self, job: Job, tags: dict[str, str]) -> RemoteHandle | None:
        """Returns the run of a training job that is named after its job, and that the service has already; else None.

        Raises:
            NameInUse: the training job of that name has other tags, or its run has ended here.
            HeadraceError, OSError: the service cannot be asked.
        """
        if job.sagemaker.naming != "job":
            return None
        paths = take_up_run(self.plan(job), tags)
        return None if paths is None else RemoteHandle(paths)

    def being_submitted(self, ticket: ServiceTicket) -> bool:
        """See `PlatformEngine.being_submitted`: one that was refused waits for its next attempt."""
        return super().being_submitted(ticket) and not ticket.refused

    def cancel(self, run: Run, ticket: ServiceTicket, now: bool) -> bool:
        """See `PlatformEngine.cancel`. The service gives programs 120 s to save, with `now` too: it has nothing
        faster."""
        return stop_run(run.paths)

    def bring(self, run: Run, ticket: ServiceTicket) -> None:
        """See `PlatformEngine.bring`."""
        bring_training_job(run, ticket)

    def said(self, run: Run, ticket: ServiceTicket) -> Iterable[Document]:
        """Returns what CloudWatch has of a run's containers, and what the service says of its job."""
        service = BotoService(ticket.service)
        lines: dict[str, list[str]] = {}
        for event in service.logs(ticket.name):
            lines.setdefault(event.stream, []).append(f"{_when(event.milliseconds)} {event.text}\n")
        yield from (Document(f"{stream}.log", "".join(texts)) for stream, texts in sorted(lines.items()))
        told = json.dumps(service.describe(ticket.name) or {}, indent=2, default=str) + "\n"
        yield Document("training_job.json", told)

    def works(self) -> Iterable[Capability]:
        """See `PlatformEngine.works`, with the region and the credentials of the environment."""
        region = region_of(SageMakerOptions(), os.environ)
        service = BotoService(ServiceAccess(region))
        next(service.names("headrace"), None)
        yield Capability("sagemaker", True, f"the service answers in {region}, at {service.address}", needed=True)


ENGINE = SageMakerEngine()


def _when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="milliseconds")
