"""What the coordinator knows of one host, what follows from what happens to it, and which groups may start. Pure.

A group starts when every group that it depends on is ready. Without `depends_on` any start order is right, and all
groups start together. A group is ready when every host of it is: its programs were started, its servers of the data
service serve, and something listens on the port of `ready`, if that names one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.agent.control.control_messages import SILENCE_LIMIT, Demand, Exited, Heartbeat, StopOrder
from headrace.agent.program_specs import expected_streams, is_of_mpirun
from headrace.instance.frameworks import tf_data_servers
from headrace.instance.launch_plan import GroupPlan, LaunchPlan
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import Event
from headrace.runs.run_paths import AGENT

# States of a server of the data service
STARTING = "starting"
READY = "ready"
LEAVING = "leaving"
LOST = "lost"

RETURNS = 3  # losses in a row after which a job does not wait for a data host
QUIET = 2.0  # seconds without a report, after which a host may be lost; a heartbeat comes every second


@dataclass
class ServerState:
    """One server of tf.data.service.

    Attributes:
        state: starting, ready or lost.
        cause: why it was down last; None if it never was.
        since: when that was, on the coordinator's clock.
        version: of its TensorFlow, once it has served.
        forgotten: that a dispatcher lost its state when it was down.
    """

    state: str = STARTING
    cause: Cause | None = None
    since: float = 0.0
    version: str = ""
    forgotten: Cause | None = None


@dataclass
class HostState:
    """One host. Times are on the coordinator's clock.

    Attributes:
        name, group, address: which one, and where.
        streams: its programs, without the data service.
        executors: data worker processes.
        registered: it has registered.
        connected: its agent has a stream.
        heard: when its last report came.
        taken: number of the last report that was processed.
        lost: it counts as lost.
        silent: it is lost because no report came from it, or because it heard nothing from the coordinator.
        started: when it was told to start its programs; 0 before.
        ready: its programs were started and listen where others wait for them.
        programs_ended: it was told to stop, and none of its programs is left.
        release: it was told to end before the job.
        ended: all its programs and its agent's work have ended.
        exits: how its programs ended.
        mpirun_ended: when the launcher of its ranks ended; 0 before, or without one.
        signs: when each program last showed a sign of life.
        worked, sent: when it last worked, and last sent data (see `headrace.agent.metrics.counters`); 0 when not known.
        feed: state of its feed server: starting, ready, lost; empty without one.
        feed_reason: why that was down last.
        servers: its servers of tf.data.service by stream.
        absent: it is a data host that comes and goes, and is not wanted now: its engine need not have an instance for
            it (see `DataHosts`).
        number: how often it was asked for. An agent of an earlier time counts no more.
        asked: when it was asked for last, if it was not there from the start; else 0.
        leaving: since when clients ask it for nothing more, because it is not needed; 0 when they may.
        losses: how often in a row it was lost soon.
        away_until: when it may be asked for again.
        demands: what its ranks need of data workers, as they told last.
    """

    name: str
    group: str
    address: str
    streams: tuple[str, ...]
    executors: int
    registered: bool = False
    connected: bool = False
    heard: float = 0.0
    taken: int = 0
    lost: bool = False
    silent: bool = False
    started: float = 0.0
    ready: bool = False
    programs_ended: bool = False
    release: StopOrder | None = None
    ended: bool = False
    exits: dict[str, Exited] = field(default_factory=dict)
    mpirun_ended: float = 0.0
    signs: dict[str, float] = field(default_factory=dict)
    worked: float = 0.0
    sent: float = 0.0
    feed: str = ""
    feed_reason: str = ""
    servers: dict[str, ServerState] = field(default_factory=dict)
    absent: bool = False
    number: int = 0
    asked: float = 0.0
    leaving: float = 0.0
    losses: int = 0
    away_until: float = 0.0
    demands: tuple[Demand, ...] = ()

    @property
    def place(self) -> str:
        """``group/host``."""
        return f"{self.group}/{self.name}"

    @property
    def silence(self) -> str:
        """Why it is lost when no report came from it for too long, in words."""
        if not self.registered:
            return "did not reach the coordinator in time"
        return f"silent for {SILENCE_LIMIT:g} s" + ("" if self.connected else ", its connection is broken")

    def beats(self, beat: Heartbeat, now: float) -> None:
        """Processes a heartbeat."""
        self.signs.update((stream, now - seconds) for stream, seconds in beat.quiet.items())
        self.demands = beat.demands
        self.worked = self.worked if beat.idle is None else max(self.worked, now - beat.idle)
        self.sent = self.sent if beat.unsent is None else max(self.sent, now - beat.unsent)

    def may_be_lost(self, now: float) -> bool:
        """Whether it may be lost: its connection is broken, or it is quiet for longer than it should be."""
        known = self.lost or self.ended or not self.registered
        return not known and (not self.connected or now - self.heard > QUIET)

    @property
    def may_be_asked(self) -> bool:
        """Whether it is not there and can be asked for; never again one whose feed server has ended for good."""
        return self.absent and (self.feed != LOST or self.lost)

    @property
    def may_come(self) -> bool:
        """Whether it is not there and will be asked for when it is needed."""
        return self.may_be_asked and self.losses < RETURNS

    def come(self, now: float) -> None:
        """It is asked for: what was known of it was of an earlier instance."""
        came = HostState(self.name, self.group, self.address, self.streams, self.executors, heard=now)
        came.number, came.asked, came.losses = self.number + 1, now, self.losses
        came.started = now if self.started else 0.0
        vars(self).update(vars(came))

    @property
    def unfinished(self) -> bool:
        """Whether one of its programs still runs or has failed."""
        ends = [end for stream, end in self.exits.items() if not is_of_mpirun(stream)]
        # Counted, not compared by name: mpirun decides which ranks are on a host.
        return len(ends) < len(self.streams) or any(end.exit_code != 0 for end in ends)

    @property
    def idle(self) -> bool:
        """Whether all its programs have ended with 0 and no server of the data service runs on it."""
        return bool(self.streams) and not self.unfinished and not self.serves and not self.lost

    @property
    def serves(self) -> bool:
        """Whether a server of the data service runs, or is to run, on it."""
        return self.feed not in {"", LOST} or any(server.state != LOST for server in self.servers.values())


def all_hosts(plan: LaunchPlan, now: float) -> dict[str, HostState]:
    """Returns the hosts of a plan as they are in the beginning, by name."""
    hosts = {}
    for host in plan.hosts:
        executors = plan.group(host.group).feed_executors
        streams = expected_streams(plan, host.name)
        state = HostState(host.name, host.group, host.address, streams, executors, heard=now)
        state.feed = STARTING if executors else ""
        state.servers = {server.stream: ServerState() for server in tf_data_servers(plan, host.name)}
        hosts[host.name] = state
    return hosts


def cut_off_cause(hosts: Iterable[HostState], leader: str, cause: Cause) -> Cause:
    """Returns the cause; or that the leader is cut off, with the coordinator, when the cause is the silence of another
    host and all of several other hosts are silent.

    Args:
        hosts: all hosts.
        leader: the host on whose machine the coordinator is.
        cause: the first cause so far.
    """
    left = {host.name: host for host in hosts if not host.ended and (host.silent or not host.absent)}
    own = left.pop(leader, None)
    if own is None or cause.host not in left or not (cause.infrastructure and left[cause.host].silent):
        return cause
    if len(left) < 2 or not all(host.silent for host in left.values()):
        return cause
    reason = f"cut off: all other hosts are silent for {SILENCE_LIMIT:g} s"
    return Cause(CauseKind.HOST_LOST, reason, own.group, own.name, AGENT, infrastructure=True)


@dataclass
class Effects:
    """What follows from one event.

    Attributes:
        records: events of the job, in order.
        wake: hosts whose orders have changed.
        renewed: hosts that were asked for: agents that they had before count no more.
    """

    records: list[Event] = field(default_factory=list)
    wake: set[str] = field(default_factory=set)
    renewed: set[str] = field(default_factory=set)


def startable(plan: LaunchPlan, hosts: Mapping[str, HostState]) -> list[GroupPlan]:
    """Returns the groups that have not started and may."""
    return [group for group in plan.groups if not _started(group, hosts) and not _waits_for(plan, group, hosts)]


def never_ready(plan: LaunchPlan, hosts: Mapping[str, HostState], now: float) -> Cause | None:
    """Returns why a group can never start, or has waited too long; None while it still may.

    Args:
        plan: the launch plan.
        hosts: the hosts by name.
        now: the time on the coordinator's clock.
    """
    for waiting in plan.groups:
        if _started(waiting, hosts):
            continue
        for group in _waits_for(plan, waiting, hosts):
            if not _started(group, hosts):
                continue  # it waits itself
            late = [host for host in _hosts_of(group, hosts) if not _ready(host)]
            gone = next((host for host in late if host.lost or _over(host)), None)
            if gone is not None:
                how = "was lost" if gone.lost else f"ended and {_lacks(gone, group)}"
                reason = f"{waiting.name} waits in vain for {group.name} to be ready: {gone.name} {how}"
                return Cause(CauseKind.GROUP_NOT_READY, reason, gone.group, gone.name, infrastructure=gone.lost)
            if now - late[0].started > group.ready.timeout:
                what = "; ".join(f"{host.name} {_lacks(host, group)}" for host in late[:4])
                reason = f"waited {group.ready.timeout:g} s for {group.name} to be ready: {what}"
                return Cause(CauseKind.GROUP_NOT_READY, reason, group.name, late[0].name)
    return None


def is_waited_for(plan: LaunchPlan, group: str) -> bool:
    """Tells whether another group starts only when this one is ready."""
    return any(group in other.depends_on for other in plan.groups)


def _hosts_of(group: GroupPlan, hosts: Mapping[str, HostState]) -> list[HostState]:
    return [hosts[name] for name in group.hosts if not hosts[name].absent]


def _started(group: GroupPlan, hosts: Mapping[str, HostState]) -> bool:
    return all(host.started for host in _hosts_of(group, hosts))


def _waits_for(plan: LaunchPlan, group: GroupPlan, hosts: Mapping[str, HostState]) -> list[GroupPlan]:
    needed = [plan.group(name) for name in group.depends_on]
    return [other for other in needed if not all(_ready(host) for host in _hosts_of(other, hosts))]


def _ready(host: HostState) -> bool:
    serves = host.feed in {"", READY} and all(server.state == READY for server in host.servers.values())
    return host.ready and serves


def _over(host: HostState) -> bool:
    ended = bool(host.streams) and all(name in host.exits for name in host.streams)
    return ended and not host.ready and not host.serves


def _lacks(host: HostState, group: GroupPlan) -> str:
    if host.feed and host.feed != READY:
        return f"has no feed server that serves ({host.feed_reason or 'it is starting'})"
    for name, server in host.servers.items():
        if server.state != READY:
            return f"has a {name} that does not serve ({server.cause or 'it is starting'})"
    if group.ready.port:
        return f"does not accept connections on port {group.ready.port}"
    return "has not started its programs"
