"""Starts the supervisor of a run, the process that is responsible for it.

A supervisor stops its run when its caller dies, and the caller cleans up when the supervisor was killed: each ends what
the other one leaves. The supervisor of a detached run has no caller. When it is killed its agents end by themselves,
the header tells that the run is over, and the next start of any run removes what is left (see `cleanup`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from headrace.child_python import module_command
from headrace.errors import EngineRefused
from headrace.exit_status import exit_text, split_status
from headrace.hosting.supervision.run_environment import supervisor_environment
from headrace.hosting.supervision.supervisor_process import SupervisorProcess
from headrace.processes.process_table import Idling
from headrace.processes.spawn import UTF8
from headrace.runs import Run, RunPaths, read_header
from headrace.runs.run_paths import ENGINE
from headrace.runs.store import ASK_ENGINE

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
