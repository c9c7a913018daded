"""How an attempt ends, as the supervisor of its leader sees it: one class for every engine.

The verdict is the coordinator's, which this process runs meanwhile (see `headrace.agent.coordinator.authority`). What
the coordinator was asked for counts when it gives none. Processes of the attempt that are still there when their time
is over are killed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from headrace.agent.control.control_transport import ControlServer
from headrace.agent.coordinator.authority import Authority
from headrace.agent.coordinator.budget_limits import used_before
from headrace.hosting.supervision.instances import Outcome, cause_of
from headrace.instance.launch_plan import LaunchPlan, read_certificates
from headrace.instance.lifeline import ATTEMPT, AgentGone, StopJob
from headrace.runs import Cause, EventWriter, RunPaths, Status
from headrace.runs.events import JobFinished

AFTER_GRACE = 12.0  # for all agents to go, beyond the grace of a stop
UNDECIDED_SECONDS = 15.0  # for the verdict, when no agent is left that the supervisor has started
NEVER = float("inf")


class AttemptEnd:
    """See the module. One object for all attempts of a run.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the event file of the supervisor.
        server: that of the run, when it is open in all of its parts; else each attempt has its own.

    Attributes:
        asked: the first request to stop that the coordinator got in this attempt.
        kill_at: when what is left of the attempt is killed, on time.monotonic.
    """

    def __init__(
        self, plan: LaunchPlan, paths: RunPaths, events: EventWriter, server: ControlServer | None = None
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._events = events
        self._server = server
        self._authority: Authority | None = None
        self._none_left = NEVER
        self.asked: StopJob | None = None
        self.kill_at = NEVER

    def begin(
        self,
        used: Mapping[str, str],
        listener: socket.socket | None = None,
        *,
        leads: bool = True,
        apart: bool = False,
    ) -> None:
        """An attempt begins, and with it its coordinator, unless it is on another machine.

        Args:
            used: what is used up already of time and money, and the attempt's number; see `lifeline`.
            listener: a socket that listens for agents; by default one is opened at the coordinator's address.
            leads: the coordinator is here.
            apart: see `Authority`.

        Raises:
            HeadraceError: its port cannot be opened.
        """
        self.close()
        self.asked, self.kill_at, self._none_left = None, NEVER, NEVER
        if leads:
            tls = read_certificates(self._paths.host(self._plan.leader))
            number = int(used.get(ATTEMPT) or 1)
            authority = Authority(
                self._plan, self._events, tls, used_before(used), number, apart=apart, server=self._server
            )
            authority.start(listener)
            self._authority = authority

    def close(self) -> None:
        """The attempt is over: its coordinator ends."""
        authority, self._authority = self._authority, None
        if authority is not None:
            authority.close()

    @property
    def verdict(self) -> JobFinished | None:
        """The coordinator's; None while it has given none."""
        return None if self._authority is None else self._authority.verdict

    @property
    def wanted(self) -> dict[str, int] | None:
        """Hosts that must have an instance now, see `Coordinator.wanted`; None where the coordinator is not."""
        return None if self._authority is None else self._authority.wanted

    @property
    def registered(self) -> set[str]:
        """Hosts from which the coordinator has heard in this attempt."""
        return set() if self._authority is None else self._authority.registered

    @property
    def released(self) -> set[str]:
        """Hosts that were released in this attempt."""
        return set() if self._authority is None else self._authority.released

    @property
    def lost(self) -> set[str]:
        """Hosts that the coordinator has given up in this attempt."""
        return set() if self._authority is None else self._authority.lost

    def decided(self, *, running: bool) -> bool:
        """Tells whether the verdict is known, or will never be.

        Args:
            running: processes of the attempt have not ended.
        """
        if self._authority is None or self._authority.verdict is not None:
            return True
        if running:
            self._none_left = NEVER
        elif self._none_left == NEVER:
            self._none_left = time.monotonic()
        return not running and time.monotonic() > self._none_left + UNDECIDED_SECONDS

    def end_within(self, seconds: float) -> None:
        """Sets when the attempt must have ended at last; an earlier moment stays."""
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def ask(self, command: StopJob) -> bool:
        """Asks the coordinator to stop the job. Returns whether it is the first time."""
        self.end_within((self._plan.stop_grace if command.grace is None else command.grace) + AFTER_GRACE)
        first = self.asked is None
        self.asked = self.asked or command
        if self._authority is not None:
            self._authority.command(command)
        return first

    def gone(self, gone: AgentGone) -> None:
        """Tells the coordinator that the agent of a host has ended."""
        if self._authority is not None:
            self._authority.command(gone)

    def outcome(self, otherwise: Cause) -> Outcome:
        """Returns how the attempt has ended: by the verdict, else as it was asked for, else failed.

        Args:
            otherwise: why it failed, when there is neither.
        """
        verdict = self.verdict
        if verdict is not None:
            return verdict.status, verdict.cause
        if self.asked is not None:
            return (Status.FAILED if self.asked.failed else Status.STOPPED), cause_of(self.asked)
        return Status.FAILED, otherwise
