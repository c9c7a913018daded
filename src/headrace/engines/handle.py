"""The caller's end of a run, the same in every engine: `start` returns one, and `Job.fit` with it.

`RemoteHandle` is that of a run that a platform answers for, and no process of this machine.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from headrace import engines
from headrace.engines.asking import AskEngine
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import (
    Cause,
    EndOfRun,
    EventFollower,
    LogFollower,
    LogLine,
    Run,
    RunPaths,
    Selector,
    Status,
    read_plan,
)
from headrace.runs.event_text import sentence, told
from headrace.runs.events import ChannelProgress, StatusChanged
from headrace.runs.reader import POLL_SECONDS, selector_of
from headrace.runs.run_paths import AGENT

STILL_SECONDS = 10.0  # after which a part of the work is told again


class Handle(ABC):
    """A run that was started.

    Args:
        run: the run.

    Attributes:
        paths: the run's directory.
        run: what the run's files say.
    """

    def __init__(self, run: Run) -> None:
        self.paths: RunPaths = run.paths
        self.run = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def id(self) -> str:
        """The run id."""
        return self.paths.id

    @property
    def isolation(self) -> str:
        """How its hosts are kept apart, why so, and what to install for a better level, in one line."""
        return read_plan(self.paths, LaunchPlan).isolation.words()

    @property
    def status(self) -> Status:
        """SageMaker's status, as the run's files say now."""
        self.settle()
        return self.run.status

    @property
    def cause(self) -> Cause | None:
        """The first thing that went wrong, None if nothing did."""
        self.settle()
        return self.run.cause

    @property
    def exit_code(self) -> int | None:
        """0 for Completed, 130 when the user stopped it, 1 for every other end; None while it runs."""
        self.settle()
        return self.run.state().exit_code

    @abstractmethod
    def wait(self, timeout: float | None = None) -> Status:
        """Waits until the run is over: everything has ended and is cleaned up.

        Args:
            timeout: at most so many seconds.

        Returns:
            The status; InProgress or Stopping when the time was not enough.
        """

    @abstractmethod
    def stop(self, now: bool = False) -> None:
        """Stops the run: SIGTERM to its programs, time to save, SIGKILL. `now` leaves the first two out.

        Any thread may call it, while another one waits."""

    def settle(self) -> None:  # noqa: B027  (an engine may have nothing to do here)
        """Called before the record is read: writes what only this process can know, such as how a supervisor ended."""

    def logs(self, selector: Selector | str | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Yields log lines, merged by time; see `headrace.runs.Run.logs`.

        The agents' own notes, whose `stream.name` is ``agent``, are left out, as the commands do, unless the selector
        names them: ``dnn/algo-1/agent``, or `Selector(name="agent")`.
        """
        chosen = selector_of(selector)
        lines = self.run.logs(chosen, follow=follow)
        return lines if chosen.name is not None else (line for line in lines if line.stream.name != AGENT)

    def output(self) -> Iterator[str]:
        """Yields what one who waits wants to see, to the end of the run: the lines of all programs, and what the run
        does before and after them, such as installing requirements; of a part that takes long, how long it has taken.
        """
        events = EventFollower(self.paths, self.run.on_damage)
        lines = LogFollower(self.paths, Selector(), self.run.on_damage)
        end = EndOfRun(self.run, events)
        part, since, shown = "", 0.0, 0.0
        while True:
            for event in events.poll():
                if isinstance(event, StatusChanged):
                    part, since = told(event), event.t
                elif isinstance(event, ChannelProgress):
                    part = sentence(event)
                if text := told(event):
                    shown = time.time()
                    yield f"headrace: {text}"
            final = end.reached()
            for line in lines.poll(final):
                end.noticed()
                if line.stream.name != AGENT:
                    yield str(line)
            if final:
                return
            if part and time.time() - shown > STILL_SECONDS:
                shown = time.time()
                yield f"headrace: {part} ({shown - since:.0f} s so far)"
            time.sleep(POLL_SECONDS)

    def report(self) -> object:
        """Returns the report of the run; see `headrace.insight.report`."""
        return importlib.import_module("headrace.insight").report(self.run)


class RemoteHandle(Handle):
    """A run that lives without this process. Waiting is asking its engine until its record holds its end.

    Args:
        paths: the run's directory; its header says which engine is asked.
        ask: how often, and who is told when it cannot be asked.
    """

    def __init__(self, paths: RunPaths, ask: AskEngine | None = None) -> None:
        super().__init__(Run(paths, ask or AskEngine()))

    def wait(self, timeout: float | None = None) -> Status:
        """See `Handle.wait`."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        end = EndOfRun(self.run)
        while not end.reached() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))
        return self.run.status

    def stop(self, now: bool = False) -> None:
        """See `Handle.stop`. The engine does it, wherever the run is."""
        engines.stop(self.run, now)
