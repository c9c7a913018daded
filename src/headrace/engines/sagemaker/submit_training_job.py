"""Gives a run to SageMaker: stages its channel, creates its training job, leaves nothing of a failed try.

One attempt is submitted, once. When the service refuses it for a reason that `engines.sagemaker.retry` names, the run
waits, and whichever process looks at it when it is time submits the next one (`submit_again`). What a later process
needs for that is in the run's directory: the job as the user wrote it, beside the ticket.

A submission whose process was killed goes on (`resume_submission`), and a training job that another process has
submitted is taken up (`take_up_run`). Both rest on names: a request that is sent twice under one name makes one
training job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time

import msgspec

from headrace.engines.platform_news import alone, end_run, platform_news
from headrace.engines.sagemaker.boto_service import (
    MISSING_SECONDS,
    NAME_TAKEN,
    Answer,
    BotoService,
    NameTaken,
    ServiceRefused,
)
from headrace.engines.sagemaker.failure_reasons import used_up, word_of
from headrace.engines.sagemaker.sagemaker_job import RUN_TAG, SageMakerJob, planned_in
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.stage_channel import (
    prepare_sagemaker_run,
    remove_channel,
    shared_content,
    stage_channel,
)
from headrace.engines.ticket import TICKET, by_this_process, read_ticket, write_ticket
from headrace.errors import EngineRefused, HeadraceError, UsageError
from headrace.instance.storage import Store
from headrace.job import Job
from headrace.private_folders import write_atomically
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, create_run, give_to_engine, read_header, runs_dir
from headrace.runs.events import SecondaryStatus
from headrace.runs.record_pieces import known_here
from headrace.runs.store import ASK_ENGINE

_log = logging.getLogger(__name__)

ASKED = "asked.json"
"""The job as the user wrote it, below the run's engine directory."""
STORED = "stored"  # likewise: the copy of what is stored of the record
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


def forget_copy(paths: RunPaths) -> None:
    """Removes the copy of what is stored: everything of it is in the run's record, or of an earlier attempt."""
    shutil.rmtree(paths.engine / STORED, ignore_errors=True)


def _stop_what_came(service: BotoService, name: str) -> None:
    """Stops a job that the service may have, though nobody was told: nothing would ever look at it."""
    try:
        if service.stop(name):
            _log.warning("the training job %s had come to the service; it is stopped", name)
    except HeadraceError as error:
        _log.warning("the service may have the training job %s, which could not be stopped: %s", name, error.message)


BY_USER = Cause(CauseKind.STOPPED, "stopped by the user")


def submit_again(paths: RunPaths, ticket: ServiceTicket, word: str, failed_at: float, cost: float = 0.0) -> bool:
    """Submits the next attempt of a run if its job says so and it is time. Returns whether there is one.

    Args:
        paths: the run; this process alone refreshes it.
        ticket: of the attempt that has failed.
        word: the service's word for why.
        failed_at: when it failed, seconds since the epoch.
        cost: what it has cost, in the budget's currency.

    Raises:
        HeadraceError, OSError: it cannot be submitted now; nothing has changed. Files that cannot be used end the run.
    """
    pause = pause_before_next(asked_of(paths), ticket.attempt, word)
    if pause is None:
        return False
    now, number = time.time(), ticket.attempt + 1
    if now < failed_at + pause:
        if ticket.failed != word:
            write_ticket(paths, msgspec.structs.replace(ticket, failed=word))
        with platform_news(paths) as news:
            news.status(SecondaryStatus.PENDING, f"{word}: it is submitted again, with a pause before it", now)
        return True
    planned = planned_again(paths, ticket, number).after(ticket.spent + cost)
    budget = planned.plan.budget
    if budget is not None and budget.before >= budget.max_cost:
        return end_run(paths, Status.STOPPED, used_up(budget, budget.before))
    with platform_news(paths) as news:
        news.status(SecondaryStatus.PENDING, f"{word}: submitted again (attempt {number})", now)
    try:
        submit_attempt(planned, paths, kept=True)
    except ServiceRefused as error:
        note_refusal(paths, error)
    except UsageError as error:
        write_ticket(paths, ticket)
        if isinstance(error, EngineRefused):  # the service cannot be asked now
            raise
        cause = Cause(CauseKind.ENGINE_FAILED, f"it cannot be submitted again: {error.message}")
        return end_run(paths, Status.FAILED, cause)
    except BaseException:
        write_ticket(paths, ticket)
        raise
    return True


def stop_run(paths: RunPaths) -> bool:
    """Asks the service to stop a run whose end is not known; one that waits for capacity ends here, unasked.

    Returns:
        Whether it was still waiting or running.

    Raises:
        EngineRefused: it cannot be asked.
        OSError: its record cannot be written.
    """
    with alone(paths, wait=True):
        ticket = read_ticket(paths, ServiceTicket)
        word = ticket.refused or ticket.failed
        if not word:
            service = BotoService(ticket.service)
            if service.stop(ticket.name):
                write_ticket(paths, msgspec.structs.replace(ticket, stop=ticket.stop or BY_USER))
                return True
            found = service.describe(ticket.name)
            word = "" if found is None else word_of(found)
        if pause_before_next(asked_of(paths), ticket.attempt, word) is None:
            return False
        cause = Cause(CauseKind.STOPPED, f"{BY_USER.detail} while it waited to be submitted again")
        return end_run(paths, Status.STOPPED, cause)


def resume_submission(run: Run) -> None:
    """Submits a run again whose submission was killed before it was known that the service has it.

    A run that was killed before anything could be sent is left as it is, like one that has ended, was submitted, or is
    being submitted by a process that lives.

    Raises:
        ServiceRefused: the service does not take it.
        HeadraceError, OSError: it cannot be submitted now.
    """
    paths = run.paths
    if run.header.supervisor_pid != ASK_ENGINE or not (paths.engine / TICKET).is_file():
        return
    with alone(paths, wait=True):
        ticket = read_ticket(paths, ServiceTicket)
        if ticket.submitted or ticket.submitter_lives or ticket.refused or run.over:
            return
        if BotoService(ticket.service).describe(ticket.name) is not None:
            write_ticket(paths, msgspec.structs.replace(ticket, submitted=True))
        else:
            submit_attempt(planned_again(paths, ticket, ticket.attempt), paths, kept=True, sent_before=True)


def take_up_run(planned: SageMakerJob, tags: dict[str, str]) -> RunPaths | None:
    """Makes the directory of a run here whose training job the service has already.

    Args:
        planned: the job, whose training job is named after it.
        tags: that the training job must have.

    Returns:
        The run, at its latest attempt; None when the service has no training job of that name.

    Raises:
        NameTaken: it has one with other tags; or one whose run has ended here.
        HeadraceError, OSError: the service cannot be asked, or the directory cannot be made.
    """
    known = latest_attempt(planned)
    if known is None:
        return None
    latest, found = known
    service = BotoService(ticket_of(latest).service)
    seen = service.tags(str(found["TrainingJobArn"]))
    run_id = seen.get(RUN_TAG, "")
    if not run_id or any(seen.get(key) != value for key, value in tags.items()):
        message = f"there is another training job called {latest.name}"
        raise NameTaken(NAME_TAKEN, message, "it was not made of this job: choose another job_name, or wait")
    job = planned.asked
    paths = RunPaths(runs_dir().absolute() / run_id)
    with contextlib.suppress(FileExistsError):
        create_run(
            job.job_name,
            "sagemaker",
            created=found["CreationTime"].timestamp(),  # it may have ended by now
            base_path=str(job.base_path),
            run_id=run_id,
        )
    if read_header(paths).supervisor_pid != ASK_ENGINE:  # new, or whoever made it was killed
        there = latest.in_run(paths)
        write_asked(paths, job)
        write_ticket(paths, msgspec.structs.replace(ticket_of(there), submitted=True))
        prepare_sagemaker_run(there, paths, latest.attempt)
        give_to_engine(paths)
    if Run(paths).over:
        message = f"the training job {latest.name} is that of {run_id}, which has ended here"
        raise NameTaken(NAME_TAKEN, message, "choose another job_name")
    return paths
