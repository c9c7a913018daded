"""The hosts that a supervisor answers for, as it sees them. It prepares, runs and finishes them in the same way for any
engine, and knows nothing of what they are made of.

An engine brings a module with two functions (`Provider`), and names it where it starts the supervisor. This room
imports no engine; the module is imported by its name in the supervisor's process, which uses the libraries of the
instance side only.

    instances.prepare()                 before the first attempt, and before another one what is of no use any more
    instances.start(used)               an attempt: one agent a host
    instances.ended(pid, status) ...    while there are `pids`; `look_after` now and then, `stop` when the job must end
    instances.verdict()                 how the attempt ended
    instances.close()                   at the end of the run, however it ends; then all processes are killed
    instances.remove()                  then what they have left on the machine
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from headrace.control_group import open_kills
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import PACKAGE_ENTRY, RUN_ID, StopJob
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status

FAILURE_GRACE = 5.0  # seconds at most for programs to save, when their job has failed

Outcome = tuple[Status, Cause | None]


class Instances(Protocol):
    """See the module. One object for all attempts of a run; one attempt at a time."""

    @property
    def hosts(self) -> Collection[str]:
        """Names of the plan's hosts that are of this machine: their trees are here."""

    @property
    def pids(self) -> Collection[int]:
        """Processes of the attempt that have not ended. The attempt is over when there is none."""

    @property
    def others(self) -> Collection[int]:
        """Other processes that the hosts need, such as one that keeps their network. They end with `close`."""

    @property
    def decided(self) -> bool:
        """Whether it is known how the attempt ends, or will never be: the attempt is about to end."""

    def prepare(self) -> None:
        """Makes what the hosts need, unless it is there and of use. Raises HeadraceError."""

    def start(self, used: Mapping[str, str]) -> None:
        """Starts an attempt.

        Args:
            used: variables that tell the agents what is used up already of time and money, and the attempt's number.

        Raises:
            OSError, HeadraceError: a host cannot be made.
        """

    def stop(self, command: StopJob) -> None:
        """Has the attempt stopped, or stopped faster."""

    def explained(self, command: StopJob) -> StopJob:
        """Returns a stop by the platform, while no attempt runs, with the reason that the platform gives by now."""

    def ended(self, pid: int, status: int) -> Cause | None:
        """Takes the wait status of a child of the supervisor, which may be none of `pids` and `others`.

        Returns:
            What that breaks, so that the job must end; None for nothing, and for an end that the verdict judges.
        """

    def look_after(self) -> None:
        """Called several times a second: kills what does not end in time."""

    def verdict(self) -> Outcome:
        """Returns how the attempt ended. Only the coordinator's verdict is Completed."""

    def needs_others(self) -> bool:
        """Whether another attempt needs other instances than these, because some are gone. Then the supervisor ends,
        and the run is not over: the engine has the platform start another one where there are instances."""

    def close(self) -> None:
        """Ends what the hosts needed. It may be called more than once, and when nothing was prepared."""

    def remove(self) -> None:
        """Removes what the hosts have left on this machine outside the run's directory, when no process is left."""


class Provider(Protocol):
    """A module that brings the instances of an engine."""

    def open_instances(self, plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> Instances:
        """Returns the instances of a run. Starts nothing.

        Args:
            plan: the launch plan.
            paths: the run's directory.
            events: the engine's event file.
        """

    def clean_up(self, run: Run) -> None:
        """Ends and removes what a run has left on this machine whose supervisor was killed."""


def find_provider(module: str) -> Provider:
    """Returns the provider of that name. Raises ImportError."""
    return cast(Provider, importlib.import_module(module))


def cause_of(command: StopJob) -> Cause:
    """Returns the cause of a run that ends because of this command."""
    return Cause(CauseKind(command.kind), command.reason, infrastructure=command.infrastructure)


def supervisor_environment(run_id: str) -> dict[str, str]:
    """Returns the variables of supervisor and agents: those of the caller, and how headrace is found from elsewhere.

    That folder may have other packages too, so no program sees it: `headrace.instance.toolkit` leads programs to
    headrace alone, where their Python does not have it.
    """
    package = str(Path(__file__).resolve().parents[3])
    search = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    variables = {**os.environ, RUN_ID: run_id}
    if package not in search:
        search.insert(0, package)
        variables[PACKAGE_ENTRY] = package
    return {**variables, "PYTHONPATH": os.pathsep.join(search)}


@dataclass
class Start:
    """What to start in place of an agent, so that it becomes the agent of a host.

    Attributes:
        host: name of the host.
        argv: the command line.
        variables: variables that the agent needs besides its own.
        pass_fds: descriptors that it needs besides its own.
        report: where it says how it went; -1 when it is the agent itself.
    """

    host: str
    argv: tuple[str, ...]
    variables: dict[str, str]
    pass_fds: tuple[int, ...] = ()
    report: int = -1


class AgentStarter:
    """Starts the agents of a machine: as plain processes here; an engine may have its own, which makes namespaces.

    start = starter.prepare("algo-1", argv)       # what to start in place of argv
    process = spawn(start.argv, ..., env={**env, **start.variables}, pass_fds=[*start.pass_fds])
    ...                                           # the others, so that all are made side by side
    agent = starter.agent(start, process)         # the agent itself
    """

    def prepare(self, host: str, argv: Sequence[str]) -> Start:
        """Returns what to start. It must be started, with the caller as its parent, and given to `agent`.

        Args:
            host: name of the host.
            argv: the agent.
        """
        return Start(host, tuple(argv), {})

    def agent(self, start: Start, process: subprocess.Popen[bytes]) -> int:
        """Returns the process of the agent.

        Args:
            start: what `prepare` returned.
            process: what was started.

        Raises:
            HeadraceError: it could not be started.
        """
        process.returncode = 0  # the supervisor waits for it, by its pid
        return process.pid


class HostGroups(Protocol):
    """Control groups for the processes of hosts."""

    def add(self, host: str, *, memory: int, cpu_weight: float) -> tuple[Path, ...]:
        """Makes those of a host. Returns the directories that its first process must enter.

        Args:
            host: name of the host.
            memory: bytes that its processes may use together; 0 means no limit.
            cpu_weight: CPU time relative to the run's other hosts, 1 is an equal part; 0 means no weight.

        Raises:
            OSError, KeyError: they cannot be made.
        """

    def open_events(self, host: str) -> int | None:
        """Returns a descriptor of the file that counts what the kernel killed for memory; None when there is none."""


class NoGroups:
    """Hosts have the limits that their machine has, and when that is a container, its count of kills for memory."""

    def add(self, host: str, *, memory: int, cpu_weight: float) -> tuple[Path, ...]:
        """See `HostGroups.add`."""
        return ()

    def open_events(self, host: str) -> int | None:
        """See `HostGroups.open_events`."""
        return open_kills()


StopOrders = Mapping[int, Callable[[bool], StopJob]]
"""By signal: what it orders; it is told whether the job was asked to stop before."""


def by_user(again: bool) -> StopJob:
    """Returns a person's wish to stop the job; the second one is to stop it at once."""
    return StopJob(CauseKind.STOPPED.value, "stopped by the user", failed=False, grace=0.0 if again else None)


def taken_back(again: bool) -> StopJob:
    """Returns what an interruption of spot instances is: the programs get their time to save, and the job goes on."""
    words = "the instances were taken back, as spot instances are"
    return StopJob(CauseKind.PREEMPTED.value, words, failed=True, grace=None, infrastructure=True)


OF_A_PERSON: StopOrders = {signal.SIGTERM: by_user, signal.SIGINT: by_user}

INTERRUPTION = signal.SIGUSR1
OF_THIS_MACHINE: StopOrders = {**OF_A_PERSON, INTERRUPTION: taken_back}
"""The same, and the signal by which this machine plays an interruption."""
