"""Runs the coordinator on the leader's host: passes it the time and the reports, and carries out its decisions."""

from __future__ import annotations

import asyncio
import time

from headrace.agent.control.control_messages import Orders, Report
from headrace.agent.control.control_transport import ControlServer
from headrace.agent.coordinator.budget_limits import NOTHING, Used
from headrace.agent.coordinator.effects import Effects
from headrace.agent.coordinator.link_state import has_carrier
from headrace.agent.coordinator.state_machine import Coordinator
from headrace.instance.certificates import Certificates
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import AgentGone, Command, StopJob
from headrace.runs import Cause, CauseKind, EventWriter, Status
from headrace.runs.events import JobFinished

TICK = 0.1
LEAVE_SECONDS = 1.0  # for the other agents to disconnect


class Leader:
    """The coordinator with a clock, a port and an event file.

    Args:
        plan: the launch plan.
        events: the event file of the leader's host.
        interface: network interface to the other hosts.
        tls, attempt: see `ControlServer`.
        used: see `Coordinator`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        events: EventWriter,
        interface: str,
        tls: Certificates,
        used: Used = NOTHING,
        attempt: int = 1,
    ) -> None:
        self._plan = plan
        self._events = events
        self._interface = interface
        self._offset = time.time() - time.monotonic()
        self._connected: set[str] = set()
        self._coordinator = Coordinator(plan, self._now(), used)
        self._server = ControlServer(self, tls, attempt)

    @property
    def verdict(self) -> JobFinished | None:
        """How the job ended, None while it has not."""
        return self._coordinator.verdict

    async def start(self) -> None:
        """Opens the control port. Raises OSError."""
        await self._server.start(f"{self._plan.host(self._plan.leader).address}:{self._plan.ports.control}")

    async def run(self) -> None:
        """Ticks until cancelled."""
        while True:
            self._do(self._coordinator.tick(self._now(), has_carrier(self._interface)))
            await asyncio.sleep(TICK)

    async def close(self) -> None:
        """Waits for the other agents to disconnect, then closes the port."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._connected - {self._plan.leader} and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self._server.stop()

    def command(self, command: Command) -> None:
        """Carries out a command of the engine; see `ControlHandler`."""
        match command:
            case StopJob(kind, reason, failed, grace, infrastructure):
                status = Status.FAILED if failed else Status.STOPPED
                self.stop(status, Cause(CauseKind(kind), reason, infrastructure=infrastructure), grace)
            case AgentGone(host, reason, heard_nothing):
                self._do(self._coordinator.host_gone(host, reason, self._now(), heard_nothing))

    def stop(self, status: Status, cause: Cause, grace: float | None = None) -> None:
        """Stops the job."""
        self._do(self._coordinator.stop_requested(status, cause, grace, self._now()))

    # --- called by the control server ----------------------------------------------------------------------------

    def connected(self, host: str) -> None:
        """See `ControlHandler`."""
        self._connected.add(host)
        self._do(self._coordinator.connected(host, self._now()))

    def disconnected(self, host: str) -> None:
        """See `ControlHandler`."""
        self._connected.discard(host)
        self._do(self._coordinator.disconnected(host, self._now()))

    def receive(self, host: str, report: Report) -> None:
        """See `ControlHandler`."""
        self._do(self._coordinator.report(host, report, self._now()))

    def orders(self, host: str) -> Orders:
        """See `ControlHandler`."""
        return self._coordinator.orders(host)

    def _do(self, effects: Effects) -> None:
        for event in effects.records:
            self._events.write(event)
        for host in effects.wake:
            self._server.wake(host)

    def _now(self) -> float:
        return time.monotonic() + self._offset
