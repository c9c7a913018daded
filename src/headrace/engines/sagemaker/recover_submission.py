"""Goes on with submissions whose process was killed, and takes up training jobs that another process has submitted.

Both rest on names: a request that is sent twice under one name makes one training job.
"""

from __future__ import annotations

import contextlib

import msgspec

from headrace.engines.one_refresher import alone
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.sagemaker_job import RUN_TAG, SageMakerJob
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.service_calls import NAME_TAKEN, NameTaken
from headrace.engines.sagemaker.stage_channel import prepare_sagemaker_run
from headrace.engines.sagemaker.submit_training_job import (
    latest_attempt,
    planned_again,
    submit_attempt,
    ticket_of,
    write_asked,
)
from headrace.engines.ticket import TICKET, read_ticket, write_ticket
from headrace.runs import Run, RunPaths, create_run, give_to_engine, read_header, runs_dir
from headrace.runs.store import ASK_ENGINE


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
