"""The agents of the hosts of this machine in one attempt, and how it ends: one way for every engine.

The supervisor starts the agents and sees how they end. They are all agents of the job (the local engine), or some; of a
machine that is its own, such as a pod, there is one. Their orders come from the coordinator, which the
supervisor of the leader's host runs (see `headrace.agent.coordinator.authority`).

* When an agent dies, the coordinator is told. Where it is on another machine, `gone` says how they ended, and who asks
  passes it on.
* A host that was released early is not lost: its agent ended with 0 while the job continued.
* Hosts that come and go have an agent while the coordinator wants them, and never two.
* Agents that do not end in time are killed. One that the coordinator has given up, because it was silent, has no longer
  than its programs have to save.

The verdict is the coordinator's; what it was asked for counts when it gives none; else the attempt has failed. There is
no other way to Completed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.agent.control.control_transport import ControlServer
from headrace.agent.coordinator.authority import Authority
from headrace.agent.coordinator.budget_limits import used_before
from headrace.agent.host.oom_kills import MemoryKills
from headrace.child_python import UTF8, module_command
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text
from headrace.hosting.supervision.cleanup import remove_scratch, scratch_dir
from headrace.hosting.supervision.instances import (
    FAILURE_GRACE,
    AgentStarter,
    HostGroups,
    NoGroups,
    Outcome,
    Start,
    cause_of,
)
from headrace.instance.launch_plan import HostPlan, LaunchPlan, read_certificates
from headrace.instance.lifeline import (
    ATTEMPT,
    COORDINATOR_LOST,
    OPTION,
    SCRATCH,
    AgentGone,
    StopJob,
)
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.oom import FD_VARIABLE, OomCounter
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import spawn
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths, Status
from headrace.runs.events import HostStarted, JobFinished

AFTER_GRACE = 12.0  # for all agents to go, beyond the grace of a stop
UNDECIDED_SECONDS = 15.0  # for the verdict, when no agent is left that the supervisor has started
NEVER = float("inf")


class AttemptEnd:
    """How an attempt ends, as the supervisor sees it. One object for all attempts of a run.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the event file of the supervisor.
        server: that of the run, when it is open in all of its parts; else each attempt has its own.

    Attributes:
        registered, released, lost: hosts from which the coordinator has heard in this attempt, that it has released,
            and that it has given up.
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
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._authority: Authority | None = None
        self._none_left = self.kill_at = NEVER
        self.asked: StopJob | None = None
        self.registered: set[str] = set()
        self.released: set[str] = set()
        self.lost: set[str] = set()

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
        if leads:
            tls = read_certificates(self._paths.host(self._plan.leader))
            number = int(used.get(ATTEMPT) or 1)
            authority = Authority(
                self._plan, self._events, tls, used_before(used), number, apart=apart, server=self._server
            )
            authority.start(listener)
            self._authority = authority
            self.registered, self.released, self.lost = authority.registered, authority.released, authority.lost

    def close(self) -> None:
        """The attempt is over: its coordinator ends."""
        if self._authority is not None:
            self._authority.close()
        self._begin_anew()

    @property
    def verdict(self) -> JobFinished | None:
        """The coordinator's; None while it has given none."""
        return None if self._authority is None else self._authority.verdict

    @property
    def wanted(self) -> dict[str, int] | None:
        """Hosts that must have an instance now, see `Coordinator.wanted`; None where the coordinator is not."""
        return None if self._authority is None else self._authority.wanted

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


_log = logging.getLogger(__name__)

AFTER_VERDICT = 20.0  # for the agents to end, after the verdict: their last lines may wait for a file system
LOST_AFTER_VERDICT = 1.0  # the same, for one that was given up, beyond the grace of its programs
NO_VERDICT = Cause(CauseKind.COORDINATOR_LOST, "the coordinator ended without a verdict", infrastructure=True)


@dataclass
class _Agent:
    host: HostPlan
    number: int  # of the times that the host was asked for
    lifeline: int  # this end of it
    memory: MemoryKills | None  # processes of the host that the kernel killed for memory


class HostAgents:
    """The hosts of this machine as `Instances`: as they are, without namespaces and control groups.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the event file of this machine's supervisor.
        hosts: those of this machine.
        server: see `AttemptEnd`.

    Attributes:
        gone: how agents ended in this attempt: host to exit code (negative: a signal) and words.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        paths: RunPaths,
        events: EventWriter,
        hosts: Sequence[HostPlan],
        server: ControlServer | None = None,
    ) -> None:
        self.gone: dict[str, tuple[int, str]] = {}
        self._paths = paths
        self._plan = plan
        self._hosts = hosts
        self._events = events
        self._end = AttemptEnd(plan, paths, events, server)
        self._starter = AgentStarter()
        self._groups: HostGroups = NoGroups()
        self._variables: Mapping[str, str] = {}
        self._agents: dict[int, _Agent] = {}
        self._numbers: dict[str, int] = {}  # of each host's last agent
        self._lost_kill_at = NEVER  # of agents that were given up, once there is a verdict

    @property
    def hosts(self) -> Collection[str]:
        """See `Instances.hosts`."""
        return [host.name for host in self._hosts]

    @property
    def pids(self) -> Collection[int]:
        """Processes of the agents that have not ended."""
        return self._agents.keys()

    @property
    def others(self) -> Collection[int]:
        """See `Instances.others`."""
        return ()

    @property
    def decided(self) -> bool:
        """See `Instances.decided`."""
        return self._end.decided(running=bool(self._agents))

    @property
    def wanted(self) -> dict[str, int]:
        """Hosts of the run that must have an instance now, see `Coordinator.wanted`; none without a coordinator."""
        return self._end.wanted or {}

    def prepare(self) -> None:
        """Makes nothing: the machine is there."""

    def start(self, used: Mapping[str, str]) -> None:
        """See `Instances.start`."""
        self._end.begin(used, leads=self._plan.leader in self.hosts)
        self._start_agents(used)

    def _start_agents(self, variables: Mapping[str, str]) -> None:
        """Starts the agents of the hosts that are wanted, side by side. Raises OSError, HeadraceError.

        Args:
            variables: for the agents: the attempt's number, of whom their Python is.
        """
        self.gone, self._numbers, self._lost_kill_at = {}, {}, NEVER
        self._variables = variables
        wanted = self._end.wanted
        self._start([host for host in self._hosts if wanted is None or host.name in wanted], wanted or {})

    def _start(self, hosts: Sequence[HostPlan], wanted: Mapping[str, int]) -> None:
        for agent, start, process in [self._begin(host, wanted.get(host.name, 0)) for host in hosts]:
            host = agent.host
            try:
                pid = self._starter.agent(start, process)
            except HeadraceError as error:
                os.close(agent.lifeline)
                words = self._last_words(host.name)[-1:]
                raise HeadraceError(": ".join((error.message, *words)), error.hint) from error
            self._numbers[host.name] = agent.number
            self._agents[pid] = agent
            _log.info("agent of %s: process %d", host.name, pid)
            self._events.write(HostStarted(t=time.time(), group=host.group, host=host.name, pid=pid))

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

    def _begin(self, host: HostPlan, number: int) -> tuple[_Agent, Start, subprocess.Popen[bytes]]:
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
        memory = None if kills is None else MemoryKills(host.memory, OomCounter(kills))
        return _Agent(host, number, writing, memory), start, process

    def stop(self, command: StopJob) -> None:
        """See `Instances.stop`."""
        self._end.ask(command)

    def explained(self, command: StopJob) -> StopJob:
        """See `Instances.explained`: a signal is all that this machine's platform says."""
        return command

    def agent_gone(self, gone: AgentGone) -> None:
        """Tells the coordinator, which is here, that the agent of a host of another machine has ended."""
        self._end.gone(gone)

    def leave(self) -> None:
        """The platform ends this machine, or the attempt is over elsewhere: agents end their programs and leave."""
        for pid in self._agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # not reaped yet, so the pid is still its own
        self._end.end_within(self._plan.stop_grace + AFTER_GRACE)

    def end_within(self, seconds: float) -> None:
        """What is left of the attempt then is killed."""
        self._end.end_within(seconds)

    def ended(self, pid: int, status: int) -> Cause | None:
        """See `Instances.ended`."""
        agent = self._agents.pop(pid, None)
        if agent is None:
            return None
        os.close(agent.lifeline)
        how = f"agent {_how_it_ended(agent, status)}"
        _log.info("%s: %s", agent.host.name, how)
        code = os.waitstatus_to_exitcode(status)
        self.gone[agent.host.name] = (code, how)
        lines = self._last_words(agent.host.name)
        if self.wanted.get(agent.host.name, agent.number) == agent.number:  # else it was told as lost, or was released
            self._end.gone(AgentGone(agent.host.name, how, code == COORDINATOR_LOST, lines))
        return None

    def look_after(self) -> None:
        """Notes what the kernel killed for memory, and kills the agents when their time is over."""
        if self._lost_kill_at == NEVER and self._end.verdict is not None:
            self._end.end_within(AFTER_VERDICT)
            self._lost_kill_at = time.monotonic() + min(FAILURE_GRACE, self._plan.stop_grace) + LOST_AFTER_VERDICT
        if self._end.verdict is None and self._end.asked is None and (wanted := self._end.wanted) is not None:
            self._add(wanted)
        for pid, agent in self._agents.items():
            if agent.memory is not None:
                agent.memory.look()
            lost = agent.host.name in self._end.lost
            if time.monotonic() > (min(self._end.kill_at, self._lost_kill_at) if lost else self._end.kill_at):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own

    def verdict(self) -> Outcome:
        """Returns how the attempt ended. It is known only where the leader is."""
        return self._end.outcome(NO_VERDICT)

    def needs_others(self) -> bool:
        """See `Instances.needs_others`: a machine that is lost is replaced by its platform, one by one."""
        return False

    def close(self) -> None:
        """Ends the coordinator: the machine stays."""
        self._end.close()

    def remove(self) -> None:
        """Removes the temporary files of the programs."""
        remove_scratch(self._plan.run_id)

    def _last_words(self, host: str) -> tuple[str, ...]:
        path = self._paths.engine / f"{host}.log"
        with contextlib.suppress(OSError):
            return tuple(path.read_text(errors="replace").splitlines()[-20:])
        return ()


def _how_it_ended(agent: _Agent, status: int) -> str:
    exit_code, number = describe_exit(status)
    if agent.memory is None:
        return exit_text(exit_code, number)
    cause = agent.memory.of_executor(exit_code, number)
    agent.memory.close()
    return str(cause)
