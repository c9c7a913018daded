"""The keeper, the caller of a detached run: `python -m headrace.hosting.supervision.detached RUN_DIR PROVIDER`.

It starts the supervisor, reports on standard output whether it runs, and waits. If one of them is killed, the
other one cleans up: a supervisor whose keeper dies stops the job, a keeper whose supervisor dies waits for the agents,
removes what is left and writes how the run ended. It has a session of its own and ignores the end of a terminal.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.child_python import module_command
from headrace.errors import EngineRefused
from headrace.hosting.helpers.helper_main import error_line
from headrace.hosting.supervision.run_environment import supervisor_environment
from headrace.hosting.supervision.start import SUPERVISOR_SECONDS, start_supervisor
from headrace.hosting.supervision.supervisor_process import KeeperProcess
from headrace.instance.lifeline import RUN_ID
from headrace.processes.child_report import ChildReport, read_report
from headrace.processes.process_table import pids, read_proc
from headrace.processes.spawn import UTF8
from headrace.processes.stopped_time import Idling
from headrace.runs import Run, RunPaths, process_start_time, supervisor_alive

KEEPER = "headrace.hosting.supervision.detached"


def main() -> int:
    """Entry point. Returns 0 when the run has ended, 1 when it could not be started."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    root, provider = sys.argv[1:]
    try:
        supervisor = start_supervisor(RunPaths(Path(root)), provider)
    except EngineRefused as error:
        ChildReport(error=error_line(error)).send()
        return 1
    with contextlib.suppress(BrokenPipeError):  # the caller was killed meanwhile: the run lives without it
        ChildReport(ready=True).send()
    null = os.open(os.devnull, os.O_WRONLY)  # the caller reads no further
    os.dup2(null, 1)
    os.close(null)
    while not supervisor.finished:
        supervisor.wait()
    return 0


def start_keeper(paths: RunPaths, provider: str, held: Sequence[int] = ()) -> KeeperProcess:
    """Starts the keeper of a run that is prepared, and with it the run. See `start_supervisor`."""
    logs = paths.engine
    logs.mkdir(exist_ok=True)
    with (logs / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            module_command(KEEPER, str(paths.root), provider, options=UTF8),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=supervisor_environment(paths.id),
            cwd=paths.root,
            start_new_session=True,
            pass_fds=held,
        )
    report = read_report(_first_line(process)) or ChildReport()
    if not report.ready:
        process.kill()  # its supervisor sees that and ends
        process.wait()
        raise EngineRefused(report.error or f"the run's keeper did not start; see {logs}")
    return KeeperProcess(Run(paths), process, None, provider)


def await_keeper(run: Run) -> None:
    """Waits until a run whose caller was killed while it started the keeper has a process that answers for it, or none
    that belongs to it.
    """
    while not supervisor_alive(run.header) and _has_processes(run.id):
        time.sleep(0.02)


def _has_processes(run_id: str) -> bool:
    """Tells whether a process of this machine has the mark of a run."""
    mark = f"{RUN_ID}={run_id}".encode()
    for pid in pids():
        try:
            marked = mark in read_proc(f"/proc/{pid}/environ").split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if marked and process_start_time(pid) is not None:
            return True
    return False


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Returns what a process says first; empty if it says nothing for as long as a supervisor may be silent."""
    assert process.stdout is not None
    idling = Idling(process.pid)
    with process.stdout as out, selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        while idling.seconds() < 2 * SUPERVISOR_SECONDS:
            if selector.select(1.0):
                return out.readline().decode(errors="replace").strip()
    return ""


if __name__ == "__main__":
    sys.exit(main())
