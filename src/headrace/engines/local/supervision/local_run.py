"""The caller's end of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from headrace.engines.handle import Handle
from headrace.engines.local.limits.cgroups import RECORD, REMOVE_SECONDS, find_places, sweep
from headrace.exit_status import exit_text, split_status
from headrace.hosting.supervision.cleanup import remove_leftovers
from headrace.processes.process_table import Process, is_running, look, send
from headrace.processes.stopped_time import LIMIT, StoppedTime, describe_stopped
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, read_header
from headrace.runs.events import HostStarted, RunFinished

ENGINE = "engine"  # name of the engine's event file
POLL_SECONDS = 0.05
LOOKS = 0.5  # seconds between two looks at the supervisor
AGENTS_SECONDS = 15.0  # for the agents to end, when the supervisor was killed

_live: set[LocalHandle] = set()  # keeps handles alive: one that is collected would close the lifeline of its run


class LocalHandle(Handle):
    """A run that this process has started. Unless it is detached, it is stopped when this process dies.

    Args:
        paths: the run's directory.
        process: the supervisor, or what stands for it.
        lifeline: this end of the pipe that tells the supervisor that the caller lives; None for a detached run.
    """

    def __init__(self, paths: RunPaths, process: subprocess.Popen[bytes], lifeline: int | None) -> None:
        super().__init__(Run(paths))
        self._process = process
        self._lifeline = lifeline
        self._over = False
        self._stopped_time = StoppedTime(process.pid)
        self._found_stopped = False
        _live.add(self)

    def wait(self, timeout: float | None = None) -> Status:
        """See `Handle.wait`."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self._process.poll() is None and (left := deadline - time.monotonic()) > 0:
            self.look_after()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(left, LOOKS))
        return self.status

    def look_after(self) -> None:
        """Ends a supervisor that has been stopped (SIGSTOP) for some seconds: the run would never end. `wait` does it;
        a caller that waits in another way calls it now and then."""
        if self._process.poll() is None and self._stopped_time.seconds() > LIMIT:
            self._found_stopped = True
            self._process.kill()

    def stop(self, now: bool = False) -> None:
        """See `Handle.stop`."""
        if self._process.poll() is None:
            for number in _stop_signals(now):
                self._process.send_signal(number)

    def settle(self) -> None:
        """When the supervisor has ended: closes its lifeline, and writes how the run ended if it could not."""
        if self._over or self._process.poll() is None:
            return
        self._over = True
        if self._lifeline is not None:
            os.close(self._lifeline)
        _live.discard(self)
        if not any(isinstance(event, RunFinished) for event in self.run.events()):
            self._write_end()

    def _write_end(self) -> None:
        code = self._process.returncode
        how = describe_stopped() if self._found_stopped else exit_text(*split_status(code))
        end_agents(self.run, AGENTS_SECONDS)
        remove_leftovers(self.paths)
        sweep(find_places(), [self.paths.root / RECORD], REMOVE_SECONDS)
        cause = Cause(CauseKind.ENGINE_FAILED, f"the engine's supervisor {'was ' if code < 0 else ''}{how}")
        with EventWriter(self.paths.events(ENGINE)) as events:  # its writer is dead
            events.write(RunFinished(t=time.time(), status=Status.FAILED, cause=cause))


class DetachedHandle(LocalHandle):
    """A run that lives without this process: its parent is the run's keeper (see `detached`)."""

    def wait(self, timeout: float | None = None) -> Status:
        """Waits until the run is over; see `Handle.wait`."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        super().wait(timeout)
        while not self.run.finished and time.monotonic() < deadline:  # its keeper was killed: it is being stopped
            time.sleep(POLL_SECONDS)
        return self.status

    def stop(self, now: bool = False) -> None:
        """Stops the run; see `Handle.stop`."""
        stop_run(self.paths, now)

    def settle(self) -> None:
        """See `Handle.settle`."""
        if self._process.poll() is not None and not self.run.supervised:
            super().settle()


def end_agents(run: Run, seconds: float) -> None:
    """Waits for agents that have lost their supervisor; they end their hosts themselves. Kills those that do not."""
    pids = [event.pid for event in run.events() if isinstance(event, HostStarted)]
    # An agent is told from a later process of its pid by the mark of its run.
    agents = [agent for pid in pids if (agent := look(pid)) is not None and _is_of_run(pid, run.id)]
    deadline = time.monotonic() + seconds
    while any(is_running(agent.pid, agent.start) for agent in agents):
        if time.monotonic() > deadline:
            for agent in agents:
                send(agent, signal.SIGKILL)
        time.sleep(0.02)


def _is_of_run(pid: int, run_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"HEADRACE_RUN_ID={run_id}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def stop_run(paths: RunPaths, now: bool = False) -> bool:
    """Signals the supervisor of a run, and no later process that got its pid.

    Returns:
        Whether it was still there.

    Raises:
        OSError, msgspec.DecodeError: the run has no readable header.
    """
    header = read_header(paths)
    supervisor = Process(header.supervisor_pid, 0, int(header.supervisor_start_time), "", 0, 0)
    return all(send(supervisor, number) for number in _stop_signals(now))


def _stop_signals(now: bool) -> tuple[signal.Signals, ...]:
    # Two different signals: two of the same kind may arrive as one.
    return (signal.SIGTERM, signal.SIGINT) if now else (signal.SIGTERM,)
