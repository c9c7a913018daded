"""Starts the supervisor of a run, the process that is responsible for it, and answers for it as its caller.

A supervisor stops its run when its caller dies, and the caller cleans up when the supervisor was killed: each ends what
the other one leaves. The caller keeps the lifeline open while the supervisor runs. When that was killed, a caller that
lives cleans up and writes how the run ended; a thread then stores the end of the record: `wait` waits for it as long as
it may, and a stop breaks it off.

The supervisor of a detached run has no caller. When it is killed its agents end by themselves, the header tells that
the run is over, and the next start of any run removes what is left (see `cleanup`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from headrace.child_python import UTF8, module_command
from headrace.errors import EngineRefused
from headrace.exit_status import exit_text, split_status
from headrace.hosting.supervision.cleanup import remove_leftovers
from headrace.hosting.supervision.helper_processes import BY_STOP, store_rest
from headrace.hosting.supervision.instances import find_provider, supervisor_environment
from headrace.processes.process_table import Idling, Process, send
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, read_header
from headrace.runs.run_paths import ENGINE
from headrace.runs.state import run_finished
from headrace.runs.store import ASK_ENGINE

LOOKS = 0.5  # seconds between two looks at the supervisor
RECORD_SECONDS = 120.0  # for the end of the record to be stored, when the supervisor was killed

_live: set[SupervisorProcess] = set()  # keeps them alive: one that is collected would close the lifeline of its run


class SupervisorProcess:
    """The supervisor of a run that this process has started.

    Args:
        run: the run.
        process: the supervisor.
        lifeline: this end of the pipe that tells the supervisor that the caller lives; a detached one reads nothing.
        provider: name of the module that brings the run's instances.

    Attributes:
        run: what the run's files say.
    """

    def __init__(self, run: Run, process: subprocess.Popen[bytes], lifeline: int, provider: str) -> None:
        self.run = run
        self._process = process
        self._lifeline = lifeline
        self._provider = provider
        self._over = False
        self._storing: threading.Thread | None = None  # the end of the record, when the supervisor was killed
        self._storing_unwanted = False
        _live.add(self)

    @property
    def finished(self) -> bool:
        """Whether the run is over. How it ended is written first, if the supervisor could not."""
        self.settle()
        return self.run.finished

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the run is over, at most so many seconds."""
        self._wait_until(time.monotonic() + (float("inf") if timeout is None else timeout))

    def _wait_until(self, deadline: float) -> None:
        while self._process.poll() is None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(left, LOOKS))
        self.settle()
        while self._storing is not None and self._storing.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._storing.join(min(left, LOOKS))

    def stop(self, now: bool) -> None:
        """Stops the run; `now` does not wait for its programs. What is over stores no more of its record."""
        if self._process.poll() is None:
            for number in _stop_signals(now):
                self._process.send_signal(number)
        else:
            self._storing_unwanted = True

    def settle(self) -> None:
        """When the supervisor has ended: closes its lifeline, and writes how the run ended if it could not."""
        if self._over or self._process.poll() is None:
            return
        self._over = True
        os.close(self._lifeline)
        _live.discard(self)
        finished = self.run.over
        if not finished:
            self._write_end()
        if not finished or self._process.returncode < 0:  # the supervisor has not stored the end of the record
            self._storing = threading.Thread(target=self._store, name="headrace-record")  # Python's end waits for it
            self._storing.start()

    def _store(self) -> None:
        environment = supervisor_environment(self.run.id)
        store_rest(self.run.paths, RECORD_SECONDS, lambda: BY_STOP if self._storing_unwanted else "", environment)

    def _write_end(self) -> None:
        code = self._process.returncode
        how = exit_text(*split_status(code))
        find_provider(self._provider).clean_up(self.run)
        remove_leftovers(self.run.paths)
        cause = Cause(CauseKind.ENGINE_FAILED, f"the engine's supervisor {'was ' if code < 0 else ''}{how}")
        with EventWriter(self.run.paths.events(ENGINE)) as events:  # its writer is dead
            events.write(run_finished(Status.FAILED, cause))


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


SUPERVISOR = "headrace.hosting.supervision.supervisor"
SUPERVISOR_SECONDS = 30.0  # of no CPU time at all: on a busy machine a process gets little, but some


def start_supervisor(
    paths: RunPaths, provider: str, held: Sequence[int] = (), detach: bool = False
) -> SupervisorProcess:
    """Starts the supervisor of a run that is prepared.

    Args:
        paths: the run's directory.
        provider: name of the module that brings the run's instances (see `instances`).
        held: descriptors that stay open as long as the run.
        detach: whether it goes on when this process ends.

    Raises:
        EngineRefused, OSError: it does not start; then nothing is left.
    """
    logs = paths.engine
    logs.mkdir(exist_ok=True)
    before = _event_bytes(paths)
    reading, writing = os.pipe()
    try:
        with (logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                module_command(SUPERVISOR, str(paths.root), str(0 if detach else os.getpid()), provider, options=UTF8),
                stdin=reading,
                stdout=log,
                stderr=log,
                env=supervisor_environment(paths.id),
                cwd=paths.root,  # so that no module of the user's directory is imported in its place
                start_new_session=True,  # a signal to the caller's terminal is none to the supervisor
                pass_fds=held,
            )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        _await_supervisor(paths, process, before)
    except BaseException:
        os.close(writing)
        process.kill()
        process.wait()
        raise
    return SupervisorProcess(Run(paths), process, writing, provider)


def _await_supervisor(paths: RunPaths, process: subprocess.Popen[bytes], before: int) -> None:
    """Waits until the supervisor is responsible for the run, so that other processes can see and stop it.

    The header says so, or, of a run that its engine answers for, the first event that it writes.
    """
    idling = Idling(process.pid)
    while (pid := read_header(paths).supervisor_pid) != process.pid:
        if pid == ASK_ENGINE and _event_bytes(paths) > before:
            return
        if process.poll() is not None or idling.seconds() > SUPERVISOR_SECONDS:
            words = (paths.engine / "supervisor.log").read_text(errors="replace").strip()
            code = process.returncode
            hint = ""
            if code is None:
                words = words or f"it used no CPU time for {SUPERVISOR_SECONDS:g} s"
                hint = "its files may lie on a file system that does not answer, or somebody stopped it: try again"
            elif code < 0:
                words = f"it was {exit_text(*split_status(code))}"
                hint = "a person may have done that, or the kernel because memory was short (see dmesg): try again"
            raise EngineRefused(f"the engine's supervisor did not start: {words or exit_text(code, None)}", hint)
        time.sleep(0.005)


def _event_bytes(paths: RunPaths) -> int:
    """Returns how much supervisors have written of the run's events so far."""
    try:
        return paths.events(ENGINE).stat().st_size
    except FileNotFoundError:
        return 0
