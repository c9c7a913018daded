"""What is done outside for one attempt of a line: started or found again, looked at, stopped. Each writes first.

Threads call it, one at a time for a line. Errors of an engine end the attempt, those of the journal the controller.
How an attempt failed is read from its run here, too: what may be tried again, and where.

The name of an attempt's job is the key. Whoever was killed before, at whatever instant, has left a run of that name or
none. A run of the same request is this attempt's, another one is an error.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headrace import engines
from headrace.aws_errors import AwsFault, fault_of
from headrace.engines.asking import AskEngine
from headrace.engines.handle import Handle
from headrace.engines.planning.prepare_run import digest_of_code
from headrace.errors import (
    EngineRefused,
    EngineUnreachable,
    HeadraceError,
    NameInUse,
    RunNotFound,
    StorageError,
    StorageUnreachable,
)
from headrace.grid.controller.early_stop import MissingMetric, ReachedRungs, is_past_last, judged
from headrace.grid.controller.line_jobs import LineJobs, attempt_name
from headrace.grid.grid_file import LONGEST_DELAY, Retry, RetryCause
from headrace.grid.grid_record import AttemptRecord, AttemptState, CopyRecord, LineRecord, LineState
from headrace.grid.journal import Instant, Journal
from headrace.insight.run_cost import cost_report
from headrace.job import Job
from headrace.job.model.sagemaker_options import Tag
from headrace.own_runs import started_here
from headrace.record_files import read_json
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, ValueFollower
from headrace.runs.store import is_copy, list_paths_of

REQUEST_TAG = "headrace:request"
"""Tag of a job: the digest of what was asked for."""
_ASKED = ("job.json", "engine/asked.json")
"""Files of a run that hold its job."""
NEVER_STARTED = Cause(CauseKind.CALLER_DIED, "its process died before anything was started", infrastructure=True)


@dataclass(frozen=True)
class StartedRun:
    """The run of an attempt.

    Attributes:
        run: it; it may have ended.
        adopted: it was there already.
        handle: what this process has started for it; None of a run that was there.
    """

    run: Run
    adopted: bool
    handle: Handle | None = None

    def release(self, seconds: float) -> None:
        """Waits, at most so long, until the processes that this one has started for it have ended: it is over."""
        if self.handle is not None:
            self.handle.wait(seconds)


def request_digest(job: Job, engine: str) -> str:
    """Returns what tells a request from another: of the job as it was written, without its name, of its code's content,
    and of the engine.

    Raises:
        UsageError, OSError: the code cannot be read.
    """
    data = {key: value for key, value in job.to_data().items() if key not in ("job_name", "tags")}
    tags = [(tag.key, tag.value) for tag in job.tags if tag.key != REQUEST_TAG]
    text = json.dumps([engine, data, tags, digest_of_code(job)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prepared(job: Job, engine: str, request: str) -> Job:
    """Returns a job with the digest of its request, and, where a service tells jobs by their names, under its own."""
    tag = Tag(key=REQUEST_TAG, value=request)
    changed: dict[str, object] = {"tags": (*(each for each in job.tags if each.key != REQUEST_TAG), tag)}
    if engine == "sagemaker":
        options = job.sagemaker.model_copy(update={"naming": "job"})
        changed["engines"] = job.engines.model_copy(update={"sagemaker": options})
    return job.model_copy(update=changed)


def start_or_adopt(job: Job, engine: str, request: str = "") -> StartedRun:
    """Starts a run of a job, detached; or returns the one that there is.

    Args:
        job: the job of one attempt, whose name no other attempt has.
        engine: name of the engine.
        request: digest of what is asked for, when it is known: the code is read for it.

    Raises:
        NameInUse: a run of that name was not made of this job.
        JobInvalid, EngineRefused, HeadraceError, OSError: it cannot be started; nothing was. `EngineUnreachable` says
            that the platform did not answer: it may work later.
    """
    request = request or request_digest(job, engine)
    wanted = prepared(job, engine, request)
    found = find_attempt(job.job_name, engine, request)
    if found is not None:
        return StartedRun(found, adopted=True)
    try:
        handle = engines.start(wanted, engine, detach=True)
        return StartedRun(_asking(handle.paths), adopted=False, handle=handle)
    except NameInUse:
        # Another process was faster, or the platform has it from a machine whose runs are not here.
        found = find_attempt(job.job_name, engine, request)
        if found is not None:
            return StartedRun(found, adopted=True)
        known = engines.take_up(wanted, engine, {REQUEST_TAG: request})
        if known is None:
            raise
        return StartedRun(_asking(known.paths), adopted=True)


def find_attempt(job_name: str, engine: str, request: str) -> Run | None:
    """Returns the run of an attempt; None when there is none, or nothing of it was started before its process died.

    Args:
        job_name: of the attempt.
        engine: name of the engine.
        request: digest of what was asked for.

    Raises:
        NameInUse: a run of that name was not made of this request.
        HeadraceError, OSError: its engine cannot be asked now.
    """
    for paths in reversed(list_paths_of(job_name)):
        if is_copy(paths) or not started_here(paths.root):
            continue
        run = _asking(paths)
        asked = digest_of_run(paths)
        if asked == request and run.header.engine != engine:
            continue  # the digest names the engine: this run is how `headrace serve`, in this home, plays the attempt
        if not run.over:
            engines.resume(run)
        if never_started(run):
            continue
        if asked != request:
            what = "of another job" if asked else "that no grid has started"
            raise NameInUse(f"there is a run {what} under the name {job_name}: {paths.id}", "rename the grid")
        return run
    return None


def never_started(run: Run) -> bool:
    """Tells whether a run is over because the process that started it died before anything was started."""
    state = run.state()
    if not state.finished or state.started is not None or state.instances_started is not None or state.programs:
        return False
    return not run.over or (state.cause is not None and state.cause.kind is CauseKind.CALLER_DIED)


_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def digest_of_run(paths: RunPaths) -> str:
    """Returns the digest of the request that a run was made of; empty when it has none."""
    for name in _ASKED:
        try:
            data = read_json(paths.root / name, _json)
        except (OSError, msgspec.DecodeError):
            continue
        for tag in data.get("tags") or () if isinstance(data, dict) else ():
            if tag.get("key") == REQUEST_TAG:
                return str(tag.get("value", ""))
    return ""


def _asking(paths: RunPaths, seconds: float = 0.0) -> Run:
    """Returns a run whose platform is asked again after so many seconds."""
    return Run(paths, AskEngine(seconds=seconds))


def ended_attempt(attempt: AttemptRecord, run: Run) -> AttemptRecord | None:
    """Returns an attempt with its end; None while its run goes on.

    Raises:
        OSError, msgspec.DecodeError: its record cannot be read.
    """
    state = run.state()
    if not state.finished:
        return None
    cause = NEVER_STARTED if never_started(run) else state.cause
    cost, seconds = cost_so_far(run, attempt.region)
    return msgspec.structs.replace(
        attempt,
        state=AttemptState.ENDED,
        run_id=run.id,
        started=attempt.started or time.time(),
        ended=state.ended or time.time(),
        status=Status.FAILED if state.status is Status.IN_PROGRESS else state.status,
        cause=cause,
        cost=cost,
        billable_seconds=seconds,
    )


def failed_attempt(attempt: AttemptRecord, cause: Cause, now: float) -> AttemptRecord:
    """Returns an attempt that got no run, with its end."""
    return msgspec.structs.replace(
        attempt, state=AttemptState.ENDED, ended=now, status=Status.FAILED, cause=cause, cost=0.0, billable_seconds=0.0
    )


def cost_so_far(run: Run, region: str) -> tuple[float | None, float | None]:
    """Returns what a run has cost in USD, and the seconds of all its hosts; None for what is not known.

    Raises:
        OSError, msgspec.DecodeError: its record cannot be read.
    """
    report = cost_report(run, region=region or None, by_work=False)
    seconds = [host.seconds.value for host in report.hosts if host.seconds.value is not None]
    return report.total.value, sum(seconds) if seconds else None


_CAUSES = {
    **dict.fromkeys((AwsFault.CAPACITY, AwsFault.LIMIT), RetryCause.CAPACITY),
    AwsFault.BUSY: RetryCause.THROTTLED,
    AwsFault.INTERNAL: RetryCause.INTERNAL,
}
_INFRASTRUCTURE = frozenset(
    {CauseKind.ENGINE_FAILED, CauseKind.COORDINATOR_LOST, CauseKind.NETWORK_LOST, CauseKind.CALLER_DIED}
)
_MOVES = frozenset({RetryCause.CAPACITY, RetryCause.SPOT})
"""After these another region may do better."""


class NextTry(NamedTuple):
    """What follows a failed attempt.

    Attributes:
        region: where the next one runs.
        not_before: seconds since the epoch.
    """

    region: str
    not_before: float


def failure_of_run(cause: Cause | None) -> RetryCause | None:
    """Returns why a run failed; None when another attempt would not help, because the user's program failed."""
    if cause is None:
        return None
    if cause.kind is CauseKind.PREEMPTED:
        return RetryCause.SPOT
    if cause.kind is CauseKind.INSTANCE_NOT_STARTED and cause.infrastructure:
        return RetryCause.CAPACITY
    if cause.infrastructure or cause.kind in _INFRASTRUCTURE:
        return RetryCause.INTERNAL
    return None


def failure_of_start(error: Exception) -> RetryCause | None:
    """Returns why an attempt could not be started; None when another attempt would not help."""
    if any(isinstance(each, EngineUnreachable | StorageUnreachable) for each in (error, error.__cause__)):
        return RetryCause.THROTTLED
    if isinstance(error, EngineRefused) and (cause := _CAUSES.get(fault_of(error.code))):
        return cause
    return RetryCause.INTERNAL if isinstance(error, StorageError | OSError) else None


def _words(error: Exception) -> str:
    return error.message if isinstance(error, HeadraceError) else str(error)


def lost_at_start(attempt: AttemptRecord) -> bool:
    """Tells whether nothing of an attempt was started because its controller died: it does not count."""
    cause = attempt.cause
    return cause is not None and cause.kind is CauseKind.CALLER_DIED and not attempt.billable_seconds


def next_try(
    line: LineRecord, failure: RetryCause | None, rules: Retry, regions: Sequence[str], now: float
) -> NextTry | None:
    """Returns what follows a failed attempt of a line; None when nothing does.

    Args:
        line: with the attempt that has failed, the last one, and all before it.
        failure: why it failed.
        rules: of the grid.
        regions: in which the plan lets the line run, the first choice first.
        now: seconds since the epoch.
    """
    counted = sum(not lost_at_start(each) for each in line.attempts)
    if failure is None or failure not in rules.on or counted > rules.attempts + line.extra_attempts:
        return None
    here = line.attempts[-1].region
    if failure in _MOVES and rules.elsewhere and len(regions) > 1 and here in regions:
        rounds, place = divmod(max(0, counted - 1) + 1, len(regions))
        following = regions[(regions.index(here) + 1) % len(regions)]
        return NextTry(following, now if place else now + _pause(rules.delay, rounds))
    return NextTry(here, now + _pause(rules.delay, max(1, counted)))


def _pause(delay: float, times: int) -> float:
    return min(LONGEST_DELAY, delay * float(2 ** min(times - 1, 30)))


ASK_SECONDS = 2.0
"""Between two questions to a platform about one run."""
RELEASE_SECONDS = 10.0
CopiesIn = Callable[[str], Mapping[str, str]]
"""Place of each whole copy in a region, by the place of the data."""


@dataclass(eq=False)
class AttemptRunner:
    """See the module.

    Attributes:
        journal: of the grid.
        jobs: of its lines; None for a controller that only stops.
        retry: what is tried again.
        regions: in which the plan lets a line run, the first choice first, with the copies that it needs there; by key.
        copies_in: whole copies.
        instant: told before and after every call outside.
        trouble: is told what people must know of a line: its key, and words.
    """

    journal: Journal
    jobs: LineJobs | None
    retry: Retry
    regions: Callable[[str], Sequence[tuple[str, tuple[CopyRecord, ...]]]]
    copies_in: CopiesIn
    instant: Instant
    trouble: Callable[[str, str], object]

    def __post_init__(self) -> None:
        self._runs: dict[str, StartedRun] = {}
        self._metrics: dict[str, tuple[ValueFollower, ReachedRungs | None]] = {}  # of the runs of lines, by key
        objective = self.jobs.file.objective if self.jobs else None
        self._missing = MissingMetric(objective.metric) if objective else None

    def start(self, line: LineRecord) -> RetryCause | None:
        """Starts the next attempt of a line that waits.

        Returns:
            Why it could not be started, when another attempt may help.

        Raises:
            StorageError, JournalConflict: the journal cannot be written.
        """
        number = len(line.attempts) + 1
        name = attempt_name(line.job_name, number)
        try:
            job = self._job(line.key, name, line.region, line.engine)
            request = request_digest(job, line.engine)
        except (HeadraceError, OSError) as error:
            self.journal.close_lines({line.key: (LineState.FAILED, _words(error))})
            return None
        attempt = AttemptRecord(number, name, line.engine, line.region, request, AttemptState.INTENDED, time.time())
        self.journal.intend(line.key, attempt)
        return self._launch(_with(line, attempt), attempt, job)

    def resolve(self, line: LineRecord, stopping: str) -> RetryCause | None:
        """Goes on with an attempt that a controller had written down which was killed then.

        Args:
            line: it.
            stopping: why the line is being stopped: it is only looked for, and not started; empty when it is not.

        Returns:
            As `start`.

        Raises:
            StorageError, JournalConflict: the journal cannot be written.
        """
        attempt = line.attempts[-1]
        try:
            job = self._resolved_job(line, attempt)
        except (HeadraceError, OSError) as error:
            return self._not_started(line, attempt, error)
        if job is not None and not stopping:
            return self._launch(line, attempt, job)
        try:
            self.instant("before find")
            found = find_attempt(attempt.job_name, attempt.engine, attempt.request)
            self.instant("after find")
        except (HeadraceError, OSError) as error:
            return self._not_started(line, attempt, error)
        if found is not None:
            self._has_run(line.key, attempt, StartedRun(found, adopted=True))
            return None
        ended = failed_attempt(attempt, NEVER_STARTED, time.time())
        self.journal.ended(line.key, ended, LineState.STOPPED if stopping else LineState.WAITING, reason=stopping)
        return None

    def look(self, line: LineRecord, stopping: str, costs: bool) -> float | None:
        """Looks at the run of a line, and writes down how it stands at the rungs of the grid, and its end.

        Args:
            line: it.
            stopping: why the line is being stopped: no other attempt follows; empty when it is not.
            costs: what it has cost so far is wanted.

        Returns:
            USD so far; None when it was not asked for, is not known, or the run is over.

        Raises:
            StorageError, JournalConflict: the journal cannot be written.
        """
        attempt = line.attempts[-1]
        try:
            started = self._run_of(line.key, attempt)
            ended = ended_attempt(attempt, started.run)
            self._read_metrics(line, started.run, may_stop=ended is None and not stopping)
            if ended is None:
                return cost_so_far(started.run, attempt.region)[0] if costs else None
        except (RunNotFound, OSError, msgspec.DecodeError) as error:
            detail = f"its record cannot be read: {_words(error)}"
            cause = Cause(CauseKind.ENGINE_FAILED, detail, infrastructure=True)
            self._end(line, failed_attempt(attempt, cause, time.time()), failure_of_run(cause), stopping)
            return None
        started.release(RELEASE_SECONDS)
        self._runs.pop(line.key, None)
        self._end(line, ended, failure_of_run(ended.cause), stopping)
        return None

    def stop(self, line: LineRecord) -> None:
        """Asks the run of a line to stop. What cannot be asked now is told, and is asked again later."""
        attempt = line.attempts[-1]
        try:
            self.instant("before stop")
            engines.stop(self._run_of(line.key, attempt).run)
            self.instant("after stop")
        except (HeadraceError, OSError) as error:
            self.trouble(line.key, f"not stopped yet: {_words(error)}")

    def release(self) -> None:
        """Waits for the processes of runs that are over."""
        for started in self._runs.values():
            if started.handle is not None and started.run.finished:
                started.release(RELEASE_SECONDS)

    def _read_metrics(self, line: LineRecord, run: Run, may_stop: bool) -> None:
        """Tells of an objective's metric that runs do not log. Writes down how a line stands at each rung that it has
        reached, up to the one at which it is stopped."""
        if self.jobs is None or self.jobs.file.objective is None or self._missing is None:
            return
        rule, objective = self.jobs.file.early_stop, self.jobs.file.objective
        judge_it = rule is not None and line.early_stop is None and not is_past_last(rule, line.rungs)
        if self._missing.settled and not judge_it:
            self._metrics.pop(line.key, None)
            return
        if line.key not in self._metrics:
            follower = ValueFollower(run.paths, run.on_damage)
            self._metrics[line.key] = follower, ReachedRungs(rule, objective.metric) if rule else None
        follower, rungs = self._metrics[line.key]
        records = list(follower.poll())
        if words := self._missing.take(run.id, records):
            self.trouble(line.key, words)
        if rule is None or rungs is None or not judge_it:
            return
        for step, value in rungs.take(records):
            judge = partial(judged, step, value, goal=objective.goal, factor=rule.factor, may_stop=may_stop)
            rung = self.journal.reached(line.key, step, judge)
            if rung is not None and rung.stopped:
                return

    def _job(self, key: str, name: str, region: str, engine: str) -> Job:
        assert self.jobs is not None
        return self.jobs.job(key, name, region, engine, self.copies_in(region))

    def _resolved_job(self, line: LineRecord, attempt: AttemptRecord) -> Job | None:
        """Returns the job of an attempt that was written down; None when the grid's file makes another one now."""
        if self.jobs is None or not line.in_file:
            return None
        job = self._job(line.key, attempt.job_name, attempt.region, attempt.engine)
        return job if request_digest(job, attempt.engine) == attempt.request else None

    def _launch(self, line: LineRecord, attempt: AttemptRecord, job: Job) -> RetryCause | None:
        try:
            self.instant("before start")
            started = start_or_adopt(job, attempt.engine, attempt.request)
            self.instant("after start")
        except (HeadraceError, OSError) as error:
            return self._not_started(line, attempt, error)
        if started.adopted:
            self.trouble(line.key, f"takes up {started.run.id}, which is there already")
        self._has_run(line.key, attempt, started)
        return None

    def _has_run(self, key: str, attempt: AttemptRecord, started: StartedRun) -> None:
        self._runs[key] = StartedRun(_asking(started.run.paths, ASK_SECONDS), started.adopted, started.handle)
        began = started.run.header.created if started.adopted else time.time()
        self.journal.started(key, attempt.number, started.run.id, began)

    def _not_started(self, line: LineRecord, attempt: AttemptRecord, error: Exception) -> RetryCause | None:
        failure = failure_of_start(error)
        kind = CauseKind.INSTANCE_NOT_STARTED if failure is RetryCause.CAPACITY else CauseKind.ENGINE_FAILED
        cause = Cause(kind, _words(error), infrastructure=failure is not None)
        self.trouble(line.key, cause.detail)
        self._end(line, failed_attempt(attempt, cause, time.time()), failure, stopping="")
        return failure

    def _end(self, line: LineRecord, ended: AttemptRecord, failure: RetryCause | None, stopping: str) -> None:
        state, now = _state_of(ended), time.time()
        self._metrics.pop(line.key, None)
        if state is LineState.FAILED and not stopping:
            if lost_at_start(ended):
                self.journal.ended(line.key, ended, LineState.WAITING)
                return
            there = dict(self.regions(line.key))
            again = next_try(_with(line, ended), failure, self.retry, tuple(there), now)
            if again is not None:
                region = None if again.region == line.region else again.region
                copies = () if region is None else there[region]
                self.journal.ended(
                    line.key, ended, LineState.WAITING, not_before=again.not_before, region=region, copies=copies
                )
                return
        state = LineState.STOPPED if stopping and state is LineState.FAILED else state
        if state is LineState.STOPPED and line.early_stop is not None:
            state, stopping = LineState.STOPPED_EARLY, str(line.early_stop)
        reason = "" if state in (LineState.COMPLETED, LineState.FAILED) else stopping
        self.journal.ended(line.key, ended, state, reason=reason)

    def _run_of(self, key: str, attempt: AttemptRecord) -> StartedRun:
        if key not in self._runs:
            self._runs[key] = StartedRun(_asking(Run.open(attempt.run_id).paths, ASK_SECONDS), adopted=True)
        return self._runs[key]


def _state_of(ended: AttemptRecord) -> LineState:
    if ended.status is Status.COMPLETED:
        return LineState.COMPLETED
    stopped = ended.status is Status.STOPPED and (ended.cause is None or ended.cause.kind is CauseKind.STOPPED)
    return LineState.STOPPED if stopped else LineState.FAILED


def _with(line: LineRecord, attempt: AttemptRecord) -> LineRecord:
    """Returns a line with an attempt in the place of the one of its number, or behind all."""
    before = tuple(each for each in line.attempts if each.number != attempt.number)
    return msgspec.structs.replace(line, attempts=(*before, attempt))
