"""Runs the user's command with the probe in every Python process below it, and ends it when the trial is over.

The command has a session of its own, so one signal reaches all of it. When the trial is over the training processes
unwind by themselves; a command that goes on after that (a shell script with further lines), or a process that does not
end, is ended with SIGTERM and then SIGKILL. Nothing of a command that is ended is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

import psutil

from headrace.child_python import die_with_parent
from headrace.measuring import watch

BOOTSTRAP = Path(__file__).parent / "bootstrap"
UNWIND_SECONDS = 120.0
GO_ON_SECONDS = 5.0
TERM_SECONDS = 10.0


class Command:
    """The command that is on trial.

    Args:
        argv: the command.
        folder: private folder of the trial.
        spec: what to measure.
        stdout: where its standard output goes; None for this process's own.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], folder: Path, spec: watch.Spec, stdout: int | IO[str] | None) -> None:
        self.folder = folder
        self._full = spec.full
        (folder / "trial.json").write_text(json.dumps(spec._asdict()))
        path = os.environ.get("PYTHONPATH", "")
        env = os.environ | {
            "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{path}" if path else str(BOOTSTRAP),
            watch.FOLDER_VARIABLE: str(folder),
        }
        me = os.getpid()
        self._process = subprocess.Popen(
            argv,
            env=env,
            stdout=stdout,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509 - the command line has no threads
        )
        self._over_since: float | None = None  # all ranks have ended, or had the time to
        self._unwinding_since: float | None = None
        self._terminated: float | None = None

    def poll(self, ranks: Collection[int]) -> int | None:
        """Returns the exit code (negative for a signal), None while it runs.

        Args:
            ranks: pids of the processes that were measured.
        """
        code = self._process.poll()
        if code is None and not self._full:
            self._end_what_goes_on(ranks)
        return code

    @property
    def ended_by_us(self) -> bool:
        """Whether it went on after the trial and was ended."""
        return self._terminated is not None

    def _end_what_goes_on(self, ranks: Collection[int]) -> None:
        if not (self.folder / "over").exists():
            return
        now = time.monotonic()
        if self._over_since is None or any(_runs(pid) for pid in ranks):
            self._unwinding_since = self._unwinding_since or now
            if self._over_since is None or now - self._unwinding_since < UNWIND_SECONDS:
                self._over_since = now
        if self._terminated is None and now - self._over_since > GO_ON_SECONDS:
            self._terminated = now
            self.signal(signal.SIGTERM)
        elif self._terminated is not None and now - self._terminated > TERM_SECONDS:
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Sends a signal to the whole command."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Kills what is left of it: its process group, and whatever carries the mark of this trial."""
        self.signal(signal.SIGKILL)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(watch.FOLDER_VARIABLE) == str(self.folder) and process.pid != os.getpid():
                    process.kill()
        self._process.wait()


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
