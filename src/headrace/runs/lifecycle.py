"""The phases of a run and the running time of its instances, as SageMaker reports them: a fold over events.

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

from headrace.errors import FAILURE_CHARACTERS
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import (
    AttemptBilled,
    AttemptStarted,
    Event,
    HostJoined,
    HostReleased,
    InstancesStarted,
    JobStopping,
    RunFinished,
    SecondaryStatus,
    Status,
    StatusChanged,
)

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

    def end(self, status: SecondaryStatus, at: float, message: str) -> None:
        """Takes the end of the run, `at` or, when its platform still had something to do then, after that."""
        at = self.not_before(at)
        self._change(status, at, message)
        self.transitions[-1] = replace(self.transitions[-1], end=at)

    def not_before(self, at: float) -> float:
        """Returns when the run has ended whose last word says this: no part of its life begins after its end."""
        return max([at, *(part.start for part in self.transitions[-1:])])

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
