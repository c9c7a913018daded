"""Gives a run to SageMaker: stages its channel, creates its training job, leaves nothing of a failed try.

One attempt is submitted, once. When the service refuses it for a reason that `engines.sagemaker.retry` names, the run
waits, and `submit_again` submits the next one. What a later process needs for that is in the run's directory: the job
as the user wrote it, beside the ticket.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time

import msgspec

from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, planned_in
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.service_calls import (
    MISSING_SECONDS,
    NAME_TAKEN,
    Answer,
    NameTaken,
    ServiceRefused,
    TrainingService,
)
from headrace.engines.sagemaker.stage_channel import (
    prepare_sagemaker_run,
    remove_channel,
    shared_content,
    stage_channel,
)
from headrace.engines.sagemaker.stored_record import forget_copy
from headrace.engines.ticket import by_this_process, read_ticket, write_ticket
from headrace.errors import HeadraceError
from headrace.instance.storage import Store
from headrace.job import Job
from headrace.private_folders import write_atomically
from headrace.runs import Run, RunPaths, give_to_engine
from headrace.runs.record_pieces import known_here

_log = logging.getLogger(__name__)

ASKED = "asked.json"
"""The job as the user wrote it, below the run's engine directory."""
LONGEST_DELAY = 600.0  # seconds
SERVICES = ("sagemaker", "s3", "logs", "cloudwatch")


def ticket_of(planned: SageMakerJob) -> ServiceTicket:
    """Returns the ticket of a job that this process is about to submit."""
    options = planned.options
    endpoints = {name: url for name in SERVICES if (url := options.endpoint_of(name))}
    ticket = ServiceTicket(
        name=planned.name,
        region=planned.region,
        profile=options.profile or "",
        endpoints=endpoints,
        channel=planned.channel_uri,
        record=planned.record_place,
        model=planned.model_uri,
        attempt=planned.attempt,
    )
    return by_this_process(ticket)


def submit_training_job(planned: SageMakerJob, paths: RunPaths) -> None:
    """Submits the first attempt of a run. What is killed meanwhile is found again by its ticket.

    One that is refused and is to be submitted again leaves a run that waits.

    Args:
        planned: the job, in its run.
        paths: the run's directory.

    Raises:
        UsageError, StorageError: the run cannot be prepared or staged.
        EngineRefused: the service does not take it, and it is not submitted again.
        OSError: the run's directory cannot be written.
    """
    if planned.options.naming == "job" and latest_attempt(planned, first=2) is not None:
        raise NameTaken(NAME_TAKEN, f"another attempt of {planned.name} is there", "choose another job_name")
    write_asked(paths, planned.asked)
    write_ticket(paths, ticket_of(planned))
    give_to_engine(paths)
    try:
        submit_attempt(planned, paths)
    except ServiceRefused as error:
        if pause_before_next(planned.asked, planned.attempt, error.code) is None:
            raise
        _log.warning("%s; it is submitted again", error.message)
        note_refusal(paths, error)


def pause_before_next(asked: Job, attempt: int, reason: str) -> float | None:
    """Returns how many seconds behind the failure of an attempt the next one is submitted; None when none follows.

    Pure: any process that looks at a run decides the same.

    Args:
        asked: the job as the user wrote it.
        attempt: number of the submission that failed, from 1.
        reason: the service's word for it, e.g. ``CapacityError``.
    """
    retry = asked.sagemaker.retry
    if retry is None or attempt > retry.attempts or reason not in retry.on:
        return None
    return float(min(LONGEST_DELAY, retry.delay * 2 ** (attempt - 1)))


def latest_attempt(planned: SageMakerJob, first: int = 1) -> tuple[SageMakerJob, Answer] | None:
    """Returns the latest attempt of a job that the service has, and what it says of it; None when it has none.

    Args:
        planned: the job, whose training jobs are named after it.
        first: number of the first attempt that is looked for.

    Raises:
        HeadraceError: the service cannot be asked.
    """
    retry = planned.asked.sagemaker.retry
    for attempt in range(1 if retry is None else retry.attempts + 1, first - 1, -1):
        each = planned.at(attempt)
        found = BotoService(ticket_of(each).service).describe(each.name)
        if found is not None:
            return each, found
    return None


def note_refusal(paths: RunPaths, error: ServiceRefused) -> None:
    """Writes into the ticket that the service has refused the latest attempt. Raises OSError."""
    ticket = read_ticket(paths, ServiceTicket)
    write_ticket(
        paths,
        msgspec.structs.replace(ticket, refused=error.code, refusal=error.message, refused_at=time.time()),
    )


def planned_again(paths: RunPaths, ticket: ServiceTicket, attempt: int) -> SageMakerJob:
    """Returns an attempt of a run that was submitted before, perhaps by another process.

    Args:
        paths: the run's directory.
        ticket: its ticket.
        attempt: which attempt.

    Raises:
        OSError: the run's directory cannot be read.
    """
    return planned_in(asked_of(paths), paths, ticket.region).at(attempt).after(ticket.spent)


def asked_of(paths: RunPaths) -> Job:
    """Returns the job of a run as the user wrote it. Raises OSError."""
    data = json.loads((paths.engine / ASKED).read_text(encoding="utf-8"))
    return Job(base_path=Run(paths).header.base_path or None, **data)


def write_asked(paths: RunPaths, job: Job) -> None:
    """Writes the job as the user wrote it: what he left out is not in it. Raises OSError."""
    paths.engine.mkdir(exist_ok=True)
    data = job.model_dump(mode="json", exclude_unset=True)
    write_atomically(paths.engine / ASKED, json.dumps(data).encode())


def submit_attempt(planned: SageMakerJob, paths: RunPaths, kept: bool = False, sent_before: bool = False) -> None:
    """Submits one attempt of a run, once.

    Args:
        planned: the attempt, in its run.
        paths: the run's directory.
        kept: a later submission of this attempt finds the job by its name; else a job whose answer was lost is stopped.
        sent_before: a process that was killed may have sent it.

    Raises:
        ServiceRefused: the service does not take it; nothing of it is left.
        UsageError, StorageError, OSError, EngineRefused: it cannot be submitted.
    """
    state = Run(paths).state()
    number = max(planned.attempt, state.attempt + bool(state.instances_started))
    before = known_here(paths).sent if planned.attempt > 1 else {}
    spent = planned.plan.budget.before if planned.plan.budget is not None else 0.0
    ticket = msgspec.structs.replace(ticket_of(planned), before=before, spent=spent)
    write_ticket(paths, ticket)
    forget_copy(paths)  # of the attempt before this one
    own = prepare_sagemaker_run(planned, paths, number)
    request = planned.request()
    # A name that is the job's own may have been sent from a machine whose runs are not here.
    look = MISSING_SECONDS if sent_before else 0.0 if planned.options.naming == "job" else None
    with Store(access=ticket.access) as store:
        try:
            stage_channel(planned, own, shared_content(planned, paths), store)
            service = BotoService(ticket.service)
            try:
                service.create(request, look)
            except ServiceRefused:
                raise
            except BaseException:
                if not kept:
                    _stop_what_came(service, planned.name)
                raise
        except BaseException:
            with contextlib.suppress(HeadraceError):
                remove_channel(ticket.channel, store)
            raise
    write_ticket(paths, msgspec.structs.replace(ticket, submitted=True))


def _stop_what_came(service: TrainingService, name: str) -> None:
    """Stops a job that the service may have, though nobody was told: nothing would ever look at it."""
    try:
        if service.stop(name):
            _log.warning("the training job %s had come to the service; it is stopped", name)
    except HeadraceError as error:
        _log.warning("the service may have the training job %s, which could not be stopped: %s", name, error.message)
