"""What `Job.fit` returns: a run, as far as this room knows it, and waiting for it. The engines have the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.errors import RunFailed


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
    def isolation(self) -> str:
        """How its hosts are kept apart, and why so, in one line."""

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


def follow(handle: RunHandle, *, to_the_end: bool) -> None:
    """Prints the output of all programs so far, or up to the end of the run."""
    for line in handle.logs(follow=to_the_end):
        print(line, flush=True)


def wait_for_success(handle: RunHandle, *, logs: bool) -> None:
    """Waits for the end of a run.

    Args:
        handle: the run.
        logs: print the output of all programs meanwhile.

    Raises:
        RunFailed: it did not succeed.
    """
    if logs:
        follow(handle, to_the_end=True)
    status = handle.wait()
    if status.value != "Completed":
        reason = str(handle.cause or "no cause is known")
        raise RunFailed(f"{handle.id}: {status.value}: {reason}", hint=f"headrace logs {handle.id}")
