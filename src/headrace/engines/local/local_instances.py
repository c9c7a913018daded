"""The instances of the local engine: this machine plays all hosts, each with an agent of its own.

The supervisor calls it, see `Instances` and `Provider` in `hosting.supervision.instances`. Behind it are the starter,
which makes namespaces and their network, the control groups, and the agents of an attempt. What it imports, the
supervisor imports: nothing of the submitting side.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Collection, Mapping

from headrace.engines.local.isolation.start_agents import Starter, open_starter
from headrace.engines.local.limits.cgroups import RECORD, REMOVE_SECONDS, RunGroups, find_places, sweep
from headrace.hosting.supervision.attempt_end import AttemptEnd
from headrace.hosting.supervision.cleanup import is_of_run
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.instances import Outcome
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import MACHINE_PYTHON, StopJob
from headrace.processes.process_table import is_running, look, send
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths
from headrace.runs.events import HostStarted

_log = logging.getLogger(__name__)

AGENTS_SECONDS = 15.0  # for the agents to end, when the supervisor was killed


class LocalInstances:
    """See the module.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the engine's event file.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> None:
        self._plan = plan
        self._paths = paths
        self._events = events
        self._starter = Starter()
        self._prepared = False
        self._groups = RunGroups(plan.run_id, find_places(), paths.root / RECORD)
        self._end = AttemptEnd(plan, paths, events)
        self._agents: HostAgents | None = None

    @property
    def hosts(self) -> Collection[str]:
        """See `Instances.hosts`."""
        return [host.name for host in self._plan.hosts]

    @property
    def pids(self) -> Collection[int]:
        """See `Instances.pids`."""
        return self._agents.pids if self._agents is not None else ()

    @property
    def others(self) -> Collection[int]:
        """See `Instances.others`."""
        return self._starter.own()

    @property
    def decided(self) -> bool:
        """See `Instances.decided`."""
        return self._end.decided(running=bool(self.pids))

    def prepare(self) -> None:
        """See `Instances.prepare`."""
        if self._prepared and not self._starter.broken:
            return
        self._starter.close()
        self._starter = open_starter(self._paths)
        self._prepared = True

    def start(self, used: Mapping[str, str]) -> None:
        """See `Instances.start`."""
        plan, hosts = self._plan, self._plan.hosts
        variables = {**used, MACHINE_PYTHON: "1"}
        self._end.begin(used, self._starter.listener(), apart=True)
        self._agents = HostAgents(
            self._paths, plan, hosts, self._events, variables, self._end, self._starter, self._groups
        )
        self._agents.start()

    def stop(self, command: StopJob) -> None:
        """See `Instances.stop`."""
        self._end.ask(command)

    def explained(self, command: StopJob) -> StopJob:
        """See `Instances.explained`: this machine ends nothing by itself."""
        return command

    def ended(self, pid: int, status: int) -> Cause | None:
        """See `Instances.ended`."""
        if self._agents is not None and pid in self._agents.pids:
            self._agents.ended(pid, status)
            return None
        broken = self._starter.ended(pid, status)
        return Cause(CauseKind.NETWORK_LOST, broken, infrastructure=True) if broken else None

    def look_after(self) -> None:
        """See `Instances.look_after`."""
        if self._agents is not None:
            self._agents.look_after()

    def needs_others(self) -> bool:
        """See `Instances.needs_others`: this machine can always play them."""
        return False

    def verdict(self) -> Outcome:
        """See `Instances.verdict`."""
        assert self._agents is not None
        return self._agents.verdict()

    def close(self) -> None:
        """See `Instances.close`."""
        self._end.close()
        self._starter.close()

    def remove(self) -> None:
        """See `Instances.remove`."""
        for group in self._groups.remove():
            _log.warning("the control group %s could not be removed", group)


def open_instances(plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> LocalInstances:
    """See `Provider.open_instances`."""
    return LocalInstances(plan, paths, events)


def clean_up(run: Run) -> None:
    """See `Provider.clean_up`. Agents that have lost their supervisor end their hosts themselves, in their time."""
    _end_agents(run, AGENTS_SECONDS)
    sweep(find_places(), [run.paths.root / RECORD], REMOVE_SECONDS)


def _end_agents(run: Run, seconds: float) -> None:
    """Waits for the agents of a run, and kills those that do not end."""
    pids = [event.pid for event in run.events() if isinstance(event, HostStarted)]
    # An agent is told from a later process of its pid by the mark of its run.
    agents = [agent for pid in pids if (agent := look(pid)) is not None and is_of_run(pid, run.id)]
    deadline = time.monotonic() + seconds
    while any(is_running(agent.pid, agent.start) for agent in agents):
        if time.monotonic() > deadline:
            for agent in agents:
                send(agent, signal.SIGKILL)
        time.sleep(0.02)
