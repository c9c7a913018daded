"""By what a run on SageMaker is found again, and what its training jobs are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import ClassVar

import msgspec

from headrace.engines.sagemaker.boto_service import ServiceAccess
from headrace.engines.ticket import Ticket, read_ticket
from headrace.instance.s3 import S3Access
from headrace.runs import Cause, Run

LONGEST_NAME = 63
_OTHER = re.compile(r"[^a-zA-Z0-9]+")
_DIGEST = 8


class ServiceTicket(Ticket, frozen=True):
    """A run on SageMaker.

    Attributes:
        name: TrainingJobName of the latest attempt.
        region: where it is.
        profile: whose credentials are used; empty for those of the environment.
        endpoints: address of a service that is asked in place of AWS's, by name.
        channel: ``s3://`` prefix of headrace's own channel, with the secret.
        record: ``s3://`` place below which the latest attempt has its record.
        spent: what earlier attempts have cost, in the budget's currency.
        stop: why this machine has asked the service to stop it; None when it has not.
        before: how much the growing files of the record here held when it was submitted: what earlier attempts wrote.
        model: ``s3://`` URI of the model.
        cleaned: the channel is removed.
        attempt: how often the run has been submitted, this time included.
        refused: the service's word for why it did not accept the latest attempt; empty when it did.
        refusal: the same in a sentence.
        refused_at: when that was, seconds since the epoch.
        failed: the service's word for why the latest attempt failed, while there is a pause before the next one.
        missing_since: since when the service, which had accepted it, says that it has no such job; 0 while it has one.
    """

    SUBMIT_SECONDS: ClassVar[float] = 600.0

    name: str
    region: str
    profile: str
    endpoints: dict[str, str]
    channel: str
    record: str
    model: str
    cleaned: bool = False
    attempt: int = 1
    refused: str = ""
    refusal: str = ""
    refused_at: float = 0.0
    failed: str = ""
    missing_since: float = 0.0
    spent: float = 0.0
    stop: Cause | None = None
    before: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def access(self) -> S3Access:
        """How its buckets are reached."""
        return S3Access(self.profile, self.region, self.endpoints.get("s3", ""))

    @property
    def service(self) -> ServiceAccess:
        """How the service is reached."""
        return ServiceAccess(self.region, self.profile, self.endpoints)


def training_job_name(run_id: str, attempt: int = 1) -> str:
    """Returns TrainingJobName of a run: for no other run, and for each attempt another one.

    Args:
        run_id: the run's id, or its job's name.
        attempt: which attempt, from 1.

    >>> training_job_name("digits-20261122-130000-00ff")
    'digits-20261122-130000-00ff'
    >>> training_job_name("digits-20261122-130000-00ff", 3)
    'digits-20261122-130000-00ff-try3'
    """
    ending = f"-try{attempt}" if attempt > 1 else ""
    text = _OTHER.sub("-", run_id).strip("-")
    if text != run_id or len(text) > LONGEST_NAME - len("-try100"):
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:_DIGEST]
        text = f"{text[: LONGEST_NAME - len('-try100') - _DIGEST - 1].strip('-') or 'r'}-{digest}"
    return text + ending


_ENGINE = "sagemaker"


def served_runs(runs: Iterable[Run]) -> dict[str, str]:
    """Returns the runs of an endpoint that play the service for another one of these: id to the other one's id."""
    jobs: dict[str, str] = {}  # names of training jobs
    others: list[tuple[str, str]] = []
    for run in runs:
        try:
            header = run.header
            if header.engine != _ENGINE:
                others.append((run.id, header.job_name))
                continue
            ticket = read_ticket(run.paths, ServiceTicket)
        except (OSError, msgspec.DecodeError):  # not submitted yet, or no run that anybody could use
            continue
        names = [ticket.name, *(training_job_name(run.id, attempt) for attempt in range(1, ticket.attempt))]
        jobs.update(dict.fromkeys(names, run.id))
    return {run_id: jobs[name] for run_id, name in others if name in jobs}
