"""The job's state machine: reports of the agents go in; orders for them and events for the record come out.

    WAITING    for every host to register; any order, bounded by the plan's start_timeout
    RUNNING    the programs run; groups start when those are ready that they depend on (see `startable`), hosts whose
               programs are done and that serve no data are released
    SETTLING   something failed; other failures are collected for a moment, to find the first cause (see `first_cause`)
    STOPPING   the outcome is decided and never changes; programs are stopped first, then the data service, so that a
               trainer that saves its work on SIGTERM still gets batches
    FINISHED   every host has ended, or did not end in time

There is one way to success: every program of the completion groups exited with 0 while the job was RUNNING or SETTLING
without a suspect. Every other way into STOPPING has a cause.

Pure: no clock, socket, thread or file. `now` is seconds since the epoch on a clock that does not go back. The caller
calls `tick` about ten times a second.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.agent.control.control_messages import (
    SILENCE_LIMIT,
    DaemonEnded,
    DaemonWanted,
    ExecutorLost,
    Exited,
    Heartbeat,
    Hello,
    HostEnded,
    HostLeaving,
    Message,
    Orders,
    ProgramsEnded,
    Ready,
    Report,
    ServerDown,
    ServerUp,
    StopOrder,
)
from headrace.agent.coordinator.budget_limits import NOTHING, BudgetLimits, Used
from headrace.agent.coordinator.data_services import DataHosts, DataServices, stalled
from headrace.agent.coordinator.first_cause import (
    WINDOW,
    Suspect,
    SuspectKind,
    exit_suspect,
    first_of,
    leaving_suspect,
    with_early_leaver,
)
from headrace.agent.coordinator.host_state import (
    LOST,
    READY,
    STARTING,
    Effects,
    HostState,
    all_hosts,
    cut_off_cause,
    never_ready,
    startable,
)
from headrace.agent.coordinator.mpi_daemons import Daemons, unfinished_worlds
from headrace.agent.program_specs import FEED, MPIRUN, TORCHRUN, goes_on_without, mpi_peers
from headrace.exit_status import exit_text
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.events import (
    DataWorkerLost,
    FeedReady,
    HostLost,
    HostRegistered,
    JobFinished,
    JobStarted,
    JobStopping,
    Status,
)
from headrace.runs.run_paths import AGENT

FAILURE_GRACE = 5.0  # after a failure the other programs get at most this long to end
STOP_MARGIN = 4.0  # seconds beyond the grace within which a host must have ended
PAUSE = 2.0  # a longer time without a tick means that this process was suspended, so the others are not silent


class Phase(Enum):
    """Where the job is."""

    WAITING = "waiting"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    FINISHED = "finished"


class Coordinator:
    """See the module. Every method that takes `now` returns the effects of one event.

    Args:
        plan: the launch plan.
        now: when the coordinator began.
        used: what is used up already of time and money.
        apart: it does not share the fate of the leader's host.

    Attributes:
        phase: where the job is.
        verdict: the end, when the phase is FINISHED.
    """

    def __init__(self, plan: LaunchPlan, now: float, used: Used = NOTHING, *, apart: bool = False) -> None:
        self.phase = Phase.WAITING
        self.verdict: JobFinished | None = None
        self._plan = plan
        self._began = now
        self._failure_grace = min(FAILURE_GRACE, plan.stop_grace)
        self._limits = BudgetLimits(plan, used, now)
        self._now = self._ticked = self._looked = now
        self._effects = Effects()
        self._apart = apart
        self._started = 0.0
        self._settle_until = 0.0
        self._stop_until = 0.0
        self._suspects: list[Suspect] = []
        self._outcome: tuple[Status, Cause | None] = (Status.FAILED, None)
        self._stop: StopOrder | None = None
        self._daemons = Daemons(plan)
        self._hosts = all_hosts(plan, now)
        self._look_pause = len(self._hosts) // 100 / 100
        self._peers = {group.name: mpi_peers(plan, group.hosts[0]) for group in plan.groups if group.hosts}
        self._services = DataServices(plan, self._hosts)
        self._data_hosts = DataHosts(plan, self._hosts, self._services, self._limits, now)
        self._services.list_feed(now)

    @property
    def wanted(self) -> dict[str, int]:
        """Hosts that must have an instance now, with the number of times that they were asked for."""
        return {host.name: host.number for host in self._hosts.values() if not host.absent}

    # --- what the hosts must do --------------------------------------------------------------------------------

    def orders(self, name: str) -> Orders:
        """Returns all orders for a host."""
        host = self._hosts[name]
        stop = self._stop or host.release
        if host.lost:
            stop = StopOrder("this host was given up", grace=0.0, feed=True)
        return Orders(
            ack=host.taken,
            start=host.started > 0,
            feed_generation=self._services.generation,
            feed=self._services.feed if host.streams else (),
            daemons=self._daemons.orders_of(name),
            daemon_ends=self._daemons.ends_of(name),
            stop=stop,
            verdict=self.verdict.status if self.verdict else None,
            failure=self._failure() if name == self._plan.leader else "",
        )

    def _failure(self) -> str:
        """What is written to output/failure: the leader's host does it."""
        cause = None if self.verdict is None or self.verdict.status is not Status.FAILED else self.verdict.cause
        return "" if cause is None else "\n".join([str(cause), *cause.last_lines])

    # --- events --------------------------------------------------------------------------------------------------

    def connected(self, name: str, now: float) -> Effects:
        """A host opened a stream."""
        self._hosts[name].connected, self._hosts[name].heard = True, now
        return Effects(wake={name})

    def disconnected(self, name: str, now: float) -> Effects:
        """A host's stream broke. It may come back within the limit of silence."""
        self._event(now)
        self._hosts[name].connected = False
        return self._look()

    def report(self, name: str, report: Report, now: float) -> Effects:
        """A host reported. A report that was processed before is ignored; a heartbeat counts at the next tick."""
        host = self._hosts[name]
        host.heard = now
        effects = self._event(now)
        if isinstance(report.message, Heartbeat):
            host.beats(report.message, now)
        elif report.number == host.taken + 1 and not host.lost:
            host.taken = report.number
            self._take(host, report.message)
        return effects if isinstance(report.message, Heartbeat) else self._look()

    def host_gone(
        self, name: str, reason: str, now: float, heard_nothing: bool = False, last_lines: tuple[str, ...] = ()
    ) -> Effects:
        """The engine saw the agent of a host end. `heard_nothing`: the agent lost the coordinator and gave up."""
        self._event(now)
        host = self._hosts[name]
        words = host.silence if heard_nothing else reason
        self._lose(host, words, silent=heard_nothing, last_lines=last_lines)
        return self._advance()

    def stop_requested(self, status: Status, cause: Cause, grace: float | None, now: float) -> Effects:
        """Stops the job, or stops it faster.

        Args:
            status: how a job that runs is to end: Stopped or Failed.
            cause: why. The platform comes before what programs say, because it may have signalled them too.
            grace: seconds between SIGTERM and SIGKILL; None for the usual ones. A later request can only shorten it.
            now: the time.
        """
        self._event(now)
        usual = self._failure_grace if status is Status.FAILED else self._plan.stop_grace
        wanted = usual if grace is None else grace
        if self._stop is None:
            if self._suspects:
                self._suspects += [Suspect(SuspectKind.PLATFORM, now, cause)] if cause.infrastructure else []
                self._decide()
            else:
                self._begin_stop(status, cause, wanted)
        if self._stop is not None and wanted < self._stop.grace:
            self._order_stop(wanted, self._stop.feed or not wanted)
        return self._advance()

    def tick(self, now: float) -> Effects:
        """Time passed."""
        gap, self._ticked = now - self._ticked, now
        if gap > PAUSE:
            for host in self._hosts.values():
                host.heard += gap
        effects = self._event(now)
        for host in self._hosts.values():
            if host.registered and not host.ended and now - host.heard > SILENCE_LIMIT:
                self._lose(host, host.silence, silent=True)
        self._data_hosts.begin(effects, now)
        for host in self._data_hosts.late(now):
            self._lose(host, f"did not come within {self._plan.start_timeout:g} s")
        return self._advance()

    def _event(self, now: float) -> Effects:
        """Something happens. Returns what will follow from it."""
        self._now, self._effects = now, Effects()
        return self._effects

    # --- reports -------------------------------------------------------------------------------------------------

    def _take(self, host: HostState, message: Message) -> None:
        match message:
            case Hello():
                host.registered = True
                host.address = message.address or host.address
                self._data_hosts.came(host, self._effects, self._now)
                self._effects.records.append(HostRegistered(t=self._now, group=host.group, host=host.name))
            case Exited():
                host.exits[message.stream] = message
                host.mpirun_ended = self._now if message.stream == MPIRUN else host.mpirun_ended
                killed = message.signal is not None and not message.stopped
                if killed and message.stream == TORCHRUN and self._goes_on_without(host):
                    self._lose(host, f"torchrun was {exit_text(None, message.signal)}")
                elif message.exit_code != 0 and not message.stopped:
                    self._suspect(exit_suspect(host.group, host.name, message))
            case DaemonWanted():
                self._effects.wake.add(self._daemons.wanted(host.name, message))
            case DaemonEnded():
                self._effects.wake.add(self._daemons.ended(host.name, message))
            case ExecutorLost():
                reason = f"data worker process {message.pid} {message.cause}"
                self._worker_lost(host, reason, message.replaced)
            case ServerUp() if message.stream == FEED:
                if not host.leaving:
                    host.executors = message.executors
                    self._services.feed_changed(host, READY)
                    ready = FeedReady(t=self._now, group=host.group, host=host.name, executors=message.executors)
                    self._effects.records.append(ready)
            case ServerUp():
                event, skew = self._services.server_up(host, message, self._now)
                self._effects.records.append(event)
                if skew is not None:
                    self._suspect(Suspect(SuspectKind.SILENT, self._now, skew))
            case ServerDown() if message.stream == FEED:
                self._feed_lost(host, f"feed server {message.cause}", message.gone)
            case ServerDown():
                self._server_lost(host, message)
            case Ready():
                host.ready = True
            case ProgramsEnded():
                host.programs_ended = True
            case HostLeaving():
                self._leaves(host, message)
            case HostEnded():
                if host.release is not None:
                    self._data_hosts.left(host, self._effects, self._now)
                elif self._stop is None:  # the coordinator did not order it: the engine or the platform ends this host
                    self._lose(host, "its agent was told to end")
                host.programs_ended = host.ended = True

    def _leaves(self, host: HostState, message: HostLeaving) -> None:
        if message.platform:
            if host.unfinished and host.release is None and not self._goes_on_without(host):
                self._suspect(leaving_suspect(host.group, host.name, message.signal, self._now))
        elif self._stop is None:
            cause = Cause(CauseKind.STOPPED, f"the agent of {host.name} was told to stop by {message.signal}")
            self._begin_stop(Status.FAILED, cause, self._failure_grace)

    def _feed_lost(self, host: HostState, reason: str, gone: bool, *, recorded: bool = True) -> None:
        self._services.feed_changed(host, LOST if gone else STARTING, reason)
        self._worker_lost(host, reason, not gone, recorded=recorded)

    def _server_lost(self, host: HostState, message: ServerDown) -> None:
        self._services.server_down(host, message, self._now)
        self._worker_lost(host, f"{message.stream} {message.cause}", not message.gone, message.stream)

    def _worker_lost(
        self, host: HostState, reason: str, replaced: bool, stream: str = "", *, recorded: bool = True
    ) -> None:
        """Records that a data worker was lost, and takes it for a suspect when the job cannot go on."""
        over = self._services.over() if any(each.unfinished for each in self._hosts.values()) else None
        if self._stop is None and recorded:
            recovered = replaced and over is None
            event = DataWorkerLost(host.group, host.name, reason, recovered, stream, over is not None, t=self._now)
            self._effects.records.append(event)
        if over is not None:
            self._suspect(Suspect(SuspectKind.SILENT, self._now, over))

    def _lose(self, host: HostState, reason: str, silent: bool = False, last_lines: tuple[str, ...] = ()) -> None:
        if host.lost or host.ended:
            return
        host.lost, host.silent = True, silent
        # The best estimate of when its connection broke is the time of its last report.
        at = self._now if host.connected else host.heard
        self._effects.records.append(HostLost(t=self._now, group=host.group, host=host.name, reason=reason))
        if host.unfinished and not self._goes_on_without(host):
            cause = Cause(
                CauseKind.HOST_LOST, reason, host.group, host.name, AGENT, last_lines=last_lines, infrastructure=True
            )
            self._suspect(Suspect(SuspectKind.SILENT, at, cause))
        self._effects.wake |= self._daemons.lost(host.name, reason)
        came = host.registered or not host.asked
        if self._plan.comes_and_goes(host.name):
            self._data_hosts.left(host, self._effects, self._now)
        if host.feed:
            self._feed_lost(host, f"host lost: {reason}", True, recorded=came)
        for name, server in host.servers.items():
            if server.state != LOST:
                gone = Cause(CauseKind.HOST_LOST, f"host lost: {reason}")
                self._server_lost(host, ServerDown(name, gone, True))

    def _goes_on_without(self, host: HostState) -> bool:
        return goes_on_without(self._plan, host.name, {each.name for each in self._hosts.values() if each.lost})

    # --- decisions -----------------------------------------------------------------------------------------------

    def _suspect(self, suspect: Suspect) -> None:
        if self.phase in {Phase.WAITING, Phase.RUNNING}:
            self.phase = Phase.SETTLING
            self._settle_until = self._now + WINDOW
        if self.phase is Phase.SETTLING:
            self._suspects.append(suspect)

    def _look(self) -> Effects:
        """Advances, unless that was done a moment ago: of hundreds of hosts, the next tick does it.

        To look at all hosts at each report of each would cost the square of their number.
        """
        return self._effects if self._now - self._looked < self._look_pause else self._advance()

    def _advance(self) -> Effects:
        self._looked = self._now
        if self.phase is Phase.WAITING:
            self._wait()
        if self.phase is Phase.RUNNING:
            self._watch()
        if self.phase is Phase.SETTLING and self._now >= self._settle_until and not self._may_be_lost():
            self._decide()
        if self.phase is Phase.STOPPING:
            self._await_end()
        if self._services.list_feed(self._now):
            self._effects.wake.update(self._services.readers)
        return self._effects

    def _wait(self) -> None:
        missing = [host for host in self._hosts.values() if not (host.registered or host.lost or host.absent)]
        if not missing:
            self.phase = Phase.RUNNING
            self._started = self._now
            self._effects.records.append(JobStarted(t=self._now))
        elif self._now - self._began > self._plan.start_timeout:
            names = ", ".join(host.place for host in missing)
            reason = f"did not come within {self._plan.start_timeout:g} s; waited for: {names}"
            first = missing[0]
            cause = Cause(CauseKind.HOST_MISSING, reason, first.group, first.name, AGENT, infrastructure=True)
            self._begin_stop(Status.FAILED, cause, self._failure_grace)

    def _watch(self) -> None:
        plan = self._plan
        self._start_groups()
        wanted = plan.completion_groups or tuple(name for world in plan.distributions for name in world.groups)
        complete = [host for host in self._hosts.values() if (not wanted or host.group in wanted) and host.streams]
        left = [host for host in complete if not (host.lost and self._goes_on_without(host))]
        if left and not any(host.unfinished for host in left):
            self._begin_stop(Status.COMPLETED, None, plan.stop_grace)
            return
        for suspect in unfinished_worlds(plan, self._hosts, self._now):
            self._suspect(suspect)
        if (used_up := self._limits.exceeded(self._started, self._now)) is not None:
            self._begin_stop(Status.STOPPED, used_up, plan.stop_grace)
        elif (unready := never_ready(plan, self._hosts, self._now)) is not None:
            self._begin_stop(Status.FAILED, unready, self._failure_grace)
        elif (stall := stalled(complete, plan.stall_after, self._now, self._services.missing())) is not None:
            self._begin_stop(Status.FAILED, stall, self._failure_grace)
        else:
            self._release_idle()
            self._data_hosts.turn(self._effects, self._now)

    def _start_groups(self) -> None:
        for group in startable(self._plan, self._hosts):
            for name in group.hosts:
                self._hosts[name].started = self._now
            self._effects.wake.update(group.hosts)

    def _release_idle(self) -> None:
        for host in self._hosts.values():
            if host.release is not None or host.name == self._plan.leader or not host.idle:
                continue
            if not any(self._hosts[name].unfinished for name in self._peers[host.group]):
                host.release = StopOrder("its programs are done", self._plan.stop_grace, feed=True, leave=True)
                self._effects.wake.add(host.name)

    def _may_be_lost(self) -> bool:
        """Whether a host may be lost, which is not known yet: it may be the cause."""
        return any(host.may_be_lost(self._now) for host in self._hosts.values())

    def _decide(self) -> None:
        first = first_of(self._suspects)
        cause = first.cause if self._apart else cut_off_cause(self._hosts.values(), self._plan.leader, first.cause)
        blame = self._services.blame(cause.last_lines)
        if cause == first.cause:
            cause = with_early_leaver(self._plan, first, {host.name: host.exits for host in self._hosts.values()})
        if first.kind > SuspectKind.SILENT and blame is not None:
            cause = msgspec.structs.replace(blame, then=cause)
        grace = self._plan.stop_grace if first.kind is SuspectKind.PLATFORM else self._failure_grace
        self._begin_stop(Status.FAILED, cause, grace)

    def _begin_stop(self, status: Status, cause: Cause | None, grace: float) -> None:
        self.phase = Phase.STOPPING
        self._outcome = (status, cause)
        reason = str(cause) if cause else "the completion groups are done"
        self._effects.records.append(JobStopping(t=self._now, reason=reason, status=status))
        self._order_stop(grace, False)

    def _order_stop(self, grace: float, feed: bool) -> None:
        cause = self._outcome[1]
        self._stop = StopOrder(str(cause) if cause else "the job is complete", grace, feed)
        self._stop_until = self._now + grace + STOP_MARGIN
        self._effects.wake.update(self._hosts)

    def _await_end(self) -> None:
        assert self._stop is not None
        live = [host for host in self._hosts.values() if host.registered and not host.lost]
        if not self._stop.feed and all(host.programs_ended or not host.streams for host in live):
            self._order_stop(self._stop.grace, True)
        waiting = [host for host in live if not host.ended]
        if waiting and self._now < self._stop_until:
            return
        for host in waiting:
            host.lost = True
            reason = f"did not stop within {self._stop.grace + STOP_MARGIN:g} s"
            self._effects.records.append(HostLost(t=self._now, group=host.group, host=host.name, reason=reason))
        self.phase = Phase.FINISHED
        self.verdict = JobFinished(t=self._now, status=self._outcome[0], cause=self._outcome[1])
        self._effects.records.append(self.verdict)
        self._effects.wake.update(self._hosts)
