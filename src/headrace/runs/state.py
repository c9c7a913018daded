"""The state of a run, derived from its events: a pure function from events to a `RunState`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from headrace.errors import FAILURE_CHARACTERS
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import (
    ArtefactsStored,
    AttemptBilled,
    AttemptStarted,
    Clash,
    DataWorkerLost,
    Event,
    FilesLeft,
    HostLost,
    JobFinished,
    JobStarted,
    MetricsLeftOut,
    ProgramExited,
    ProgramStarted,
    RecordNotStored,
    RunFinished,
    SecondaryStatus,
    Status,
    Version,
)
from headrace.runs.lifecycle import HostTime, Lifecycle, Transition, final_status
from headrace.runs.run_paths import Stream

ENGINE_KILLED = Cause(CauseKind.ENGINE_FAILED, "the engine was killed")
"""Cause of a run whose supervisor is gone and has written no `run_finished`."""

LISTED = 100  # clashes


@dataclass(frozen=True)
class Program:
    """One program of a run. Times are seconds since the epoch; `exit_code` or `signal` is set when it has ended.

    Attributes:
        stream: its address ``group/host[name]``.
        pid: its process.
        started: when it was started, None if that event is missing.
        ended: when it ended, None if it has not.
        exit_code: its exit code.
        signal: number of the signal that killed it.
        stopped: it ended because it was told to.
        argv: its command line.
        attempt: in which attempt it ran, from 1.
    """

    stream: Stream
    pid: int = 0
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    argv: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True)
class RunState:
    """A run at one moment.

    Attributes:
        status: SageMaker's status.
        cause: the first thing that went wrong, None if nothing did (yet).
        degraded: the data service lost workers or servers while the job went on.
        finished: nothing more will happen.
        started: when the programs were started (`job_started`), None if they were not.
        ended: when the run ended (`run_finished`, or the last event of a killed engine); None while it goes on.
        programs: in the order of their start.
        lost: the events of lost hosts and data workers.
        artefacts: what was stored where, the last event for each name (``model``, ``output`` ...); of several machines
            that have stored parts the sum of their last events.
        secondary_status: SageMaker's SecondaryStatus.
        transitions: what it has been, in order; the last one has no end while the run goes on.
        attempt: which attempt this is or was, from 1.
        failure_reason: SageMaker's FailureReason; empty unless the run Failed.
        instances_started: when the instances began to cost, None if they did not.
        left_out: what the search for metrics left out: the last event of each host and attempt for each kind of thing.
        hosts: how long each instance ran, in the plan's order; empty when none did.
        billed: what the platform bills for each attempt; empty where none does, or not for all that ran.
        record_not_stored: that the end of its record is not at the place that the job names; None otherwise.
    """

    status: Status = Status.IN_PROGRESS
    cause: Cause | None = None
    degraded: bool = False
    finished: bool = False
    started: float | None = None
    ended: float | None = None
    programs: tuple[Program, ...] = ()
    lost: tuple[HostLost | DataWorkerLost, ...] = ()
    artefacts: tuple[ArtefactsStored, ...] = ()
    secondary_status: SecondaryStatus = SecondaryStatus.STARTING
    transitions: tuple[Transition, ...] = ()
    attempt: int = 1
    failure_reason: str = ""
    instances_started: float | None = None
    left_out: tuple[MetricsLeftOut, ...] = ()
    hosts: tuple[HostTime, ...] = ()
    billed: tuple[AttemptBilled, ...] = ()
    record_not_stored: RecordNotStored | None = None
    files_left: tuple[FilesLeft, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """0 for Completed, 4 when its budget was used up, 130 when the user stopped it, 1 for every other end.

        None while it goes on.
        """
        if not self.finished:
            return None
        if self.secondary_status is SecondaryStatus.COMPLETED:
            return 0
        if self.status is Status.STOPPED and self.cause is not None and self.cause.kind is CauseKind.BUDGET:
            return BUDGET_EXCEEDED
        return STOPPED_BY_USER if self.secondary_status is SecondaryStatus.STOPPED else 1


BUDGET_EXCEEDED = 4
"""Exit code of a run that was stopped because its budget was used up."""

STOPPED_BY_USER = 130
"""Exit code of a run that was stopped on request."""


@dataclass
class _Fold:
    programs: list[Program] = field(default_factory=list)
    lost: list[HostLost | DataWorkerLost] = field(default_factory=list)
    artefacts: dict[tuple[str, str], ArtefactsStored] = field(default_factory=dict)
    versions: dict[tuple[str, str], dict[str, Version]] = field(default_factory=dict)
    clashes: dict[str, dict[str, Clash]] = field(default_factory=dict)
    left_out: dict[tuple[object, ...], MetricsLeftOut] = field(default_factory=dict)
    started: float | None = None
    last: float | None = None
    verdict: JobFinished | None = None
    word: RunFinished | None = None
    record_not_stored: RecordNotStored | None = None
    files_left: list[FilesLeft] = field(default_factory=list)
    life: Lifecycle = field(default_factory=Lifecycle)

    def stored(self, event: ArtefactsStored) -> None:
        self.artefacts[event.name, event.part] = event
        for version in event.versions:
            self.versions.setdefault((event.name, version.path), {})[event.part] = version

    def compare_machines(self) -> None:
        """An attempt is over: machines that have brought different content to one name clash; the last one is kept."""
        for (name, path), of_machine in self.versions.items():
            kept, last = max(of_machine.items(), key=lambda item: item[1].at)
            dropped = tuple(sorted(part for part, each in of_machine.items() if each.digest != last.digest))
            if dropped:
                self.clashes.setdefault(name, {})[path] = Clash(path, kept, dropped)
        self.versions = {}

    def exited(self, event: ProgramExited) -> None:
        stream = Stream(event.group, event.host, event.stream)
        for index in range(len(self.programs) - 1, -1, -1):
            if self.programs[index].stream == stream and self.programs[index].ended is None:
                break
        else:
            index = len(self.programs)
            self.programs.append(Program(stream))
        self.programs[index] = replace(
            self.programs[index],
            ended=event.t,
            exit_code=event.exit_code,
            signal=event.signal,
            stopped=event.stopped,
        )


def state_of(events: Iterable[Event], supervised: bool) -> RunState:
    """Returns the state of a run.

    Args:
        events: all events, in the order of time.
        supervised: whether the process that answers for the run lives. Find out *before* reading the events:
            a supervisor writes `run_finished` and then ends.

    Returns:
        The state. Without `run_finished` and without a supervisor the run is Failed; the cause is the coordinator's,
        if it had one, else that the engine was killed.
    """
    fold = _Fold()
    for event in events:
        fold.last = event.t
        fold.life.take(event)
        if isinstance(event, ProgramStarted):
            stream = Stream(event.group, event.host, event.stream)
            fold.programs.append(Program(stream, event.pid, event.t, argv=event.argv, attempt=fold.life.attempt))
        elif isinstance(event, ProgramExited):
            fold.exited(event)
        elif isinstance(event, HostLost | DataWorkerLost):
            fold.lost.append(event)
        elif isinstance(event, ArtefactsStored):
            fold.stored(event)
        elif isinstance(event, MetricsLeftOut):
            fold.left_out[fold.life.attempt, event.host, event.what, event.definition] = event
        elif isinstance(event, FilesLeft):
            fold.files_left.append(event)
        elif isinstance(event, JobStarted):
            fold.started = event.t if fold.started is None else fold.started
        elif isinstance(event, AttemptStarted):
            fold.verdict = fold.word = None
            fold.files_left.clear()
            fold.compare_machines()
        elif isinstance(event, JobFinished):
            fold.verdict = fold.verdict or event
        elif isinstance(event, RunFinished):
            fold.word = fold.word or event
        elif isinstance(event, RecordNotStored):
            fold.record_not_stored = event if event.reason else None
    fold.compare_machines()
    status, cause, ended = _verdict(fold, supervised)
    finished = fold.word is not None or not supervised
    if ended is not None:
        ended = fold.life.not_before(ended)
        fold.life.end(final_status(status, cause), ended, str(cause or ""))
    reason = fold.word.failure_reason if fold.word else ""
    return RunState(
        status=status,
        cause=cause,
        degraded=any(isinstance(event, DataWorkerLost) for event in fold.lost),
        finished=finished,
        started=fold.started,
        ended=ended,
        programs=tuple(fold.programs),
        lost=tuple(fold.lost),
        artefacts=_all_machines(fold.artefacts, fold.clashes),
        secondary_status=final_status(status, cause) if finished else fold.life.status,
        transitions=tuple(fold.life.transitions),
        attempt=fold.life.attempt,
        failure_reason=(reason or str(cause or ""))[:FAILURE_CHARACTERS] if status is Status.FAILED else "",
        instances_started=fold.life.instances_started,
        left_out=tuple(fold.left_out.values()),
        hosts=fold.life.hosts(ended),
        billed=fold.life.billed,
        record_not_stored=fold.record_not_stored,
        files_left=tuple(fold.files_left),
    )


def _all_machines(
    stored: dict[tuple[str, str], ArtefactsStored], clashes: dict[str, dict[str, Clash]]
) -> tuple[ArtefactsStored, ...]:
    """Returns one event for each name, given the last one for each name and machine, and the clashes of machines."""
    merged: dict[str, ArtefactsStored] = {}
    for (name, part), event in stored.items():
        before = merged.get(name)
        if before is None or not part:
            merged[name] = msgspec.structs.replace(event, part="", versions=())
        else:
            merged[name] = msgspec.structs.replace(
                event,
                files=before.files + event.files,
                bytes=before.bytes + event.bytes,
                stored=before.stored + event.stored,
                clashes=before.clashes + event.clashes,
                clash_count=before.clash_count + event.clash_count,
                left_out=before.left_out + event.left_out,
                part="",
                versions=(),
            )
    for name, found in clashes.items():
        event = merged[name]
        listed = (*event.clashes, *(found[path] for path in sorted(found)))[:LISTED]
        merged[name] = msgspec.structs.replace(event, clashes=listed, clash_count=event.clash_count + len(found))
    return tuple(merged.values())


def _verdict(fold: _Fold, supervised: bool) -> tuple[Status, Cause | None, float | None]:
    verdict_cause = fold.verdict.cause if fold.verdict else None
    if fold.word is not None:
        return fold.word.status, fold.word.cause or verdict_cause, fold.word.t
    if not supervised:
        return Status.FAILED, verdict_cause or ENGINE_KILLED, fold.last
    if fold.life.stopping:
        return Status.STOPPING, verdict_cause, None
    return Status.IN_PROGRESS, verdict_cause, None
