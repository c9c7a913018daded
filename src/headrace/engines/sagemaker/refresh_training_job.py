"""What `refresh` does for a run on SageMaker: brings its record, tells in which part of its life it is, ends it.

Every attempt that is submitted has a record of its own in S3, in segments that its leader writes. Here they are one:
what an attempt writes stands behind what the attempts before it have written. The segments are copied into a folder
below the run's engine directory, as `headrace fetch` does. The end of the run waits: a run is over when the service has
stored its model.

The service tells the seconds that it bills. A host whose agent was killed, or a leader that was killed before it stored
the record, leaves no metrics: CloudWatch measures every host from outside, once a minute. These minutes come into the
run's record beside the others, as records of a kind of their own that name their source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from headrace.engines.platform_news import LEADERS, PlatformNews, bring_new, end_run, is_end, platform_news
from headrace.engines.sagemaker.boto_service import MISSING_SECONDS, Answer, BotoService, HostPoint
from headrace.engines.sagemaker.failure_reasons import cost_of, end_of_job, over_budget, word_of
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.sagemaker.stage_channel import remove_channel
from headrace.engines.sagemaker.submit_training_job import STORED, forget_copy, submit_again
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.storage import Store
from headrace.runs import Cause, CauseKind, MetricWriter, Run, RunPaths, RunState, Status, Stream, read_plan, state_of
from headrace.runs.events import AttemptBilled, InstancesStarted, RunFinished, SecondaryStatus
from headrace.runs.metric_records import PlatformMinute
from headrace.runs.run_paths import PLATFORM
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import joined, writers_place
from headrace.runs.state import last_word
from headrace.sagemaker_parameters import HOMOGENEOUS

PLAN = "plan.json"  # the leader knows which hosts the service has assigned to which group


def bring_stored(paths: RunPaths, ticket: ServiceTicket, store: Store, *, end: bool) -> RunFinished | None:
    """Brings what is new. To be called by one process at a time.

    Args:
        paths: the run.
        ticket: of the latest attempt.
        store: where its record is.
        end: the end of the run comes, too, if it is there.

    Returns:
        The end of the run, if it is stored.

    Raises:
        StorageError, RecordDamaged: it cannot be read now.
        OSError: the record here cannot be written.
    """
    uri = joined(ticket.record.rstrip("/"), paths.id)
    if not store.folders(writers_place(uri)):
        return None
    copy = open_copy(store, paths.id, uri, paths.engine / STORED)
    RecordCopy(store, copy).update()
    word = last_word(Run(copy).events())
    limit = None if end or word is None else _place_of_end(copy)
    bring_new(copy, paths, (PLAN,), last=end and word is not None, until=limit, before=ticket.before)
    return word


def _place_of_end(copy: RunPaths) -> int | None:
    """Returns where in the leader's events of a copy the end of the run stands; None when it is elsewhere."""
    place, found = 0, None
    with (copy.root / LEADERS).open("rb") as lines:
        for line in lines:
            if is_end(line):
                found = place
            place += len(line)
    return found


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
            why = ticket.refusal or ticket.refused
            end_run(paths, Status.FAILED, Cause(CauseKind.INSTANCE_NOT_STARTED, why, infrastructure=True))
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
            cause = over_budget(read_plan(paths, LaunchPlan), found, time.time())
            if cause is not None and service.stop(ticket.name):  # its leader does not do it
                write_ticket(paths, msgspec.structs.replace(read_ticket(paths, ServiceTicket), stop=cause))
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
        paths, ticket, word_of(found), failed_at, cost_of(read_plan(paths, LaunchPlan), found)
    ):
        end_run(paths, *end)


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
    end_run(paths, Status.FAILED, Cause(kind, words, infrastructure=True))


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


_log = logging.getLogger(__name__)

SOURCE = "CloudWatch"
PERIOD = 60  # seconds; CloudWatch has no less of training jobs
SILENT = 120.0  # seconds without a record of its own, after which a host's end is not told
UNKNOWN_GROUP = "unknown"
"""Group of hosts in a job of several groups whose record does not tell which host the service gave to which group."""
NAMES = {
    "CPUUtilization": "cpu",
    "MemoryUtilization": "memory",
    "GPUUtilization": "gpu",
    "GPUMemoryUtilization": "gpu_memory",
    "DiskUtilization": "disk",
}
"""CloudWatch's names, and fields of `PlatformMinute`."""


def bill_of(answer: Answer, number: int, region: str) -> AttemptBilled | None:
    """Returns what the service bills for an attempt; None when it does not tell, although instances ran.

    Args:
        answer: what DescribeTrainingJob says of its job, which has ended.
        number: of the attempt, from 1.
        region: where it was.
    """
    seconds = [answer.get(name) for name in ("TrainingTimeInSeconds", "BillableTimeInSeconds")]
    if answer.get("TrainingStartTime") is None and seconds == [None, None]:
        seconds = [0, 0]  # no instance has started
    training, billable = seconds
    if not isinstance(training, int) or not isinstance(billable, int):
        return None
    ended = _moment(answer.get("TrainingEndTime"))
    return AttemptBilled(
        t=max(time.time(), ended or 0.0),  # behind all that the instances have recorded, whatever the clock here says
        name=str(answer["TrainingJobName"]),
        number=number,
        region=region,
        groups=_groups(answer.get("ResourceConfig")),
        training_seconds=training,
        billable_seconds=billable,
        started=_moment(answer.get("TrainingStartTime")),
        ended=ended,
    )


def _groups(resources: object) -> dict[str, tuple[str, int]]:
    if not isinstance(resources, Mapping):
        return {}
    groups = resources.get("InstanceGroups")
    if groups:
        return {
            str(each["InstanceGroupName"]): (str(each["InstanceType"]), int(each["InstanceCount"])) for each in groups
        }
    kind = resources.get("SelectedInstanceType") or resources.get("InstanceType")
    count = resources.get("SelectedInstanceCount") or resources.get("InstanceCount")
    return {HOMOGENEOUS: (str(kind), int(count))} if kind and count else {}


def _moment(when: object) -> float | None:
    return when.timestamp() if isinstance(when, datetime) else None


def bring_host_metrics(run: Run, service: BotoService) -> int:
    """Brings what is not told of the run's last attempt, which has ended. Returns how many minutes were brought.

    What CloudWatch refuses is told in the log of this process, and left out: the end of the run does not hang on it.

    Args:
        run: the run.
        service: where its job was.
    """
    state = state_of(run.events(), True)  # `run.state` would ask the engine, which is asked now
    last = state.billed[-1] if state.billed else None
    if last is None or last.started is None or last.ended is None:
        return 0
    own = {stream.host: seconds[-1].t for stream, seconds in run.host_seconds().items() if seconds}
    brought = 0
    for group, host in _hosts(state, last):
        begin = own.get(host, last.started)
        if last.ended - begin < (SILENT if host in own else 0.0):
            continue
        try:
            points = {name: service.host_points(last.name, host, name, begin, last.ended) for name in NAMES}
        except EngineRefused as error:
            _log.warning("what CloudWatch measured of %s cannot be read: %s", last.name, error)
            return brought
        with MetricWriter(run.paths.metrics(Stream(group, host, PLATFORM))) as writer:
            for minute in minutes(points):
                writer.write(minute)
                brought += 1
    return brought


def minutes(points: Mapping[str, list[HostPoint]]) -> Iterator[PlatformMinute]:
    """Yields the minutes of a host, in the order of time. Pure.

    Args:
        points: values by CloudWatch's name of the metric.
    """
    found: dict[float, dict[str, float]] = {}
    for name, values in points.items():
        for point in values:
            found.setdefault(point.t, {})[NAMES[name]] = point.average
    for t, measured in sorted(found.items()):
        yield PlatformMinute(t=t, seconds=float(PERIOD), source=SOURCE, **measured)


def _hosts(state: RunState, attempt: AttemptBilled) -> list[tuple[str, str]]:
    """Returns group and name of every host of an attempt."""
    known = {host.host: host.group for host in state.hosts if attempt.number in host.billed}
    alone = next(iter(attempt.groups)) if len(attempt.groups) == 1 else UNKNOWN_GROUP
    count = sum(instances for _, instances in attempt.groups.values())
    names = [f"algo-{number}" for number in range(1, count + 1)]
    return [(known.get(name, alone), name) for name in names]
