"""The keeper, the caller of a detached run: `python -m headrace.hosting.supervision.detached RUN_DIR PROVIDER`.

It starts the supervisor, reports on standard output whether it runs, and waits. If one of them is killed, the
other one cleans up: a supervisor whose keeper dies stops the job, a keeper whose supervisor dies waits for the agents,
removes what is left and writes how the run ended. It has a session of its own and ignores the end of a terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from headrace.errors import EngineRefused
from headrace.hosting.helpers.helper_main import error_line
from headrace.hosting.supervision.start import start_supervisor
from headrace.processes.child_report import ChildReport
from headrace.runs import RunPaths


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


if __name__ == "__main__":
    sys.exit(main())
