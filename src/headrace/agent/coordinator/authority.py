"""The one authority of an attempt, in the thread of the leader's port: the coordinator with clock and event file.

The supervisor asks it for the verdict and tells it what it sees of agents; both may be done in any thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from headrace.agent.control.control_messages import Orders, Report
from headrace.agent.control.control_transport import ControlServer
from headrace.agent.coordinator.budget_limits import NOTHING, Used
from headrace.agent.coordinator.host_state import Effects
from headrace.agent.coordinator.state_machine import Coordinator
from headrace.instance.launch_plan import Certificates, LaunchPlan
from headrace.instance.lifeline import AgentGone, Command, StopJob
from headrace.runs import Cause, CauseKind, EventWriter, Status
from headrace.runs.events import HostLost, HostRegistered, HostReleased, JobFinished

TICK = 0.1
LEAVE_SECONDS = 8.0  # for the agents to get the verdict and disconnect: as long as they wait for it


class Authority:
    """See the module.

    Args:
        plan: the launch plan.
        events: the event file of the supervisor.
        tls: certificates of the leader's host.
        used: see `Coordinator`.
        attempt: which attempt of the job this is, from 1.
        apart: it does not share the fate of the leader's host: all hosts are of this machine.
        server: that of the run, which is open; by default one for this attempt alone, which takes commands, too.

    Attributes:
        registered, released, lost: hosts that have come, were released, and were given up in this attempt.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        events: EventWriter,
        tls: Certificates,
        used: Used = NOTHING,
        attempt: int = 1,
        *,
        apart: bool = False,
        server: ControlServer | None = None,
    ) -> None:
        self.registered: set[str] = set()
        self.released: set[str] = set()
        self.lost: set[str] = set()
        self._plan = plan
        self._events = events
        self._offset = time.time() - time.monotonic()
        self._connected: set[str] = set()
        self._lock = threading.RLock()
        self._coordinator = Coordinator(plan, self._now(), used, apart=apart)
        self._attempt = attempt
        self._own_server = server is None
        self._server = server or ControlServer(tls, self.command)
        self._work: Future[None] | None = None
        self._over = False

    @property
    def verdict(self) -> JobFinished | None:
        """How the attempt ended, None while it has not. Raises RuntimeError if the coordinator has failed."""
        if self._work is not None and self._work.done() and (error := self._work.exception()) is not None:
            raise RuntimeError("the coordinator failed") from error
        with self._lock:  # its event is written before anybody acts on it
            return self._coordinator.verdict

    @property
    def wanted(self) -> dict[str, int]:
        """See `Coordinator.wanted`."""
        with self._lock:
            return self._coordinator.wanted

    def start(self, listener: socket.socket | None = None) -> None:
        """Begins, at the control port of the leader's host by default. Raises HeadraceError."""
        if self._own_server:
            self._server.start(listener or f"{self._plan.coordinator_address}:{self._plan.ports.control}")
        self._work = self._server.begin(self._attempt, self, self._run())

    async def _run(self) -> None:
        while not self._over:
            self._do(self._coordinator.tick)
            await asyncio.sleep(TICK)
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._connected - self.lost and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Waits for the agents to disconnect."""
        self._over = True
        if self._work is not None:
            wait([self._work])
        if self._own_server:
            self._server.close()

    def command(self, command: Command) -> None:
        """Carries out a command of the engine."""
        match command:
            case StopJob(kind, reason, failed, grace, infrastructure):
                status = Status.FAILED if failed else Status.STOPPED
                cause = Cause(CauseKind(kind), reason, infrastructure=infrastructure)
                self._do(lambda now: self._coordinator.stop_requested(status, cause, grace, now))
            case AgentGone(host, reason, heard_nothing, last_lines):
                self._do(lambda now: self._coordinator.host_gone(host, reason, now, heard_nothing, last_lines))

    # --- called by the control server ----------------------------------------------------------------------------

    def connected(self, host: str) -> None:
        """See `Agents`."""
        self._connected.add(host)
        self._do(lambda now: self._coordinator.connected(host, now))

    def disconnected(self, host: str) -> None:
        """See `Agents`."""
        self._connected.discard(host)
        self._do(lambda now: self._coordinator.disconnected(host, now))

    def receive(self, host: str, report: Report) -> None:
        """See `Agents`."""
        self._do(lambda now: self._coordinator.report(host, report, now))

    def orders(self, host: str) -> Orders:
        """See `Agents`."""
        with self._lock:
            return self._coordinator.orders(host)

    def _do(self, happens: Callable[[float], Effects]) -> None:
        with self._lock:
            effects = happens(self._now())
            for event in effects.records:
                self._events.write(event)
                match event:
                    case HostRegistered():
                        self.registered.add(event.host)
                    case HostReleased():
                        self.released.add(event.host)
                    case HostLost():
                        self.lost.add(event.host)
            for hosts in (self.registered, self.released, self.lost, self._connected):
                hosts.difference_update(effects.renewed)
        self._server.forget(effects.renewed)
        self._server.wake(effects.wake)

    def _now(self) -> float:
        return time.monotonic() + self._offset
