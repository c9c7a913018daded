"""The state of a run, derived from its events: a pure function from events to a `RunState`. With it the phases of a run
and the running time of its instances, as SageMaker reports them.

    Pending ─ Starting ─ Downloading ─ Training ─ Uploading ─ Completed       Pending on platforms with a queue only
                                          └─ Restarting ─ Training ...        another attempt; Downloading between
                                                                              them, when there are checkpoints at a
                                                                              place; Pending, when it is queued again;
                                                                              Interrupted before, when its instances
                                                                              were taken back
             Stopping (on request, or by max_run) ─ ...       then Stopped or MaxRuntimeExceeded
             at any point: Failed

An instance's clock starts with the first of Downloading and Training, for all instances at once, and stops when the
host is released or the run ends. That is what SageMaker bills, except that there all clocks stop with the run. While
the run waits for other instances (Pending, Interrupted), none runs. Another attempt needs every host again: their
clocks go on then.
"""

from __future__ import annotations

import time
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
    HostJoined,
    HostLost,
    HostReleased,
    InstancesStarted,
    JobFinished,
    JobStarted,
    JobStopping,
    MetricsLeftOut,
    ProgramExited,
    ProgramStarted,
    RecordNotStored,
    RunFinished,
    SecondaryStatus,
    Status,
    StatusChanged,
    Version,
)
from headrace.runs.run_paths import Stream

_WITHOUT_INSTANCES = frozenset({SecondaryStatus.PENDING, SecondaryStatus.INTERRUPTED})


@dataclass(frozen=True)
class Transition:
    """One part of a run's life. Times are seconds since the epoch; `end` is None while it goes on."""

    status: SecondaryStatus
    start: float
    end: float | None = None
    message: str = ""


@dataclass(frozen=True)
class HostTime:
    """How long one instance ran.

    Attributes:
        group, host: which one.
        started: when its clock started, seconds since the epoch.
        ended: when it stopped: the host was released or the run ended; None while it runs.
        released: it stopped before the end of the run.
        pauses: from when to when it was released in between, until the next attempt.
        billed: numbers of the attempts that the platform has billed, of which it was an instance.
    """

    group: str
    host: str
    started: float
    ended: float | None = None
    released: bool = False
    pauses: tuple[tuple[float, float], ...] = ()
    billed: tuple[int, ...] = ()

    def seconds(self, now: float) -> float:
        """Seconds up to its end, or up to now."""
        return self.within(self.started, now if self.ended is None else self.ended)

    def within(self, start: float, end: float) -> float:
        """Seconds that it ran between two moments. While it has no end, `end` must not be later than now."""
        last = end if self.ended is None else min(end, self.ended)
        paused = sum(max(0.0, min(last, until) - max(start, since)) for since, until in self.pauses)
        return max(0.0, last - max(start, self.started) - paused)


@dataclass
class Lifecycle:
    """Takes the events of a run in the order of time.

    Attributes:
        transitions: the parts so far.
        attempt: the current one, from 1.
        stopping: the run was asked to stop, or has used up its time or budget.
        instances_started: when the clocks started, None if they did not.
    """

    transitions: list[Transition] = field(default_factory=list)
    attempt: int = 1
    stopping: bool = False
    instances_started: float | None = None
    _hosts: dict[tuple[str, str], HostTime] = field(default_factory=dict)
    _bills: dict[str, AttemptBilled] = field(default_factory=dict)
    _unbilled: set[tuple[str, str]] = field(default_factory=set)

    @property
    def billed(self) -> tuple[AttemptBilled, ...]:
        """What the platform bills, attempt by attempt; empty while it has not billed all that ran."""
        return () if self._unbilled else tuple(self._bills.values())

    @property
    def status(self) -> SecondaryStatus:
        """What it is now."""
        return self.transitions[-1].status if self.transitions else SecondaryStatus.STARTING

    def take(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, StatusChanged):
            self.stopping = self.stopping or event.status is SecondaryStatus.STOPPING
            self._change(event.status, event.t, event.message)
            if event.status in _WITHOUT_INSTANCES:
                self._hosts = {(host.group, host.host): host for host in self.hosts(event.t)}
        elif isinstance(event, JobStopping) and event.status is Status.STOPPED:
            self.stopping = True
            self._change(SecondaryStatus.STOPPING, event.t, event.reason)
        elif isinstance(event, AttemptStarted):
            self.attempt = event.number
            self._hosts.update((key, _resumed(host, event.t)) for key, host in self._hosts.items())
        elif isinstance(event, InstancesStarted):
            self._started(event)
        elif isinstance(event, AttemptBilled):
            self._bills[event.name] = event
            for key in self._unbilled:
                self._hosts[key] = replace(self._hosts[key], billed=(*self._hosts[key].billed, event.number))
            self._unbilled = set()
        elif isinstance(event, HostJoined):
            key = (event.group, event.host)
            self._hosts[key] = _resumed(self._hosts[key], event.t) if key in self._hosts else HostTime(*key, event.t)
        elif isinstance(event, HostReleased) and (key := (event.group, event.host)) in self._hosts:
            self._hosts[key] = replace(self._hosts[key], ended=event.t, released=True)

    def end(self, status: SecondaryStatus, at: float, message: str) -> float:
        """Takes the end of the run, `at` or, when its platform still had something to do then, after that: no part of
        its life begins after its end. Returns when that was."""
        at = max([at, *(part.start for part in self.transitions[-1:])])
        self._change(status, at, message)
        self.transitions[-1] = replace(self.transitions[-1], end=at)
        return at

    def hosts(self, ended: float | None) -> tuple[HostTime, ...]:
        """Returns the clocks of all hosts, given when the run ended."""
        return tuple(host if host.ended is not None else replace(host, ended=ended) for host in self._hosts.values())

    def _started(self, event: InstancesStarted) -> None:
        """Starts the clocks of the hosts; those of instances that the run had before stand still from now on."""
        if self.instances_started is None:
            self.instances_started = event.t
        now = [(group, name) for group, names in event.hosts.items() for name in names]
        self._unbilled.update(now)
        self._hosts.update((key, _not_resumed(host, event.t)) for key, host in self._hosts.items() if key not in now)
        for key in now:
            self._hosts[key] = _resumed(self._hosts[key], event.t) if key in self._hosts else HostTime(*key, event.t)

    def _change(self, status: SecondaryStatus, at: float, message: str) -> None:
        if self.transitions:
            last = self.transitions[-1]
            if last.status is status:
                self.transitions[-1] = replace(last, message=message or last.message)
                return
            self.transitions[-1] = replace(last, end=at)
        self.transitions.append(Transition(status, at, message=message))


def _resumed(host: HostTime, at: float) -> HostTime:
    if host.ended is None:
        return host
    return replace(host, ended=None, released=False, pauses=(*host.pauses, (host.ended, at)))


def _not_resumed(host: HostTime, at: float) -> HostTime:
    """Ends the clock of a host that is no part of the run any more: where its last pause has begun, else now."""
    if host.ended is not None:
        return host
    *before, last = host.pauses or ((at, at),)
    return replace(host, ended=last[0], released=True, pauses=tuple(before))


def last_word(events: Iterable[Event]) -> RunFinished | None:
    """Returns the end of a run; None while it goes on.

    An end behind which another attempt begins is none: the platform has lost what the run had made, and runs it again.

    Args:
        events: all events, in the order of time.
    """
    word: RunFinished | None = None
    for event in events:
        if isinstance(event, AttemptStarted):
            word = None
        elif isinstance(event, RunFinished):
            word = word or event
    return word


def final_status(status: Status, cause: Cause | None) -> SecondaryStatus:
    """Returns the last SecondaryStatus of a run that has ended."""
    if status is Status.STOPPED and cause is not None and cause.kind is CauseKind.MAX_RUN:
        return SecondaryStatus.MAX_RUNTIME_EXCEEDED
    return SecondaryStatus(status.value)


def running_seconds(transitions: Iterable[Transition], now: float) -> float:
    """Returns for how long a run has not waited for instances, up to now: seconds of its max_run."""
    return sum(
        max(0.0, (now if part.end is None else part.end) - part.start)
        for part in transitions
        if part.status not in _WITHOUT_INSTANCES
    )


def billable_seconds(hosts: tuple[HostTime, ...], now: float) -> dict[str, float]:
    """Returns the seconds of all instances of each group, added up.

    Args:
        hosts: the clocks.
        now: until when those count that still run, seconds since the epoch.
    """
    sums: dict[str, float] = {}
    for host in hosts:
        sums[host.group] = sums.get(host.group, 0.0) + host.seconds(now)
    return sums


def billed_seconds(attempts: tuple[AttemptBilled, ...]) -> dict[str, int]:
    """Returns the seconds that a platform bills for all instances of each group, of all attempts it has told of."""
    sums: dict[str, int] = {}
    for attempt in attempts:
        for group, (_, count) in attempt.groups.items():
            sums[group] = sums.get(group, 0) + attempt.billable_seconds * count
    return sums


def run_finished(status: Status, cause: Cause | None, failure_reason: str = "") -> RunFinished:
    """Returns the end of a run, now.

    Args:
        status, cause: how it ended.
        failure_reason: of a failed one, what its program wrote to output/failure; empty for the cause.
    """
    reason = (failure_reason or str(cause or ""))[:FAILURE_CHARACTERS] if status is Status.FAILED else ""
    return RunFinished(t=time.time(), status=status, cause=cause, failure_reason=reason)


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
        lost_lines: lines of its output that the disk did not take.
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
    lost_lines: int = 0


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
            lost_lines=event.lost_lines,
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
        ended = fold.life.end(final_status(status, cause), ended, str(cause or ""))
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


_ADDED = ("files", "bytes", "stored", "clashes", "clash_count", "left_out")
"""What the parts of several machines add up to."""


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
            sums = {field: getattr(before, field) + getattr(event, field) for field in _ADDED}
            merged[name] = msgspec.structs.replace(event, part="", versions=(), **sums)
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
