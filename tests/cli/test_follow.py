"""Following a run that is over while the end of its record is on its way: Ctrl-C breaks that off."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from unittest.mock import Mock

from headrace.cli.follow import follow
from headrace.engines.handle import Handle
from headrace.runs import EventWriter, Run, Status, create_run
from headrace.runs.events import RunFinished


class Storing(Handle):
    """A run that has finished. While Ctrl-C comes its wait holds the lock that its stop takes."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def wait(self, timeout: float | None = None) -> Status:
        with self._lock:
            signal.raise_signal(signal.SIGINT)
        assert self._stopped.wait(20), "nobody has stopped it"
        return self.status

    def stop(self, now: bool = False) -> None:
        assert self._lock.acquire(timeout=2), "a deadlock"
        self._lock.release()
        self._stopped.set()


def test_the_handler_waits_for_no_lock_that_the_wait_holds(tmp_path: Path) -> None:
    paths = create_run("job", runs=tmp_path)
    with EventWriter(paths.events("engine")) as events:
        events.write(RunFinished(t=1.0, status=Status.COMPLETED))
    assert follow(lambda: Storing(Run(paths)), Mock()).exit_code == 0
