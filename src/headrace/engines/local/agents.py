"""The agents of one attempt: the supervisor starts them, sends them orders and sees how they end.

* When an agent dies, the supervisor tells the leader's agent; when the leader's dies, it tells the others to stop.
* A host that was released early is not lost: its agent ended with 0 while the job continued.
* Agents that do not end in time are killed, and the leader's when it has been stopped (SIGSTOP) for some seconds: the
  coordinator is in it, which finds out about the others.
* What was asked for before the leader's agent died stays the reason of the end.

The verdict is the coordinator's, or a failure. There is no other way to Completed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace.engines.local.isolation.start_agents import Start, Started, Starter
from headrace.engines.local.limits.cgroups import RunGroups
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text
from headrace.hosting.supervision.instances import FAILURE_GRACE, Outcome, cause_of
from headrace.hosting.supervision.scratch_dir import scratch_dir
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.instance.lifeline import COORDINATOR_LOST, OPTION, SCRATCH, AgentGone, Command, StopJob, encode
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.oom import FD_VARIABLE, OomCounter, RecentKills, whose_memory
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import UTF8, spawn
from headrace.processes.stopped_time import LIMIT, StoppedTime, describe_stopped
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status
from headrace.runs.events import HostLost, HostStarted, JobFinished
from headrace.runs.run_paths import AGENT

_log = logging.getLogger(__name__)

AFTER_VERDICT = 4.0  # for the agents to end, after the coordinator's verdict
STOPPED_AFTER_VERDICT = 1.0  # for an agent that is stopped (SIGSTOP) then
NO_VERDICT = Cause(CauseKind.COORDINATOR_LOST, "the coordinator ended without a verdict", infrastructure=True)
AFTER_GRACE = 12.0  # for all agents to go, beyond the grace of a stop


@dataclass
class _Agent:
    host: HostPlan
    process: Started
    lifeline: int  # this end of it
    memory: RecentKills | None  # processes of the host that the kernel killed for memory
    stopped_time: StoppedTime
    found_stopped: bool = False


@dataclass
class _Begun:
    start: Start
    process: subprocess.Popen[bytes]
    lifeline: int
    memory: OomCounter | None


class Agents:
    """See the module.

    Args:
        paths: the run's directory.
        plan: the launch plan.
        events: the engine's event file.
        used: variables that tell the agents what is used up already of time and money.
        starter: makes the instances.
        groups: the run's control groups.

    Attributes:
        leader_ended: the leader's agent is gone.
    """

    def __init__(
        self,
        paths: RunPaths,
        plan: LaunchPlan,
        events: EventWriter,
        used: Mapping[str, str],
        starter: Starter,
        groups: RunGroups,
    ) -> None:
        self.leader_ended = False
        self._paths = paths
        self._plan = plan
        self._events = events
        self._used = used
        self._starter = starter
        self._groups = groups
        self._agents: dict[int, _Agent] = {}
        self._earlier = len(self._verdicts())  # of earlier attempts
        self._cause: Cause | None = None  # why the leader is no help any more
        self._asked: StopJob | None = None  # the first request to stop that the leader got
        self._kill_at = float("inf")

    @property
    def pids(self) -> Collection[int]:
        """Processes of the agents that have not ended."""
        return self._agents.keys()

    def start(self) -> None:
        """Starts the agents of all hosts, side by side. Raises OSError, HeadraceError."""
        begun = [self._begin(host) for host in self._plan.hosts]
        for host, each in zip(self._plan.hosts, begun, strict=True):
            process = self._started(each, host.name)
            memory = None if each.memory is None else RecentKills(each.memory)
            agent = _Agent(host, process, each.lifeline, memory, StoppedTime(process.pid))
            self._agents[agent.process.pid] = agent
            _log.info("agent of %s: process %d", host.name, agent.process.pid)
            self._events.write(HostStarted(t=time.time(), group=host.group, host=host.name, pid=agent.process.pid))

    def _started(self, begun: _Begun, host: str) -> Started:
        try:
            return self._starter.agent(begun.start, begun.process)
        except HeadraceError as error:
            os.close(begun.lifeline)
            words = self._last_words(host)[-1:]
            raise HeadraceError(": ".join((error.message, *words)), error.hint) from error

    def _begin(self, host: HostPlan) -> _Begun:
        reading, writing = os.pipe()
        ours = {SCRATCH: str(scratch_dir(self._plan.run_id)), **self._used}
        env = {**os.environ, BASE_VARIABLE: host.base_dir, **ours}
        path = self._paths.engine / f"{host.name}.log"
        weight = host.cpu_weight * len(self._plan.hosts)
        groups = self._groups.add(host.name, memory=host.memory, cpu_weight=weight)
        kills = self._groups.open_events(host.name)
        if kills is not None:
            env[FD_VARIABLE] = str(kills)
        try:
            with path.open("ab") as log:
                start = self._starter.prepare(host.name, [sys.executable, *UTF8, "-m", "headrace.agent", OPTION])
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
        os.set_blocking(writing, False)  # an agent that is stopped must not hold up its supervisor
        return _Begun(start, process, writing, None if kills is None else OomCounter(kills))

    def stop(self, command: StopJob) -> None:
        """Has the job stopped, or stopped faster."""
        grace = self._plan.stop_grace if command.grace is None else command.grace
        self._kill_at = min(self._kill_at, time.monotonic() + grace + AFTER_GRACE)
        if self.leader_ended:
            self._tell_all(command)
            return
        self._asked = self._asked or command
        if not self._tell(self._plan.leader, command):
            self._kill_at = 0.0  # its pipe is full or broken: it is stopped, or ends

    def ended(self, pid: int, status: int) -> None:
        """Takes the wait status of an agent."""
        agent = self._agents.pop(pid)
        agent.process.returncode = os.waitstatus_to_exitcode(status)
        os.close(agent.lifeline)
        how = f"agent {_how_it_ended(agent, status)}"
        _log.info("%s: %s", agent.host.name, how)
        if agent.host.name != self._plan.leader:
            heard_nothing = agent.process.returncode == COORDINATOR_LOST
            self._tell(self._plan.leader, AgentGone(agent.host.name, how, heard_nothing))
            # Only the leader is left: the others lost contact with it, or got its verdict, so it must end now. If they
            # were killed or released, it continues.
            alone = (
                not self.leader_ended and len(self._agents) == 1
            )  # else the whole record would be read for each host
            if alone and (agent.process.returncode > 0 or self.verdict_of_coordinator() is not None):
                self._kill_at = min(self._kill_at, time.monotonic() + self._plan.stop_grace + AFTER_GRACE)
            return
        self.leader_ended = True
        patience = AFTER_VERDICT
        if self.verdict_of_coordinator() is None:
            group, host = agent.host.group, agent.host.name
            lines = self._last_words(host)
            self._cause = Cause(CauseKind.HOST_LOST, how, group, host, AGENT, last_lines=lines, infrastructure=True)
            self._events.write(HostLost(t=time.time(), group=group, host=host, reason=how))
            grace = min(FAILURE_GRACE, self._plan.stop_grace)
            self._tell_all(StopJob(CauseKind.COORDINATOR_LOST.value, f"the leader's {how}", failed=True, grace=grace))
            patience += grace
        self._kill_at = min(self._kill_at, time.monotonic() + patience)

    def look_after(self) -> None:
        """Notes what the kernel killed for memory, and kills the agents when their time is over."""
        for agent in self._agents.values():
            if agent.memory is not None:
                agent.memory.look()
            if self.leader_ended or agent.host.name == self._plan.leader:
                agent.found_stopped = agent.stopped_time.seconds() > (
                    STOPPED_AFTER_VERDICT if self.leader_ended else LIMIT
                )
            if agent.found_stopped or time.monotonic() > self._kill_at:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent.process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own

    def verdict_of_coordinator(self) -> JobFinished | None:
        """Returns the coordinator's verdict, None if it has not given one."""
        verdicts = self._verdicts()
        return verdicts[self._earlier] if len(verdicts) > self._earlier else None

    def verdict(self) -> Outcome:
        """Returns how the attempt ended."""
        verdict = self.verdict_of_coordinator()
        if verdict is not None:
            return verdict.status, verdict.cause
        if self._asked is not None:
            return (Status.FAILED if self._asked.failed else Status.STOPPED), cause_of(self._asked)
        return Status.FAILED, self._cause or NO_VERDICT

    def _verdicts(self) -> list[JobFinished]:
        return [event for event in Run(self._paths).events() if isinstance(event, JobFinished)]

    def _last_words(self, host: str) -> tuple[str, ...]:
        path = self._paths.engine / f"{host}.log"
        with contextlib.suppress(OSError):
            return tuple(path.read_text(errors="replace").splitlines()[-20:])
        return ()

    def _tell(self, host: str, command: Command) -> bool:
        """Returns whether the message reached the agent of that host, or the agent has ended."""
        for agent in self._agents.values():
            if agent.host.name == host:
                try:
                    os.write(agent.lifeline, encode(command))
                except BlockingIOError:
                    return False
                except OSError:
                    return True  # it is just ending; its exit will be seen
        return True

    def _tell_all(self, command: Command) -> None:
        for agent in self._agents.values():
            self._tell(agent.host.name, command)


def _how_it_ended(agent: _Agent, status: int) -> str:
    exit_code, number = describe_exit(status)
    if agent.memory is not None:
        killed = agent.memory.look()
        agent.memory.close()
        if killed and number == signal.SIGKILL:
            return str(Cause(CauseKind.OUT_OF_MEMORY, whose_memory(agent.host.memory)))
    if agent.found_stopped and number == signal.SIGKILL:
        return describe_stopped()
    return exit_text(exit_code, number)
