"""The supervisor of another host than the leader's, when every host has a supervisor of its own on its own machine.

It prepares, runs and finishes its own host, as the leader's supervisor tells it (see `headrace.hosting.machines`), and
decides nothing about the job. Meanwhile it sends what grows of the host's record, and at the end what the host made.

* Without another attempt to come, a host whose agent has ended is finished at once, so that its machine can be given
  back: a data host that is released early ends before the job. One that comes and goes is ended by its platform.
* A signal is the platform's doing: the host ends, its programs get SIGTERM and `stop_grace`, and the job judges.
* A leader that is lost is waited for as long as another one may take its place, and no longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError
from headrace.hosting.machines.host_record import RecordSender
from headrace.hosting.machines.host_tree import made_by
from headrace.hosting.machines.machine_link import (
    DOUBT_SECONDS,
    SILENCE_SECONDS,
    AgentEnd,
    MachineClient,
    Phase,
)
from headrace.hosting.supervision.cleanup import remove_leftovers, remove_scratch
from headrace.hosting.supervision.helper_processes import is_wanted
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.host_duties import HostDuties
from headrace.hosting.supervision.instances import StopOrders
from headrace.hosting.supervision.leading_host import AT_ONCE_SECONDS, platform_ends
from headrace.hosting.supervision.supervisor import BEFORE, clear
from headrace.instance.launch_plan import LaunchPlan, read_certificates
from headrace.instance.lifeline import ATTEMPT, COORDINATOR_LOST, OF_PLATFORM, StopJob
from headrace.instance.paths import TreePaths
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths, Status
from headrace.runs.run_paths import ENGINE

_log = logging.getLogger(__name__)

AFTER_END = 15.0  # for the agent to end, when the programs of all hosts are over
AGAIN = "restore"  # what is done before every attempt


class FollowingHost(HostDuties):
    """See the module.

    Args:
        paths: the run's directory on this machine.
        plan: the launch plan.
        host: name of this host.
        orders: what signals mean; an infrastructure failure by default.
        collected: the leader takes what the host makes.
        interruptions: how often the run goes on after its platform took its machines away, whatever `retry` says.
    """

    _instances: HostAgents

    def __init__(
        self,
        paths: RunPaths,
        plan: LaunchPlan,
        host: str,
        orders: StopOrders | None = None,
        *,
        collected: bool = True,
        interruptions: int = 0,
    ) -> None:
        self._used = paths.events(ENGINE).exists()  # by attempts of this process or one before it, on this machine
        self._events = EventWriter(paths.events(ENGINE))
        instances = HostAgents(plan, paths, self._events, [plan.host(host)])
        super().__init__(paths, 0, plan, instances, platform_ends(host) if orders is None else orders)
        self._collected = collected
        self._may_go_on = bool(plan.retry.attempts or interruptions)
        self._may_come_again = self._may_go_on or plan.comes_and_goes(host)
        self._me = plan.host(host)
        self._client = MachineClient(
            plan.leader,
            f"{plan.coordinator_address}:{plan.ports.control}",
            read_certificates(self._me.base_dir),
            RecordSender(paths, host),
            lambda: made_by(host, TreePaths(self._me.base_dir).base),
            self._wake_up,
        )
        self._prepared = 0  # attempt for which that was tried last
        self._ready = False  # it worked
        self._begun = 0
        self._agent_killed = False
        self._in_doubt = False  # its agent has lost the coordinator
        self._done: set[str] = set()  # what is done once

    def run(self) -> Status:
        """Does the host's duty to its end.

        Returns:
            Completed when it was done and has come to the leader; InProgress when the platform ends the host and
            another one in its place may take part in another attempt; else Failed.
        """
        self._take_signals()
        done = False
        self._client.start()
        try:
            self._follow()
            done = self._deliver() and not self._wishes and not self._agent_killed
        except Exception as error:  # noqa: BLE001  (the boundary: it is reported, and everything is ended all the same)
            _log.exception("the supervisor of %s failed", self._me.name)
            self._trouble(Cause(CauseKind.ENGINE_FAILED, f"its supervisor failed: {error!r}", infrastructure=True))
            self._end_everything()
            self._running = False
            self._deliver()
        finally:
            self._instances.close()
            self._end_everything()
            remove_leftovers(self._paths)
            self._instances.remove()
            self._client.close()
            self._events.close()
        if self._wishes and self._may_come_again and not self._is_last_order():
            return Status.IN_PROGRESS
        return Status.COMPLETED if done else Status.FAILED

    def _is_last_order(self) -> bool:
        return self._client.order is not None and self._client.order.phase is Phase.DELIVER

    def _follow(self) -> None:
        """Does what the leader orders, until there is nothing more to do."""
        while not self._over():
            order = self._client.order
            if order is not None and order.phase is Phase.PREPARE and order.attempt > self._prepared:
                self._prepare(order.attempt)
            elif order is not None and order.phase is Phase.RUN and self._may_run(order.attempt):
                self._attempt(order.attempt)
                if not self._may_come_again:
                    return
            else:
                self._step()

    def _may_run(self, attempt: int) -> bool:
        return self._ready and self._prepared == attempt and self._begun < attempt

    def _over(self) -> bool:
        """Tells whether there is nothing more to do but to deliver."""
        return bool(self._wishes) or self._is_last_order() or self._leader_lost()

    def _leader_lost(self) -> bool:
        if self._client.order is None or self._may_go_on:  # it may come, or another one in its place
            patience = max(self._plan.start_timeout, SILENCE_SECONDS)
        else:
            patience = DOUBT_SECONDS if self._in_doubt else SILENCE_SECONDS
        return time.monotonic() - self._client.heard > patience

    # --- an attempt ----------------------------------------------------------------------------------------------

    def _prepare(self, attempt: int) -> None:
        """Prepares the host for an attempt, and tells the leader."""
        self._prepared, self._ready = attempt, False
        cause = self._prepared_host(lambda: self._over() or self._superseded(attempt))
        if cause is not None:
            self._trouble(cause)
        elif not (self._over() or self._superseded(attempt)):
            self._ready = True
            self._client.tell(prepared=attempt, trouble=None)

    def _superseded(self, attempt: int) -> bool:
        return self._client.order is not None and self._client.order.attempt > attempt

    def _prepared_host(self, unwanted: Callable[[], bool]) -> Cause | None:
        """Returns why the host cannot be prepared."""
        try:
            if self._used:
                remove_scratch(self._plan.run_id)
                clear(self._instances.hosts, self._plan, self._paths)
            for name, _, message in BEFORE:
                if name in self._done or not is_wanted(self._paths, name):
                    continue
                _log.info("%s", message)
                helper = self._start_helper(name)
                self._until_ended(helper, float("inf"), unwanted)
                if unwanted():
                    return None
                if helper.exit_code != 0:
                    return helper.failure()
                if name != AGAIN:
                    self._done.add(name)
            self._instances.prepare()
        except HeadraceError as error:
            return Cause(CauseKind.INSTANCE_NOT_STARTED, error.message, infrastructure=True)
        return None

    def _attempt(self, attempt: int) -> None:
        """Runs the programs of the host once."""
        self._begun, self._used = attempt, True
        self._broken = None
        self._client.tell(begun=attempt, agent=None)
        failed = self._start_beside()
        if failed is None:
            self._running = True
            self._instances.start({ATTEMPT: str(attempt), OF_PLATFORM: "1"})
            ending = False
            while self._instances.pids or self._orphans():
                self._step()
                if not ending and self._client.order is not None and self._client.order.phase is not Phase.RUN:
                    ending = True
                    self._end_agent()
            self._running = False
            code, how = self._instances.gone[self._me.name]
            self._in_doubt, self._agent_killed = code == COORDINATOR_LOST, code < 0 and not ending
            self._client.tell(agent=AgentEnd(code, how))
        elif failed[1] is not None and not self._wishes:
            self._trouble(failed[1])
        trouble = self._end_beside()
        if trouble is not None:
            self._trouble(trouble)
        self._client.tell(ended=attempt)

    def _end_agent(self) -> None:
        """The attempt is over, as the leader's supervisor says: the agent ends by itself, or not."""
        self._instances.leave()
        self._instances.end_within(0.0 if self._at_once() else AFTER_END + self._plan.stop_grace)

    def _deliver(self) -> bool:
        """Sends what is left. Returns whether the leader has it."""
        hurried = self._at_once()
        self._client.deliver(made=self._collected and not hurried)
        deadline = time.monotonic() + AT_ONCE_SECONDS if hurried else float("inf")
        while not self._client.taken and not self._leader_lost() and time.monotonic() < deadline:
            self._step()
            if self._at_once() and not hurried:
                return self._deliver()
        return self._client.taken and not self._client.failed

    # --- what is different from a supervisor that decides ----------------------------------------------------------

    def _trouble(self, cause: Cause) -> None:
        placed = msgspec.structs.replace(cause, group=self._me.group, host=self._me.name)
        _log.warning("%s", placed)
        self._client.tell(trouble=placed, trouble_in=max(1, self._prepared))

    def _break(self, cause: Cause) -> None:
        self._broken = self._broken or cause
        self._trouble(self._broken)  # the leader stops the job

    def _stop(self, wish: StopJob) -> None:
        _log.warning("%s", wish.reason)
        self._wishes.append(wish)
        self._client.tell(leaving=wish.reason)
        if self._running:
            self._instances.end_within(0.0) if wish.grace == 0 else self._instances.leave()
        elif self._begun < max(1, self._prepared):
            self._trouble(Cause(CauseKind.HOST_LOST, wish.reason, infrastructure=True))

    def _at_once(self) -> bool:
        order = self._client.order
        return super()._at_once() or (order is not None and order.now)
