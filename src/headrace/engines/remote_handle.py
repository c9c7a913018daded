"""The handle of a run that a platform answers for, and no process of this machine: the same for all such engines."""

from __future__ import annotations

import time

from headrace import engines
from headrace.engines.asking import AskEngine
from headrace.engines.handle import Handle
from headrace.runs import EndOfRun, Run, RunPaths, Status

POLL_SECONDS = 0.2


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
