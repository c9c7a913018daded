"""Fetches the record of a run that nobody follows, on the machine that submitted it:
`python -m headrace.engines.kubernetes.watch_run RUN_DIR`.

A run whose record is stored nowhere else is complete only if somebody fetches it before its pods end. So a detached
run leaves this process behind. There is one for a run (a lock says so), and whatever looks at the run starts it again
when it is gone, such as after a reboot. It ends with the run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.child_python import UTF8, module_command
from headrace.engines.asking import AskEngine
from headrace.engines.platform_news import alone
from headrace.hosting.supervision.instances import supervisor_environment
from headrace.runs import EndOfRun, Run, RunPaths

MODULE = "headrace.engines.kubernetes.watch_run"
LOCK, TOLD = "watch_run.lock", "watch_run.told"  # below the run's engine directory
SECONDS = 2.0  # between two looks


def ensure_watched(paths: RunPaths) -> None:
    """Starts the process that watches a run, unless it is there.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be started, or the run's directory cannot be written.
    """
    with alone(paths, lock_file=LOCK) as mine:
        if not mine:
            return
    with (paths.engine / TOLD).open("ab") as told:
        command = module_command(MODULE, str(paths.root), options=UTF8)
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", *command],  # so that it is no child of this process, which may live long
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            env=supervisor_environment(paths.id),
            cwd=paths.root,
            start_new_session=True,
            check=True,
        )


def main(arguments: list[str]) -> int:
    """Entry point. Returns 0 when the run has ended, or another process watches it."""
    paths = RunPaths(Path(arguments[0]))
    with alone(paths, lock_file=LOCK) as mine:
        if not mine:
            return 0
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        run = Run(paths, AskEngine(_tell, SECONDS))
        end = EndOfRun(run)
        while not end.reached():
            time.sleep(SECONDS)
            if not paths.header.exists():  # somebody has removed the run
                return 0
    return 0


def _tell(sentence: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
