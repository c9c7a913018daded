"""What starts the agents of a machine: as plain processes here; an engine may have its own, which makes namespaces.

start = starter.prepare("algo-1", argv)       # what to start in place of argv
process = spawn(start.argv, ..., env={**env, **start.variables}, pass_fds=[*start.pass_fds])
...                                           # the others, so that all are made side by side
agent = starter.agent(start, process)         # the agent itself
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.control_group import open_kills


@dataclass
class Started:
    """An agent that runs, or has ended.

    Attributes:
        pid: its process.
        returncode: None until it has been waited for; then as `subprocess.Popen` has it.
    """

    pid: int
    returncode: int | None = None


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
    """Starts agents as plain processes."""

    def prepare(self, host: str, argv: Sequence[str]) -> Start:
        """Returns what to start. It must be started, with the caller as its parent, and given to `agent`.

        Args:
            host: name of the host.
            argv: the agent.
        """
        return Start(host, tuple(argv), {})

    def agent(self, start: Start, process: subprocess.Popen[bytes]) -> Started:
        """Returns the agent.

        Args:
            start: what `prepare` returned.
            process: what was started.

        Raises:
            HeadraceError: it could not be started.
        """
        process.returncode = 0  # the supervisor waits for it, by its pid
        return Started(process.pid)


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
