"""What a platform must let a test do, so that the table of engines can be played on it: one object for each engine.

A platform has nodes, a place from which users submit, and a scheduler. The test acts on it from outside, as people,
power cuts and cables do. It never asks headrace to do a deed for it, and what a run left is looked for on the nodes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from headrace.instance.launch_plan import read_plan
from headrace.runs import Run, RunPaths
from headrace.runs.events import HostStarted, ProgramStarted

Fields = dict[str, Any]


class Platform(Protocol):
    """A platform with which an engine works.

    Attributes:
        engine: name of the engine.
        folder: a folder of this machine, which those who submit see under the same path.
        gone: seconds after the end of a run, for the last process of a node, and for the scheduler to take note.
    """

    engine: str
    folder: Path
    gone: float

    def fitted(self, job: Fields, python: str) -> Fields:
        """Returns a job file with what this platform needs besides: options of the engine, data in its place.

        Args:
            job: the job file; its folders are of this machine.
            python: with which the programs run, where this Python lacks something; else empty.
        """

    def headrace(self, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs `headrace` where users submit, to its end."""

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Starts `headrace` where users submit; what it prints is in its pipe."""

    def run(self, run_id: str) -> Run:
        """Returns the record of a run as it is now; while the run goes on it may lag by seconds."""

    def runs(self) -> Sequence[str]:
        """Returns the ids of all runs of those who submit."""

    def kill_submitter(self, submitter: subprocess.Popen[str], run: Run) -> None:
        """Kills what `begin` started, which submitted that run."""

    def touch(self, run: Run, host: str, name: str) -> None:
        """Makes an empty file in the folder in which the programs of a host run."""

    def result(self, run: Run, host: str, name: str) -> bytes | None:
        """Returns a file that programs of a host wrote into its folder for output data, None if they did not.

        The run has ended.
        """

    def kill_program(self, run: Run, host: str, stream: str) -> None:
        """Kills a program of a host by SIGKILL."""

    def kill_agent(self, run: Run, host: str) -> None:
        """Kills the agent of a host by SIGKILL."""

    def kill_node(self, run: Run, host: str) -> None:
        """Takes the power from the node of a host: all that runs there is gone."""

    def cut(self, run: Run, host: str) -> None:
        """Pulls the network cable of the node of a host; all that runs there goes on."""

    def fill_disk(self, run: Run, host: str) -> None:
        """Leaves no room where the programs of a host write their model: less than 60 MB."""

    def limit_memory(self, run: Run, host: str) -> None:
        """Leaves little memory for what runs on the node of a host: about 200 MB."""

    def take_back(self, run: Run) -> None:
        """Has the scheduler take the nodes from a run, as it does for a job that is more urgent."""

    def remove(self, run: Run, host: str, how: str) -> None:
        """Has the platform remove what one host runs in: ``evict`` it, ``drain`` its node, or ``delete`` it."""

    def set_right(self, given: bool) -> None:
        """Takes the right to look into their runs from those who submit, or gives it back."""

    def left(self, run: Run) -> list[str]:
        """Returns what a run that has ended has left: on its nodes, with the scheduler, in the cluster; in words."""

    def mend(self) -> None:
        """Ends all jobs, and makes all nodes whole again. Waits until they can be used."""


class Opened(Protocol):
    """How the test finds a platform.

    Attributes:
        needs: what the machine must have, see tests/needs.py.
    """

    needs: tuple[str, ...]

    def open(self, folder: Path) -> AbstractContextManager[Platform]:
        """Makes the platform, with its files in a folder; it is gone after the block."""


class RunsInFolder:
    """The part of a platform whose nodes and users see the run's own directory under one path.

    Args:
        home: HEADRACE_HOME of those who submit.
    """

    gone = 15.0

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, run_id: str) -> Run:
        return Run(RunPaths(self.home / "runs" / run_id), alive=lambda _: True)

    def runs(self) -> Sequence[str]:
        return [path.name for path in (self.home / "runs").glob("[!.]*")]

    def touch(self, run: Run, host: str, name: str) -> None:
        (run.paths.host(host) / "code" / name).touch()

    def result(self, run: Run, host: str, name: str) -> bytes | None:
        file = run.paths.host(host) / "output" / "data" / name
        return file.read_bytes() if file.exists() else None


def address_of(run: Run, host: str) -> str:
    """The address of a host, as the plan in its own tree has it."""
    return read_plan(run.paths.host(host)).host(host).address


def pid_of_agent(run: Run, host: str) -> int:
    """Pid of the agent of a host, where it runs."""
    return [each.pid for each in run.events() if isinstance(each, HostStarted) and each.host == host][-1]


def pid_of_program(run: Run, host: str, stream: str) -> int:
    """Pid of a program, where it runs."""
    started = [each for each in run.events() if isinstance(each, ProgramStarted)]
    return [each.pid for each in started if (each.host, each.stream) == (host, stream)][-1]
