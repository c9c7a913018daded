"""The life of every host of a run, as lanes: a pure fold over events. `headrace timeline` prints it.

starting    the engine has started the instance; its agent has not registered
ready       registered; no program runs yet
running     at least one of its programs runs
done        its programs have ended, and the job goes on
stopping    the job is being stopped
released    it has ended before the job, and costs no more
lost        it ended without having been asked to
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.runs import Damage, Event, RunState, Status
from headrace.runs.describe import GroupLine
from headrace.runs.event_text import sentence
from headrace.runs.events import (
    AttemptStarted,
    DataWorkerLost,
    HostJoined,
    HostLost,
    HostRegistered,
    HostReleased,
    HostStarted,
    JobStopping,
    ProgramExited,
    ProgramStarted,
    RunFinished,
)

_ENDED = frozenset({"lost", "released", ""})


class Segment(msgspec.Struct, frozen=True):
    """A stretch of a host's life. `end` is None while it goes on; times are seconds since the epoch."""

    state: str
    start: float
    end: float | None


class Mark(msgspec.Struct, frozen=True):
    """Something that went wrong at one moment: a host, a data worker or a program that was lost or failed."""

    t: float
    stream: str
    text: str


class HostLane(msgspec.Struct, frozen=True):
    """One host: its life, and what went wrong on it."""

    host: str
    segments: tuple[Segment, ...]
    marks: tuple[Mark, ...]


class GroupLanes(msgspec.Struct, frozen=True):
    """The hosts of one instance group."""

    name: str
    instance_type: str
    hosts: tuple[HostLane, ...]


class Moment(msgspec.Struct, frozen=True):
    """One event in words. `event` is its type as on disk; group, host and stream are empty when it has no place."""

    t: float
    event: str
    group: str
    host: str
    stream: str
    text: str
    fault: bool


class Timeline(msgspec.Struct, frozen=True):
    """A run over time.

    Attributes:
        run_id: which run.
        start: its first event, or when it was made; seconds since the epoch.
        end: its last, or now while it goes on.
        finished: nothing more will happen.
        groups: lanes of every host, by instance group.
        events: all events, in the order of time.
        damage: what of the run's files cannot be read.
    """

    run_id: str
    start: float
    end: float
    finished: bool
    groups: tuple[GroupLanes, ...]
    events: tuple[Moment, ...]
    damage: tuple[Damage, ...]


@dataclass
class _Lane:
    """One host while its events are taken."""

    segments: list[Segment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    state: str = ""
    since: float = 0.0

    def become(self, state: str, t: float) -> None:
        """Ends what it was and begins what it is."""
        if state == self.state:
            return
        if self.state:
            self.segments.append(Segment(self.state, self.since, t))
        self.state, self.since = state, t

    def take(self, event: Event) -> None:
        """Takes an event of this host."""
        if isinstance(event, HostStarted):
            self.become("starting", event.t)
        elif isinstance(event, HostRegistered) and not self.running:
            self.become("ready", event.t)
        elif isinstance(event, ProgramStarted):
            self.running.add(event.stream)
            self.become("running", event.t)
        elif isinstance(event, ProgramExited):
            self.running.discard(event.stream)
            if not self.running and self.state == "running":
                self.become("done", event.t)
        elif isinstance(event, HostLost):
            self.become("lost", event.t)
        elif isinstance(event, HostReleased):
            self.become("released", event.t)
        elif isinstance(event, HostJoined):
            self.running.clear()
            self.become("starting", event.t)
        if is_fault(event):
            self.marks.append(Mark(event.t, getattr(event, "stream", ""), sentence(event)))

    def close(self, t: float | None) -> tuple[Segment, ...]:
        """Returns the life up to the end of the run; None while it goes on. Nothing is drawn after a release."""
        last = () if self.state in {"released", ""} else (Segment(self.state, self.since, t),)
        return (*self.segments, *last)


def is_fault(event: Event) -> bool:
    """Returns whether an event says that something was lost, or failed by itself."""
    if isinstance(event, ProgramExited):
        return event.failed or bool(event.lost_lines)
    return isinstance(event, HostLost | DataWorkerLost) or (
        isinstance(event, RunFinished) and event.status is Status.FAILED
    )


def timeline(
    run_id: str,
    created: float,
    events: Sequence[Event],
    state: RunState,
    groups: Sequence[GroupLine],
    now: float,
    damage: Sequence[Damage] = (),
) -> Timeline:
    """Returns the lanes and the events of a run.

    Args:
        run_id: which run.
        created: when it was made, seconds since the epoch.
        events: all its events, in the order of time.
        state: what they say together.
        groups: its groups as planned; hosts that only events know are added.
        now: seconds since the epoch.
        damage: what of its files cannot be read.
    """
    lanes: dict[tuple[str, str], _Lane] = {(group.name, host): _Lane() for group in groups for host in group.hosts}
    for event in events:
        if isinstance(event, JobStopping):
            for lane in lanes.values():
                if lane.state not in _ENDED:
                    lane.become("stopping", event.t)
        elif isinstance(event, AttemptStarted):
            for lane in lanes.values():
                lane.running.clear()
                lane.become("", event.t)
        elif host := getattr(event, "host", ""):
            lanes.setdefault((getattr(event, "group", ""), host), _Lane()).take(event)
    end = state.ended if state.ended is not None else None if not state.finished else now
    types = {group.name: group.instance_type for group in groups}
    names = list(dict.fromkeys(group for group, _ in lanes))
    last = max([created, *(event.t for event in events[-1:])])
    return Timeline(
        run_id=run_id,
        start=min([created, *(event.t for event in events[:1])]),
        end=end if end is not None else max(last, now),
        finished=state.finished,
        groups=tuple(
            GroupLanes(
                name,
                types.get(name, ""),
                tuple(
                    HostLane(host, lane.close(end), tuple(lane.marks))
                    for (group, host), lane in lanes.items()
                    if group == name
                ),
            )
            for name in names
        ),
        events=tuple(_moment(event) for event in events),
        damage=tuple(damage),
    )


def _moment(event: Event) -> Moment:
    return Moment(
        t=event.t,
        event=str(event.__struct_config__.tag),
        group=getattr(event, "group", ""),
        host=getattr(event, "host", ""),
        stream=getattr(event, "stream", ""),
        text=sentence(event),
        fault=is_fault(event),
    )
