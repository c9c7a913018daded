"""The one authority of an attempt, a thread of the supervisor: the coordinator with clock, port and event file.

The supervisor asks it for the verdict and tells it what it sees of agents; both may be done in any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from headrace.agent.control.control_messages import Orders, Report
from headrace.agent.control.control_transport import ControlServer, start_serving
from headrace.agent.coordinator.budget_limits import NOTHING, Used
from headrace.agent.coordinator.host_state import Effects
from headrace.agent.coordinator.state_machine import Coordinator
from headrace.instance.certificates import Certificates
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import AgentGone, Command, StopJob
from headrace.runs import Cause, CauseKind, EventWriter, Status
from headrace.runs.events import HostLost, HostRegistered, HostReleased, JobFinished

_log = logging.getLogger(__name__)

TICK = 0.1
LEAVE_SECONDS = 1.0  # for the agents to disconnect


class Authority:
    """See the module.

    Args:
        plan: the launch plan.
        events: the event file of the supervisor.
        tls, attempt: see `ControlServer`.
        used: see `Coordinator`.
        apart: it does not share the fate of the leader's host: all hosts are of this machine.

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
        self._server = ControlServer(self, tls, attempt)
        self._thread: threading.Thread | None = None
        self._over = False
        self._failure: Exception | None = None

    @property
    def verdict(self) -> JobFinished | None:
        """How the attempt ended, None while it has not. Raises RuntimeError if the thread has failed."""
        if self._failure is not None:
            raise RuntimeError("the coordinator failed") from self._failure
        with self._lock:  # its event is written before anybody acts on it
            return self._coordinator.verdict

    def start(self, listener: socket.socket | None = None) -> None:
        """Opens the control port, by default that of the leader's host. Raises HeadraceError."""
        self._thread = start_serving("headrace-coordinator", lambda opened: self._run(listener, opened))

    async def _run(self, listener: socket.socket | None, opened: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.start(listener or f"{self._plan.coordinator_address}:{self._plan.ports.control}")
        opened()
        try:
            while not self._over:
                self._do(self._coordinator.tick)
                await asyncio.sleep(TICK)
            deadline = time.monotonic() + LEAVE_SECONDS
            while self._connected and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        except Exception as error:  # noqa: BLE001  (the boundary of the thread: whoever asks for the verdict is told)
            _log.exception("the coordinator failed")
            self._failure = error
        finally:
            await self._server.stop()

    def close(self) -> None:
        """Waits for the agents to disconnect, then closes the port."""
        self._over = True
        if self._thread is not None:
            self._thread.join()

    def command(self, command: Command) -> None:
        """Carries out a command of the engine; see `ControlHandler`."""
        match command:
            case StopJob(kind, reason, failed, grace, infrastructure):
                status = Status.FAILED if failed else Status.STOPPED
                cause = Cause(CauseKind(kind), reason, infrastructure=infrastructure)
                self._do(lambda now: self._coordinator.stop_requested(status, cause, grace, now))
            case AgentGone(host, reason, heard_nothing, last_lines):
                self._do(lambda now: self._coordinator.host_gone(host, reason, now, heard_nothing, last_lines))

    # --- called by the control server ----------------------------------------------------------------------------

    def connected(self, host: str) -> None:
        """See `ControlHandler`."""
        self._connected.add(host)
        self._do(lambda now: self._coordinator.connected(host, now))

    def disconnected(self, host: str) -> None:
        """See `ControlHandler`."""
        self._connected.discard(host)
        self._do(lambda now: self._coordinator.disconnected(host, now))

    def receive(self, host: str, report: Report) -> None:
        """See `ControlHandler`."""
        self._do(lambda now: self._coordinator.report(host, report, now))

    def orders(self, host: str) -> Orders:
        """See `ControlHandler`."""
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
        with contextlib.suppress(RuntimeError):  # the thread has ended: nobody is connected
            for host in effects.wake:
                self._loop.call_soon_threadsafe(self._server.wake, host)

    def _now(self) -> float:
        return time.monotonic() + self._offset
