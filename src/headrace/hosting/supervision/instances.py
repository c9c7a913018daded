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
from collections.abc import Collection, Mapping
from typing import Protocol, cast

from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import StopJob
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
