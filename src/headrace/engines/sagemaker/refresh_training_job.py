"""What `refresh` does for a run on SageMaker: brings its record, tells in which part of its life it is, ends it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

import msgspec

from headrace.engines.platform_news import PlatformNews, platform_news
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.budget_watch import cost_of, over_budget
from headrace.engines.sagemaker.failure_reasons import end_of_job, refused, word_of
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.service_calls import MISSING_SECONDS, Answer, TrainingService
from headrace.engines.sagemaker.service_measures import bill_of, bring_host_metrics
from headrace.engines.sagemaker.stage_channel import remove_channel
from headrace.engines.sagemaker.stored_record import bring_stored, forget_copy
from headrace.engines.sagemaker.submit_again import submit_again
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.storage import Store
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, read_plan, state_of
from headrace.runs.events import InstancesStarted, SecondaryStatus

STORE_SECONDS = 10.0  # for an answer of S3
PARTS = {
    "Pending": SecondaryStatus.PENDING,
    "Starting": SecondaryStatus.STARTING,
    "LaunchingMLInstances": SecondaryStatus.STARTING,
    "PreparingTrainingStack": SecondaryStatus.STARTING,
    "DownloadingTrainingImage": SecondaryStatus.STARTING,
    "Downloading": SecondaryStatus.DOWNLOADING,
    "Training": SecondaryStatus.TRAINING,
    "Uploading": SecondaryStatus.UPLOADING,
    "Stopping": SecondaryStatus.STOPPING,
    "Restarting": SecondaryStatus.RESTARTING,
    "Interrupted": SecondaryStatus.INTERRUPTED,
}
IN_MACHINE = frozenset({SecondaryStatus.TRAINING, SecondaryStatus.RESTARTING})
"""Parts of a run's life that its own record tells more of."""
BESIDE_RECORD = frozenset({SecondaryStatus.STOPPING, SecondaryStatus.INTERRUPTED})
"""Parts that count whatever the record says: it may say nothing while its instances are taken away."""


def bring_training_job(run: Run, ticket: ServiceTicket) -> None:
    """Brings what S3 and the service have of a run into its record. To be called by one process at a time.

    Raises:
        HeadraceError: they cannot be asked now.
        OSError: the record here cannot be written.
    """
    paths = run.paths
    with Store(STORE_SECONDS, access=ticket.access) as store:
        if not run.over:
            _refresh(run, ticket, store)
        if run.over and not ticket.cleaned:
            bring_host_metrics(run, BotoService(ticket.service))
            remove_channel(ticket.channel, store)
            forget_copy(paths)
            write_ticket(paths, msgspec.structs.replace(read_ticket(paths, ServiceTicket), cleaned=True))


def _refresh(run: Run, ticket: ServiceTicket, store: Store) -> None:
    paths = run.paths
    if not ticket.submitted and ticket.submitter_lives and not ticket.refused:
        return
    if ticket.refused:
        if not submit_again(paths, ticket, ticket.refused, ticket.refused_at):
            with platform_news(paths) as news:
                news.end(Status.FAILED, refused(ticket.refusal or ticket.refused))
        return
    asked = time.time()
    service = BotoService(ticket.service)
    found = service.describe(ticket.name)
    if found is None:
        _not_there(paths, ticket, asked)
        return
    if not ticket.submitted or ticket.missing_since:
        ticket = msgspec.structs.replace(ticket, submitted=True, missing_since=0.0)
        write_ticket(paths, ticket)
    end = end_of_job(found, ticket.stop)
    if end is None:
        word = bring_stored(paths, ticket, store, end=False)
        with platform_news(paths) as news:
            tell_part(news, found, asked, word is not None)
            going = state_of(news.events, True).status is Status.IN_PROGRESS  # `run.status` would ask the engine again
        if word is None and going and ticket.stop is None:
            _watch_budget(paths, ticket, found, service)
        return
    bill = bill_of(found, ticket.attempt, ticket.region)
    if bill is not None:
        with platform_news(paths) as news:
            news.add(bill)
    if _record_says(paths, ticket, store, *end):
        return
    when = found.get("TrainingEndTime") or found.get("LastModifiedTime")
    failed_at = when.timestamp() if isinstance(when, datetime) else asked
    if end[0] is not Status.FAILED or not submit_again(
        paths, ticket, word_of(found), failed_at, cost_of(_plan(paths), found)
    ):
        with platform_news(paths) as news:
            news.end(*end)


def _watch_budget(paths: RunPaths, ticket: ServiceTicket, found: Answer, service: TrainingService) -> None:
    """Has a job stopped whose budget is used up, when its leader does not do it."""
    cause = over_budget(_plan(paths), found, time.time())
    if cause is not None and service.stop(ticket.name):
        write_ticket(paths, msgspec.structs.replace(read_ticket(paths, ServiceTicket), stop=cause))


def _plan(paths: RunPaths) -> LaunchPlan:
    return read_plan(paths, LaunchPlan)


def _record_says(paths: RunPaths, ticket: ServiceTicket, store: Store, status: Status, cause: Cause | None) -> bool:
    """Brings what is left of the record of a job that has ended. Returns whether it has the last word.

    The record says more than the service: which program failed, and why. It has the last word, but for what came after
    it, such as a model that could not be stored, and for why the service stopped the job.

    Args:
        paths, ticket, store: the run.
        status, cause: how the job ended, as the service has it.
    """
    word = bring_stored(paths, ticket, store, end=False)
    if word is None or (word.status is Status.COMPLETED and status is not Status.COMPLETED):
        return False
    vague = word.cause is None or word.cause.kind is CauseKind.STOPPED  # the leader gets the same signal for all
    if word.status is Status.STOPPED and status is Status.STOPPED and cause is not None and vague:
        return False
    bring_stored(paths, ticket, store, end=True)
    return True


def _not_there(paths: RunPaths, ticket: ServiceTicket, asked: float) -> None:
    """Ends a run of which the service knows nothing, or knows nothing any more for long enough.

    Args:
        paths, ticket: the run.
        asked: when the service was asked, seconds since the epoch.
    """
    if ticket.submitted and not ticket.missing_since:
        write_ticket(paths, msgspec.structs.replace(ticket, missing_since=asked))
        return
    if ticket.submitted and asked - ticket.missing_since < MISSING_SECONDS:
        return
    kind, words = CauseKind.ENGINE_FAILED, "the service does not know the training job any more: it was deleted"
    if not ticket.submitted:
        kind = CauseKind.CALLER_DIED
        words = "headrace was killed while it submitted the job, before the service had it"
    with platform_news(paths) as news:
        news.end(Status.FAILED, Cause(kind, words, infrastructure=True))


def tell_part(news: PlatformNews, found: Answer, asked: float, over: bool) -> None:
    """Writes in which part of its life the job is, where its own record does not say that.

    Args:
        news: of the run.
        found: what the service says of the job.
        asked: when it was asked, seconds since the epoch.
        over: its record has its end: only the service still has something to do.
    """
    part = PARTS.get(str(found.get("SecondaryStatus")))
    if over:
        part = SecondaryStatus.STOPPING if part is SecondaryStatus.STOPPING else SecondaryStatus.UPLOADING
    elif part in IN_MACHINE or any(isinstance(event, InstancesStarted) for event in news.events):
        part = part if part in BESIDE_RECORD else None
    if part is not None:
        own = PARTS.get(str(found.get("SecondaryStatus"))) is part  # else its words are about another part
        news.status(part, _message(found) if own else "", asked)


def _message(found: Answer) -> str:
    passed = found.get("SecondaryStatusTransitions")
    last = passed[-1] if isinstance(passed, list) and passed else {}
    return str(last.get("StatusMessage", "")) if isinstance(last, Mapping) else ""
