"""What `Job.fit` returns: a run, as far as this room knows it. The engines have the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class RunStatus(Protocol):
    """SageMaker's TrainingJobStatus."""

    @property
    def value(self) -> str:
        """Its text, e.g. ``Completed``."""


class RunHandle(Protocol):
    """What `Job.fit` returns: a run. The engine's own handle has more."""

    @property
    def id(self) -> str:
        """The run id."""

    @property
    def status(self) -> RunStatus:
        """Where the run is now."""

    @property
    def cause(self) -> object | None:
        """Why it did not succeed; None when it did, or goes on."""

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Waits for the end and returns the status."""

    def logs(self, *, follow: bool = False) -> Iterable[object]:
        """Returns the lines of all programs; `follow` goes on to the end of the run."""

    def stop(self, now: bool = False) -> None:
        """Stops the run."""
