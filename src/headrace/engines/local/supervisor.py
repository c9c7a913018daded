"""Stands between the caller and the agents: `python -m headrace.engines.local.supervisor RUN_DIR CALLER_PID`.

It starts one agent a host and then only watches:

* the caller dies, whatever killed it (its end of the lifeline closes, or the parent changes): the job is stopped;
* SIGTERM or SIGINT: the job is stopped in order; the second one: at once;
* an agent dies: the leader's agent is told; when it was the leader's, the others are told to stop;
* what an agent leaves running is adopted (child subreaper) and ended;
* agents that do not end in time are killed.

At the end it removes the temporary files and says the last word, `run_finished`. It never says Completed unless the
coordinator did.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.engines.local.isolation.starting import Begun, Started, Starter, open_starter
from headrace.engines.local.limits_cgroup import RunGroups, find_places
from headrace.engines.local.scratch import remove_scratch, scratch_dir
from headrace.instance.launch import HostPlan, LaunchPlan
from headrace.instance.lifeline import OPTION, SCRATCH, AgentGone, Command, StopJob, encode
from headrace.instance.paths import BASE_VARIABLE
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.oom import FD_VARIABLE, OomCounter, oom_words
from headrace.processes.table import descendants, describe_exit, name_of_exit, reap, send
from headrace.runs import Cause, EventWriter, Run, RunPaths, Status, adopt
from headrace.runs.events import HostLost, HostStarted, JobFinished, RunFinished

ENGINE = "engine"
ENGINE_LOGS = "engine"
FAILURE_GRACE = 5.0
LINGER = 1.0  # for helpers that end by themselves, see headrace.agent.sweep
AFTER_VERDICT = 4.0  # for the agents to go, when the coordinator has said its last word
AFTER_GRACE = 12.0  # for all agents to go, beyond the grace of a stop
END_SECONDS = 10.0  # for what is killed at the very end
POLL = 0.5
POLL_END = 0.02


@dataclass
class _Agent:
    host: HostPlan
    process: Started
    lifeline: int  # this end of it
    memory: OomCounter | None  # the kernel's count of processes of the host that it killed for memory
    kills: int = 0  # when it was read last


class Supervisor:
    """See the module.

    Args:
        paths: the run's directory.
        caller: pid of the process that started the run.
    """

    def __init__(self, paths: RunPaths, caller: int) -> None:
        self._paths = paths
        self._caller = caller
        self._plan = msgspec.json.decode((paths.root / "plan.json").read_bytes(), type=LaunchPlan)
        self._events = EventWriter(paths.events(ENGINE))
        self._agents: dict[int, _Agent] = {}
        self._starter = Starter()
        self._adopting = False  # an agent has ended: there may be orphans
        self._orphans_since = 0.0
        self._stops = 0
        self._cause: Cause | None = None  # why the leader is no help any more
        self._leader_ended = False
        self._kill_at = float("inf")
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end
        self._selector.register(self._wake, selectors.EVENT_READ, self._signalled)
        self._selector.register(0, selectors.EVENT_READ, self._lifeline_moved)
        self._signals: list[int] = []
        self._groups = RunGroups(self._plan.run_id, find_places())

    def run(self) -> Status:
        """Runs the job to its end. Returns how it ended."""
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._signals.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        status = Status.FAILED
        cause: Cause | None = Cause("the engine's supervisor was interrupted")
        try:
            adopt(self._paths)
            self._starter = open_starter(self._paths)
            self._start_agents()
            while self._agents or self._orphans():
                self._step()
            status, cause = self._verdict()
        except Exception as error:  # noqa: BLE001  (the boundary: it is reported, and everything is ended all the same)
            traceback.print_exc()
            cause = Cause(f"the engine's supervisor failed: {error!r}")
        finally:
            self._starter.close()
            self._end_everything()
            remove_scratch(self._plan.run_id)
            for group in self._groups.remove():
                print(f"the control group {group} could not be removed", file=sys.stderr)
            self._events.write(RunFinished(t=time.time(), status=status, cause=cause))
        return status

    def _start_agents(self) -> None:
        begun = [self._begin_agent(host) for host in self._plan.hosts]
        for host, (each, lifeline, memory) in zip(self._plan.hosts, begun, strict=True):
            agent = _Agent(host, self._starter.agent(each), lifeline, memory)
            self._agents[agent.process.pid] = agent
            self._events.write(HostStarted(t=time.time(), group=host.group, host=host.name, pid=agent.process.pid))

    def _begin_agent(self, host: HostPlan) -> tuple[Begun, int, OomCounter | None]:
        reading, writing = os.pipe()
        env = {**os.environ, BASE_VARIABLE: host.base_dir, SCRATCH: str(scratch_dir(self._plan.run_id))}
        path = self._paths.root / ENGINE_LOGS / f"{host.name}.log"
        weight = host.cpu_weight * len(self._plan.hosts)
        groups = self._groups.add(host.name, memory=host.memory, cpu_weight=weight)
        events = self._groups.open_events(host.name)
        if events is not None:
            env[FD_VARIABLE] = str(events)
        try:
            with path.open("ab") as log:
                begun = self._starter.begin(
                    [sys.executable, "-m", "headrace.agent", OPTION],
                    host=host.name,
                    env=env,
                    cwd=self._paths.root,
                    cpus=host.cpus,
                    groups=groups,
                    pass_fds=() if events is None else (events,),
                    stdin=reading,
                    log=log,
                )
        finally:
            os.close(reading)
        os.set_blocking(writing, False)  # an agent that stands still must not stop its supervisor
        return begun, writing, None if events is None else OomCounter(events)

    def _step(self) -> None:
        ending = self._orphans_since > 0 or self._leader_ended
        for key, _ in self._selector.select(POLL_END if ending else POLL):
            key.data()
        while self._signals:
            self._signals.pop()
            self._stop_wanted()
        if self._caller and os.getppid() != self._caller:
            self._caller_died()
        for pid, status in reap():
            if pid in self._agents:
                self._agent_ended(self._agents.pop(pid), status)
        for agent in self._agents.values():
            if agent.memory is not None:
                agent.kills = agent.memory.read()
        if self._adopting:
            self._end_orphans()
        if time.monotonic() > self._kill_at:
            self._kill_agents()

    # --- what happens --------------------------------------------------------------------------------------------

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)

    def _lifeline_moved(self) -> None:
        if not os.read(0, 4096):
            self._selector.unregister(0)
            self._caller_died()

    def _caller_died(self) -> None:
        caller, self._caller = self._caller, 0
        if caller:
            grace = min(FAILURE_GRACE, self._plan.stop_grace)
            self._stop(StopJob(f"the process that started the run (pid {caller}) died", failed=True, grace=grace))

    def _stop_wanted(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._stop(StopJob("stopped by the user", failed=False))
        else:
            self._stop(StopJob("stopped by the user", failed=False, grace=0.0))

    def _stop(self, command: StopJob) -> None:
        grace = self._plan.stop_grace if command.grace is None else command.grace
        self._kill_at = min(self._kill_at, time.monotonic() + grace + AFTER_GRACE)
        if self._leader_ended:
            self._tell_all(command)
        elif not self._tell(self._plan.leader, command):
            self._kill_at = 0.0  # its pipe is full or broken: it stands still

    def _agent_ended(self, agent: _Agent, status: int) -> None:
        agent.process.returncode = os.waitstatus_to_exitcode(status)
        os.close(agent.lifeline)
        self._adopting = True
        how = f"agent {_how_it_ended(agent, status)}"
        if agent.host.name != self._plan.leader:
            self._tell(self._plan.leader, AgentGone(agent.host.name, how))
            # The leader alone, and others have given up waiting for its word: it must come to an end. When they were
            # killed, or released, it goes on.
            gave_up = agent.process.returncode > 0
            if not self._leader_ended and len(self._agents) == 1 and gave_up:
                self._kill_at = min(self._kill_at, time.monotonic() + self._plan.stop_grace + AFTER_GRACE)
            return
        self._leader_ended = True
        patience = AFTER_VERDICT
        if self._coordinator_verdict() is None:
            group, host = agent.host.group, agent.host.name
            self._cause = Cause(how, group, host, "agent", last_lines=self._last_words(host))
            self._events.write(HostLost(t=time.time(), group=group, host=host, reason=how))
            grace = min(FAILURE_GRACE, self._plan.stop_grace)
            self._tell_all(StopJob(f"the leader's {how}", failed=True, grace=grace))
            patience += grace
        self._kill_at = min(self._kill_at, time.monotonic() + patience)

    def _last_words(self, host: str) -> tuple[str, ...]:
        path = self._paths.root / ENGINE_LOGS / f"{host}.log"
        with contextlib.suppress(OSError):
            return tuple(path.read_text(errors="replace").splitlines()[-20:])
        return ()

    # --- what it does --------------------------------------------------------------------------------------------

    def _tell(self, host: str, command: Command) -> bool:
        """Returns whether the agent of that host could be told, or has ended."""
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

    def _known(self) -> list[int]:
        return [*self._agents, *self._starter.own()]

    def _orphans(self) -> bool:
        return self._adopting and bool(descendants(os.getpid(), without=self._known()))

    def _end_orphans(self) -> None:
        """Ends what agents have left; helpers that end by themselves get a moment."""
        orphans = descendants(os.getpid(), without=self._known())
        now = time.monotonic()
        if not orphans:
            self._orphans_since = 0.0
        elif not self._orphans_since:
            self._orphans_since = now
        elif now - self._orphans_since > LINGER:
            for orphan in orphans:
                send(orphan, signal.SIGKILL)

    def _kill_agents(self) -> None:
        for agent in self._agents.values():
            if agent.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent.process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own

    def _end_everything(self) -> None:
        """Kills all that is left. After an orderly end there is nothing."""
        deadline = time.monotonic() + END_SECONDS
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(POLL_END)
            for pid, status in reap():
                if pid in self._agents:
                    self._agents.pop(pid).process.returncode = os.waitstatus_to_exitcode(status)

    # --- the end -------------------------------------------------------------------------------------------------

    def _coordinator_verdict(self) -> JobFinished | None:
        return next((event for event in Run(self._paths).events() if isinstance(event, JobFinished)), None)

    def _verdict(self) -> tuple[Status, Cause | None]:
        verdict = self._coordinator_verdict()
        if verdict is not None:
            return verdict.status, verdict.cause
        return Status.FAILED, self._cause or Cause("the coordinator ended without a verdict")


def _how_it_ended(agent: _Agent, status: int) -> str:
    exit_code, number = describe_exit(status)
    if agent.memory is not None:
        killed = agent.memory.read() > agent.kills
        agent.memory.close()
        if killed and number == signal.SIGKILL:
            return oom_words(agent.host.memory)
    return name_of_exit(exit_code, number)


def main() -> int:
    """Entry point. Returns 0 if the job is complete."""
    root, caller = sys.argv[1:]
    become_subreaper()
    return 0 if Supervisor(RunPaths(Path(root)), int(caller)).run() is Status.COMPLETED else 1


if __name__ == "__main__":
    sys.exit(main())
