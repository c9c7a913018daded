"""The caller's end of a run on this machine."""

from __future__ import annotations

from headrace.engines.handle import Handle
from headrace.hosting.supervision.supervisor_process import SupervisorProcess
from headrace.runs import Status


class LocalHandle(Handle):
    """A run that this process has started. Unless it is detached, it is stopped when this process dies.

    Args:
        supervisor: its supervisor, or the keeper of a detached run.
    """

    def __init__(self, supervisor: SupervisorProcess) -> None:
        super().__init__(supervisor.run)
        self._supervisor = supervisor

    def wait(self, timeout: float | None = None) -> Status:
        """See `Handle.wait`."""
        self._supervisor.wait(timeout)
        return self.status

    def stop(self, now: bool = False) -> None:
        """See `Handle.stop`."""
        self._supervisor.stop(now)

    def settle(self) -> None:
        """See `Handle.settle`."""
        self._supervisor.settle()
