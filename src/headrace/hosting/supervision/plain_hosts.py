"""The hosts of a machine that is theirs alone: one agent with a lifeline a host, no namespaces and no control groups.

A provider (see `instances`) for engines whose platform gives a machine a host, such as a pod. It has all hosts of the
plan, or some.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping

from headrace.hosting.supervision.agent_starter import AgentStarter, NoGroups
from headrace.hosting.supervision.attempt_end import AFTER_GRACE, AttemptEnd
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.instances import Outcome
from headrace.hosting.supervision.scratch_dir import remove_scratch
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import AgentGone, StopJob
from headrace.runs import Cause, EventWriter, Run, RunPaths


class PlainHosts:
    """See the module, and `MachineInstances`.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the event file of this machine's supervisor.
        hosts: names of the hosts; all by default.
    """

    def __init__(
        self, plan: LaunchPlan, paths: RunPaths, events: EventWriter, hosts: Collection[str] | None = None
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._events = events
        self._here = [host for host in plan.hosts if hosts is None or host.name in hosts]
        self._leads = any(host.name == plan.leader for host in self._here)
        self._end = AttemptEnd(plan, paths, events)
        self._agents: HostAgents | None = None

    @property
    def hosts(self) -> Collection[str]:
        """See `Instances.hosts`."""
        return [host.name for host in self._here]

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
    def gone(self) -> Mapping[str, tuple[int, str]]:
        """See `MachineInstances.gone`."""
        return {} if self._agents is None else self._agents.gone

    def prepare(self) -> None:
        """Makes nothing: the machine is there."""

    def start(self, used: Mapping[str, str]) -> None:
        """See `Instances.start`."""
        self._end.begin(used, leads=self._leads)
        self._agents = HostAgents(
            self._paths, self._plan, self._here, self._events, used, self._end, AgentStarter(), NoGroups()
        )
        self._agents.start()

    def stop(self, command: StopJob) -> None:
        """See `Instances.stop`."""
        self._end.ask(command)

    def explained(self, command: StopJob) -> StopJob:
        """See `Instances.explained`: a signal is all that the machine's platform says."""
        return command

    def agent_gone(self, gone: AgentGone) -> None:
        """See `MachineInstances.agent_gone`."""
        self._end.gone(gone)

    def leave(self) -> None:
        """See `MachineInstances.leave`."""
        if self._agents is not None:
            self._agents.signal_agents(signal.SIGTERM)
            self._end.end_within(self._plan.stop_grace + AFTER_GRACE)

    def end_within(self, seconds: float) -> None:
        """See `MachineInstances.end_within`."""
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


def open_instances(
    plan: LaunchPlan, paths: RunPaths, events: EventWriter, hosts: Collection[str] | None = None
) -> PlainHosts:
    """See `Provider.open_instances` and `MachineProvider.open_instances`."""
    return PlainHosts(plan, paths, events, hosts)


def clean_up(run: Run) -> None:
    """Does nothing: what a supervisor leaves when it is killed, its platform ends with the machine."""
