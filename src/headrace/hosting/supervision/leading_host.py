"""The supervisor of the leader's host, when every host of the run has a supervisor of its own on its own machine.

It is the `Supervisor` of its own host, and the authority for all: only it writes the run's statuses and its last word.
It tells the others which attempt begins and when all is over (see `headrace.hosting.machines`), and takes in what they
write and make, so that one record and one artefact of each kind come of all hosts.

* An attempt begins when every host is prepared. One whose supervisor has not come, or is silent, for `start_timeout`
  fails the attempt: that is a failure of the infrastructure.
* When the programs are over, the others bring their last checkpoints to safety, and at the end send what is left. One
  that is silent is not waited for; an event says what is missing.
* A signal is the platform's doing. When the record is stored and `retry` allows another attempt, this process leaves
  the run to the one that will take its place; else the run has failed.
* A person stops the job with `python -m headrace.agent.ask stop`, at any time.
* One that takes the place of a leader that was lost begins the attempt after the last one.
* Of hosts that come and go it has the platform make and end the machines, as the coordinator wants them. One that comes
  while the attempt runs is prepared and takes part; what goes wrong there ends no attempt.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from headrace.agent.control.control_transport import ControlServer
from headrace.hosting.helpers.store_record import NAME as STORE_RECORD
from headrace.hosting.machines.host_record import Earlier
from headrace.hosting.machines.machine_link import LeaderOrder, OtherHost, OtherHosts, Phase
from headrace.hosting.supervision.helper_processes import is_wanted, store_rest
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.host_duties import LAST_SYNC_SECONDS
from headrace.hosting.supervision.instances import Outcome, StopOrders
from headrace.hosting.supervision.supervisor import COLLECT_SECONDS, Next, Supervisor
from headrace.instance.launch_plan import LaunchPlan, read_certificates
from headrace.instance.lifeline import COORDINATOR_LOST, AgentGone, Command, StopJob
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status
from headrace.runs.events import HostLost, HostNotCollected

_log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 10.0  # for the end of the record to be stored, when another process goes on with it
AT_ONCE_SECONDS = 3.0  # for the others to send the end of their records, when a person wants the job to stop at once
SIGNALS_SECONDS = 15.0  # between the signals to the machines of a run, when its platform takes all of them away
KEEP_AGAIN_SECONDS = 10.0  # before the platform is asked again that has not done what it was asked for
Keep = Callable[[str, bool], None]
"""Has a platform keep a machine for a host, or none. Raises OSError."""
BEGUN = b""
"""Of an order that `OtherHosts.order` signs."""


def platform_ends(host: str) -> StopOrders:
    """Returns what signals mean of a platform that ends a host: an infrastructure failure, never a person's stop."""

    def order(number: int) -> Callable[[bool], StopJob]:
        words = f"the platform ends the host {host} ({signal.Signals(number).name})"
        kind = CauseKind.HOST_LOST.value
        return lambda again: StopJob(kind, words, failed=True, grace=0.0 if again else None, infrastructure=True)

    return {number: order(number) for number in (signal.SIGTERM, signal.SIGINT)}


class LeadingHost(Supervisor):
    """See the module.

    Args:
        paths: the run's directory on this machine.
        plan: the launch plan.
        earlier: what happened before this process.
        orders: what signals mean; an infrastructure failure by default.
        interruptions: how often the run goes on after its platform took its machines away, whatever `retry` says.
        anew: another attempt follows what happened before this process, whatever `retry` says.
        keep: for hosts that come and go; None without any.
    """

    _instances: HostAgents

    def __init__(
        self,
        paths: RunPaths,
        plan: LaunchPlan,
        earlier: Earlier,
        orders: StopOrders | None = None,
        interruptions: int = 0,
        *,
        anew: bool = False,
        keep: Keep | None = None,
    ) -> None:
        self._commands: deque[Command] = deque()
        self._others = OtherHosts(plan, paths, self._wake_up)
        self._server = ControlServer(
            read_certificates(plan.host(plan.leader).base_dir), self._commanded, self._others.answer
        )

        def open_host(plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> HostAgents:
            return HostAgents(plan, paths, events, [plan.host(plan.leader)], self._server)

        super().__init__(paths, 0, open_host, platform_ends(plan.leader) if orders is None else orders)
        self._earlier = earlier
        self._interruptions = interruptions
        self._anew = anew
        self._ran: dict[str, bytes] = {}  # the supervisors with which the attempt has begun
        self._told_gone: set[str] = set()
        self._prepared_since = time.monotonic()
        self._keep = keep
        # of hosts that come and go: whether the platform keeps a machine, and which time asked for has begun
        later = {} if earlier.begun else {host: not plan.comes_later(host) for host in self._others.hosts}
        self._kept: dict[str, bool] = later
        self._keep_at = 0.0
        self._times: dict[str, int] = {}

    def _commanded(self, command: Command) -> None:
        self._commands.append(command)
        self._wake_up()

    def run(self) -> Status:
        """See `Supervisor.run`."""
        try:
            status = super().run()
            if status is Status.IN_PROGRESS:
                store_rest(self._paths, LAST_WORDS_SECONDS, goes_on=True)
            return status
        finally:
            self._server.close()

    def _job(self) -> Outcome:
        self._server.start(f"{self._plan.coordinator_address}:{self._plan.ports.control}")
        if not self._earlier.begun:
            self._order(Phase.PREPARE)
        elif not self._anew and self._number > max(self._plan.retry.attempts, self._interruptions):
            return self._after((Status.FAILED, self._leader_was_lost()))
        else:
            self._next_attempt(str(self._leader_was_lost()))
        return super()._job()

    def _next_attempt(self, after: str) -> None:
        super()._next_attempt(after)
        for host in self._others.hosts.values():
            host.in_doubt = False
        self._prepared_since = time.monotonic()
        self._order(Phase.PREPARE)

    def _one_attempt(self) -> Outcome:
        outcome = self._until_prepared()
        if outcome is None:
            outcome = super()._one_attempt()
        return self._attempt_over(outcome)

    def _next(self, outcome: Outcome) -> Next:
        status, cause = outcome
        step = super()._next(outcome)
        lost = status is Status.FAILED and cause is not None and cause.infrastructure
        if self._interruptions and lost and step is Next.END:  # perhaps one of the others was first
            began = time.monotonic()
            deadline = began + SIGNALS_SECONDS
            while not self._wishes and time.monotonic() < deadline and not self._stays(cause, began):
                self._step()
            step = super()._next(outcome)
        return step

    def _stays(self, cause: Cause | None, since: float) -> bool:
        """Tells whether the platform leaves the machine where it began: its supervisor speaks, and not of an end."""
        host = None if cause is None else self._others.hosts.get(cause.host)
        if host is None:  # this machine, whose signals come to this process
            return True
        return host.heard > since and (host.report is None or not host.report.leaving)

    def _needs_others(self) -> bool:
        """Whether this machine is being taken away, and another one can go on with the record that is stored."""
        return any(wish.infrastructure for wish in self._wishes) and is_wanted(self._paths, STORE_RECORD)

    def _start_agents(self, variables: dict[str, str]) -> None:
        hosts = self._others.hosts.values()
        self._ran = {host.name: host.report.process for host in hosts if host.report is not None}
        self._told_gone.clear()
        self._times.clear()
        self._order(Phase.RUN)
        super()._start_agents(variables)

    def _after(self, outcome: Outcome) -> Outcome:
        self._order(Phase.DELIVER)
        limit = self._patience(COLLECT_SECONDS)
        self._until(self._has_delivered, limit, lambda: self._order(Phase.DELIVER))
        for host in self._others.hosts.values():
            if host.report is not None and not host.taken:
                late = f"after {limit:g} s it was not all there"
                reason = "its supervisor is silent" if host.silent else "stopped at once" if self._at_once() else late
                event = HostNotCollected(t=time.time(), group=host.group, host=host.name, reason=reason)
                self._events.write(event)
        return super()._after(outcome)

    def _has_delivered(self, host: OtherHost) -> bool:
        if host.made and not host.taken and self._trained:
            self._uploading()  # it may take long
        return host.taken

    # --- the other hosts -----------------------------------------------------------------------------------------

    def _order(self, phase: Phase) -> None:
        order = LeaderOrder(BEGUN, phase, self._number, self._at_once())
        self._others.order(dict.fromkeys(self._others.hosts, order))

    def _until_prepared(self) -> Outcome | None:
        """Waits until every host is prepared. Returns how the attempt ends if that is not to be."""
        while True:
            if self._wishes:
                return self._wished()
            used_up = self._spent.cause("preparing the hosts")
            if used_up is not None:
                return Status.STOPPED, used_up
            self._keep_machines(None)
            hosts = [host for host in self._others.hosts.values() if not self._plan.comes_later(host.name)]
            begun = max((host.report.begun for host in hosts if host.report is not None), default=0)
            if begun >= self._number:  # the leader before this process could not store that it had begun it
                self._number = begun
                if begun > max(self._plan.retry.attempts, self._interruptions):
                    return Status.FAILED, self._leader_was_lost()
                self._next_attempt(str(self._leader_was_lost()))
            causes = [cause for host in hosts if (cause := self._hindrance(host)) is not None]
            if causes:
                return Status.FAILED, causes[0]
            if all(self._is_prepared(host) for host in hosts):
                return None
            self._step()

    def _leader_was_lost(self) -> Cause:
        host, words = self._plan.host(self._plan.leader), f"its machine was lost in attempt {self._number}"
        return Cause(CauseKind.HOST_LOST, words, host.group, host.name, infrastructure=True)

    def _is_prepared(self, host: OtherHost) -> bool:
        return not host.silent and host.report is not None and host.report.prepared == self._number

    def _hindrance(self, host: OtherHost) -> Cause | None:
        """Returns why a host cannot be prepared; None if it may be some time."""
        waited = time.monotonic() - max(host.heard, self._prepared_since)
        if host.silent:
            if waited < self._plan.start_timeout:
                return None
            words = f"its supervisor did not come within {self._plan.start_timeout:g} s"
            return Cause(CauseKind.HOST_MISSING, words, host.group, host.name, infrastructure=True)
        return host.trouble_in(self._number)

    def _attempt_over(self, outcome: Outcome) -> Outcome:
        """Waits until the attempt is over on the other hosts, too. Returns how it ended."""
        lost = {event.host for event in Run(self._paths).events() if isinstance(event, HostLost)}
        for host in self._others.hosts.values():
            host.in_doubt = host.name in lost
        self._order(Phase.END)
        limit = self._plan.stop_grace + self._patience(LAST_SYNC_SECONDS)
        self._until(self._is_over, limit, lambda: self._order(Phase.END))
        for host in self._others.hosts.values():
            if self._plan.comes_and_goes(host.name):
                continue
            if (trouble := host.trouble_in(self._number)) is not None:
                return outcome if outcome[0] is Status.FAILED else (Status.FAILED, trouble)
        return outcome

    def _is_over(self, host: OtherHost) -> bool:
        report = host.report
        return report is None or host.taken or report.begun < self._number or report.ended >= self._number

    def _until(self, done: Callable[[OtherHost], bool], seconds: float, again: Callable[[], None]) -> None:
        """Waits until that is so for every host that is not silent; when a person wants it at once, not for long."""
        deadline = time.monotonic() + seconds
        hurried = self._at_once()
        if hurried:
            deadline = time.monotonic() + AT_ONCE_SECONDS
        while time.monotonic() < deadline:
            if all(done(host) or host.silent for host in self._others.hosts.values()):
                return
            self._step()
            if self._at_once() and not hurried:
                hurried = True
                again()
                deadline = time.monotonic() + AT_ONCE_SECONDS

    def _step(self) -> None:
        super()._step()
        while self._commands:
            if isinstance(command := self._commands.popleft(), StopJob):
                self._stop(command)
        if self._running:
            wanted = self._instances.wanted
            self._keep_machines(wanted)
            for host in self._others.hosts.values():
                if self._plan.comes_and_goes(host.name) and wanted.get(host.name, 0) > self._times.get(host.name, 0):
                    self._bring(host, wanted[host.name])
                else:
                    self._look_at(host)

    def _keep_machines(self, wanted: Mapping[str, int] | None) -> None:
        """Has the platform keep a machine for each host that is wanted, and for no other one that comes and goes.

        Args:
            wanted: hosts, by the coordinator; None before it begins: those that are there from the start.
        """
        if self._keep is None or time.monotonic() < self._keep_at:
            return
        for name in self._others.hosts:
            if not self._plan.comes_and_goes(name):
                continue
            kept = not self._plan.comes_later(name) if wanted is None else name in wanted
            if self._kept.get(name) is kept:
                continue
            try:
                self._keep(name, kept)
            except OSError as error:
                self._keep_at = time.monotonic() + KEEP_AGAIN_SECONDS
                what = "made" if kept else "ended"
                _log.warning("the machine of %s is not %s, it is tried again: %s", name, what, error)
                return
            self._kept[name] = kept

    def _bring(self, host: OtherHost, time_asked: int) -> None:
        """Has a host take part that was asked for while the attempt runs, once its supervisor has come."""
        report = host.report
        if report is None or host.silent or report.process == self._ran.get(host.name):
            return
        order = LeaderOrder(BEGUN, Phase.PREPARE, self._number, self._at_once())
        trouble = host.trouble_in(self._number)
        if trouble is not None or self._is_prepared(host):
            self._times[host.name] = time_asked
            self._ran[host.name] = report.process
        if trouble is not None:
            self._gone(AgentGone(host.name, str(trouble)))
        elif self._is_prepared(host):
            self._told_gone.discard(host.name)
            self._others.order({host.name: msgspec.structs.replace(order, phase=Phase.RUN)})
        elif host.order is None or host.order.phase is not Phase.PREPARE:
            self._others.order({host.name: order})

    def _look_at(self, host: OtherHost) -> None:
        """Tells the coordinator what the supervisor of a host knows before its agent's silence does."""
        report = host.report
        if report is None or host.name in self._told_gone:
            return
        if report.process != self._ran.get(host.name):
            self._gone(AgentGone(host.name, "its machine was replaced"))
        elif report.begun == self._number and report.agent is not None:
            self._gone(AgentGone(host.name, report.agent.how, report.agent.code == COORDINATOR_LOST))
        elif (trouble := host.trouble_in(self._number)) is not None:
            if self._plan.comes_and_goes(host.name):
                self._gone(AgentGone(host.name, str(trouble)))
            elif self._broken is None:
                self._break(trouble)

    def _gone(self, gone: AgentGone) -> None:
        self._told_gone.add(gone.host)
        self._instances.agent_gone(gone)
