"""The agents of the hosts of this machine in one attempt: the supervisor starts them and sees how they end. They are
all agents of the job (the local engine), or some. Their orders come from the coordinator.

* When an agent dies, the coordinator is told. Where it is on another machine, `gone` says how they ended, and who asks
  passes it on.
* A host that was released early is not lost: its agent ended with 0 while the job continued.
* Hosts that come and go have an agent while the coordinator wants them, and never two.
* Agents that do not end in time are killed. One that the coordinator has given up, because it was silent, has no longer
  than its programs have to save.

The verdict is the coordinator's, or a failure. There is no other way to Completed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.child_python import module_command
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text
from headrace.hosting.supervision.agent_starter import AgentStarter, HostGroups, Start, Started
from headrace.hosting.supervision.attempt_end import NEVER, AttemptEnd
from headrace.hosting.supervision.instances import FAILURE_GRACE, Outcome
from headrace.hosting.supervision.scratch_dir import scratch_dir
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.instance.lifeline import (
    COORDINATOR_LOST,
    OPTION,
    SCRATCH,
    AgentGone,
)
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.oom import FD_VARIABLE, OomCounter, RecentKills, whose_memory
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import UTF8, spawn
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths
from headrace.runs.events import HostStarted

_log = logging.getLogger(__name__)

AFTER_VERDICT = 20.0  # for the agents to end, after the verdict: their last lines may wait for a file system
LOST_AFTER_VERDICT = 1.0  # the same, for one that was given up, beyond the grace of its programs
NO_VERDICT = Cause(CauseKind.COORDINATOR_LOST, "the coordinator ended without a verdict", infrastructure=True)


@dataclass
class _Agent:
    host: HostPlan
    process: Started
    lifeline: int  # this end of it
    memory: RecentKills | None  # processes of the host that the kernel killed for memory
    number: int  # of the times that the host was asked for


@dataclass
class _Begun:
    start: Start
    process: subprocess.Popen[bytes]
    lifeline: int
    memory: OomCounter | None


class HostAgents:
    """See the module.

    Args:
        paths: the run's directory.
        plan: the launch plan.
        hosts: those of this machine.
        events: the event file of this machine's supervisor.
        variables: for the agents: the attempt's number, of whom their Python is.
        end: how the attempt ends, which has begun.
        starter: makes the instances.
        groups: the control groups of the hosts.

    Attributes:
        gone: how agents ended: host to exit code (negative: a signal) and words.
    """

    def __init__(
        self,
        paths: RunPaths,
        plan: LaunchPlan,
        hosts: Sequence[HostPlan],
        events: EventWriter,
        variables: Mapping[str, str],
        end: AttemptEnd,
        starter: AgentStarter,
        groups: HostGroups,
    ) -> None:
        self.gone: dict[str, tuple[int, str]] = {}
        self._paths = paths
        self._plan = plan
        self._hosts = hosts
        self._events = events
        self._variables = variables
        self._end = end
        self._starter = starter
        self._groups = groups
        self._agents: dict[int, _Agent] = {}
        self._numbers: dict[str, int] = {}  # of each host's last agent
        self._lost_kill_at = NEVER  # of agents that were given up, once there is a verdict

    @property
    def pids(self) -> Collection[int]:
        """Processes of the agents that have not ended."""
        return self._agents.keys()

    def start(self) -> None:
        """Starts the agents of the hosts that are wanted, side by side. Raises OSError, HeadraceError."""
        wanted = self._end.wanted
        self._start([host for host in self._hosts if wanted is None or host.name in wanted], wanted or {})

    def _start(self, hosts: Sequence[HostPlan], wanted: Mapping[str, int]) -> None:
        begun = [self._begin(host) for host in hosts]
        for host, each in zip(hosts, begun, strict=True):
            process = self._started(each, host.name)
            memory = None if each.memory is None else RecentKills(each.memory)
            self._numbers[host.name] = number = wanted.get(host.name, 0)
            agent = _Agent(host, process, each.lifeline, memory, number)
            self._agents[agent.process.pid] = agent
            _log.info("agent of %s: process %d", host.name, agent.process.pid)
            self._events.write(HostStarted(t=time.time(), group=host.group, host=host.name, pid=agent.process.pid))

    def _add(self, wanted: Mapping[str, int]) -> None:
        """Starts agents of hosts that are asked for. One that cannot be started is told as lost."""
        running = {agent.host.name for agent in self._agents.values()}
        for host in self._hosts:
            number = wanted.get(host.name, 0)
            if host.name in running or number <= self._numbers.get(host.name, 0):
                continue
            try:
                self._start([host], wanted)
            except (OSError, HeadraceError) as error:
                self._numbers[host.name] = number
                self._end.gone(AgentGone(host.name, f"could not be started: {error}"))

    def _started(self, begun: _Begun, host: str) -> Started:
        try:
            return self._starter.agent(begun.start, begun.process)
        except HeadraceError as error:
            os.close(begun.lifeline)
            words = self._last_words(host)[-1:]
            raise HeadraceError(": ".join((error.message, *words)), error.hint) from error

    def _begin(self, host: HostPlan) -> _Begun:
        reading, writing = os.pipe()
        ours = {SCRATCH: str(scratch_dir(self._plan.run_id)), **self._variables}
        env = {**os.environ, BASE_VARIABLE: host.base_dir, **ours}
        path = self._paths.engine / f"{host.name}.log"
        weight = host.cpu_weight * len(self._hosts)
        groups = self._groups.add(host.name, memory=host.memory, cpu_weight=weight)
        kills = self._groups.open_events(host.name)
        if kills is not None:
            env[FD_VARIABLE] = str(kills)
        try:
            with path.open("ab") as log:
                start = self._starter.prepare(host.name, module_command("headrace.agent", OPTION, options=UTF8))
                process = spawn(
                    start.argv,
                    env={**env, **start.variables},
                    cwd=self._paths.root,
                    tied=False,
                    cpus=host.cpus,
                    groups=groups,
                    stdin=reading,
                    stdout=log,
                    stderr=log,
                    pass_fds=start.pass_fds if kills is None else (*start.pass_fds, kills),
                )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return _Begun(start, process, writing, None if kills is None else OomCounter(kills))

    def signal_agents(self, number: int) -> None:
        """Signals all agents, as their platform would."""
        for pid in self._agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # not reaped yet, so the pid is still its own

    def ended(self, pid: int, status: int) -> None:
        """Takes the wait status of an agent."""
        agent = self._agents.pop(pid)
        agent.process.returncode = os.waitstatus_to_exitcode(status)
        os.close(agent.lifeline)
        how = f"agent {_how_it_ended(agent, status)}"
        _log.info("%s: %s", agent.host.name, how)
        code = agent.process.returncode
        self.gone[agent.host.name] = (code, how)
        lines = self._last_words(agent.host.name)
        if (self._end.wanted or {}).get(agent.host.name, agent.number) != agent.number:
            return  # the host was asked for again: it has been told as lost before, or was released
        self._end.gone(AgentGone(agent.host.name, how, code == COORDINATOR_LOST, lines))

    def look_after(self) -> None:
        """Notes what the kernel killed for memory, and kills the agents when their time is over."""
        if self._lost_kill_at == NEVER and self._end.verdict is not None:
            self._end.end_within(AFTER_VERDICT)
            self._lost_kill_at = time.monotonic() + min(FAILURE_GRACE, self._plan.stop_grace) + LOST_AFTER_VERDICT
        if self._end.verdict is None and self._end.asked is None and (wanted := self._end.wanted) is not None:
            self._add(wanted)
        for agent in self._agents.values():
            if agent.memory is not None:
                agent.memory.look()
            lost = agent.host.name in self._end.lost
            if time.monotonic() > (min(self._end.kill_at, self._lost_kill_at) if lost else self._end.kill_at):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent.process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own

    def verdict(self) -> Outcome:
        """Returns how the attempt ended. It is known only where the leader is."""
        return self._end.outcome(NO_VERDICT)

    def _last_words(self, host: str) -> tuple[str, ...]:
        path = self._paths.engine / f"{host}.log"
        with contextlib.suppress(OSError):
            return tuple(path.read_text(errors="replace").splitlines()[-20:])
        return ()


def _how_it_ended(agent: _Agent, status: int) -> str:
    exit_code, number = describe_exit(status)
    if agent.memory is not None:
        killed = agent.memory.look()
        agent.memory.close()
        if killed and number == signal.SIGKILL:
            return str(Cause(CauseKind.OUT_OF_MEMORY, whose_memory(agent.host.memory)))
    return exit_text(exit_code, number)
