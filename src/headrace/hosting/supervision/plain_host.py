"""The host of a machine that is its own, such as a pod: one agent with a lifeline, no namespaces, no control groups."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping

from headrace.agent.control.control_transport import ControlServer
from headrace.hosting.supervision.agent_starter import AgentStarter, NoGroups
from headrace.hosting.supervision.attempt_end import AFTER_GRACE, AttemptEnd
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.instances import Outcome
from headrace.hosting.supervision.scratch_dir import remove_scratch
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import AgentGone, StopJob
from headrace.runs import Cause, EventWriter, RunPaths


class PlainHost:
    """See the module, and `Instances`.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the event file of this machine's supervisor.
        host: name of the host.
        server: see `AttemptEnd`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        paths: RunPaths,
        events: EventWriter,
        host: str,
        server: ControlServer | None = None,
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._events = events
        self._me = plan.host(host)
        self._end = AttemptEnd(plan, paths, events, server)
        self._agents: HostAgents | None = None

    @property
    def hosts(self) -> Collection[str]:
        """See `Instances.hosts`."""
        return [self._me.name]

    @property
    def pids(self) -> Collection[int]:
        """See `Instances.pids`."""
        return self._agents.pids if self._agents is not None else ()

    @property
    def others(self) -> Collection[int]:
        """None."""
        return ()

    @property
    def decided(self) -> bool:
        """See `Instances.decided`."""
        return self._end.decided(running=bool(self.pids))

    @property
    def wanted(self) -> dict[str, int]:
        """Hosts of the run that must have an instance now, see `Coordinator.wanted`; none without a coordinator."""
        return self._end.wanted or {}

    @property
    def gone(self) -> tuple[int, str]:
        """How the agent ended in this attempt: exit code (negative: signal) and words."""
        assert self._agents is not None
        return self._agents.gone[self._me.name]

    def prepare(self) -> None:
        """Makes nothing: the machine is there."""

    def start(self, used: Mapping[str, str]) -> None:
        """See `Instances.start`."""
        self._end.begin(used, leads=self._me.name == self._plan.leader)
        self._agents = HostAgents(
            self._paths, self._plan, [self._me], self._events, used, self._end, AgentStarter(), NoGroups()
        )
        self._agents.start()

    def stop(self, command: StopJob) -> None:
        """See `Instances.stop`."""
        self._end.ask(command)

    def explained(self, command: StopJob) -> StopJob:
        """See `Instances.explained`: a signal is all that the machine's platform says."""
        return command

    def agent_gone(self, gone: AgentGone) -> None:
        """Tells the coordinator, which is here, that the agent of a host of another machine has ended."""
        self._end.gone(gone)

    def leave(self) -> None:
        """The platform ends this machine, or the attempt is over elsewhere: the agent ends its programs and leaves."""
        if self._agents is not None:
            self._agents.signal_agents(signal.SIGTERM)
            self._end.end_within(self._plan.stop_grace + AFTER_GRACE)

    def end_within(self, seconds: float) -> None:
        """What is left of the attempt then is killed."""
        self._end.end_within(seconds)

    def ended(self, pid: int, status: int) -> Cause | None:
        """See `Instances.ended`."""
        if self._agents is not None and pid in self._agents.pids:
            self._agents.ended(pid, status)
        return None

    def look_after(self) -> None:
        """See `Instances.look_after`."""
        if self._agents is not None:
            self._agents.look_after()

    def needs_others(self) -> bool:
        """See `Instances.needs_others`: a machine that is lost is replaced by its platform, one by one."""
        return False

    def verdict(self) -> Outcome:
        """See `Instances.verdict`."""
        assert self._agents is not None
        return self._agents.verdict()

    def close(self) -> None:
        """Ends the coordinator: the machine stays."""
        self._end.close()

    def remove(self) -> None:
        """Removes the temporary files of the programs."""
        remove_scratch(self._plan.run_id)
