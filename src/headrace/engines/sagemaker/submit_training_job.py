"""Gives a run to SageMaker: stages its channel, creates its training job, leaves nothing of a failed try."""

from __future__ import annotations

import contextlib
import time

import msgspec

from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket, this_process, write_ticket
from headrace.engines.sagemaker.stage_channel import (
    prepare_sagemaker_run,
    remove_channel,
    shared_content,
    stage_channel,
)
from headrace.errors import HeadraceError
from headrace.instance.storage import Store
from headrace.runs import RunPaths, give_to_engine

SERVICES = ("sagemaker", "s3", "logs", "cloudwatch")


def ticket_of(planned: SageMakerJob) -> ServiceTicket:
    """Returns the ticket of a job that this process is about to submit."""
    options = planned.options
    endpoints = {name: url for name in SERVICES if (url := options.endpoint_of(name))}
    pid, start, node = this_process()
    return ServiceTicket(
        name=planned.name,
        region=planned.region,
        profile=options.profile or "",
        endpoints=endpoints,
        channel=planned.channel_uri,
        record=planned.job.record.uri if planned.job.record is not None else "",
        model=planned.model_uri,
        begun=time.time(),
        pid=pid,
        start=start,
        node=node,
    )


def submit_training_job(planned: SageMakerJob, paths: RunPaths) -> None:
    """Submits a run. What is killed meanwhile is found again by its ticket.

    Args:
        planned: the job, in its run.
        paths: the run's directory.

    Raises:
        UsageError, StorageError: the run cannot be prepared or staged.
        EngineRefused: the service does not take it.
        OSError: the run's directory cannot be written.
    """
    ticket = ticket_of(planned)
    give_to_engine(paths)
    own = prepare_sagemaker_run(planned, paths)
    request = planned.request()
    write_ticket(paths, ticket)
    with Store(access=ticket.access) as store:
        try:
            stage_channel(planned, own, shared_content(planned, paths), store)
            BotoService(ticket.service).create(request)
        except BaseException:
            with contextlib.suppress(HeadraceError):
                remove_channel(ticket.channel, store)
            raise
    write_ticket(paths, msgspec.structs.replace(ticket, submitted=True))
