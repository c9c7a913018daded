"""Starts one attempt of a line, or finds the run that an earlier process has started; and reads what became of it.

The name of its job is the key. Whoever was killed before, at whatever instant, has left a run of that name or none. A
run of the same request is this attempt's, another one is an error.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace import engines
from headrace.engines.asking import AskEngine
from headrace.engines.handle import Handle
from headrace.engines.planning.prepare_run import digest_of_code
from headrace.errors import NameInUse
from headrace.grid.journal.grid_record import AttemptRecord, AttemptState
from headrace.insight.cost.cost_report import cost_report
from headrace.job import Job
from headrace.job.model.sagemaker_options import Tag
from headrace.own_runs import started_here
from headrace.record_files import read_json
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status
from headrace.runs.store import is_copy, list_paths_of

REQUEST_TAG = "headrace:request"
"""Tag of a job: the digest of what was asked for."""
_ASKED = ("job.json", "engine/asked.json")
"""Files of a run that hold its job."""


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
        if not _has_end(run):
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
    return not _has_end(run) or (state.cause is not None and state.cause.kind is CauseKind.CALLER_DIED)


def _has_end(run: Run) -> bool:
    return run.over


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


def _asking(paths: RunPaths) -> Run:
    return Run(paths, AskEngine(seconds=0.0))


def ended_attempt(attempt: AttemptRecord, run: Run) -> AttemptRecord | None:
    """Returns an attempt with its end; None while its run goes on.

    Raises:
        OSError, msgspec.DecodeError: its record cannot be read.
    """
    state = run.state()
    if not state.finished:
        return None
    cause = state.cause
    if never_started(run):
        cause = Cause(CauseKind.CALLER_DIED, "its process died before anything was started", infrastructure=True)
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
