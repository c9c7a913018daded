"""What `Job.fit` returns: a run, as far as this room knows it, and waiting for it. The engines have the run itself.

Stopping a run from a signal handler.

A handler runs in the middle of any line of the main thread, which may hold the very lock that a stop needs (the one of
the platform's news, or of the answer of an engine). So the handler only asks, and a thread of its own calls the engine.

An engine that cannot stop its run must not hold the user: after a stop that failed, the next wish leaves the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Protocol

from headrace.errors import HeadraceError, RunFailed, RunInterrupted
from headrace.exit_status import INTERRUPTED


class RunLeft(KeyboardInterrupt):
    """The user does not wait any more for a run that could not be stopped. What waited for it ends, as Ctrl-C does."""


class StopThread:
    """Stops a run for a signal handler. An error of the engine is told, and the run is waited for all the same.

    Args:
        stop: stops the run; its argument is whether at once.
        run_id: the run.

    Attributes:
        asked: whether a stop was ever asked for.
        failed: whether the last stop that was tried has failed.
    """

    def __init__(self, stop: Callable[[bool], None], run_id: str) -> None:
        self.asked = False
        self.failed = False
        self._stop = stop
        self._run_id = run_id
        self._wishes: SimpleQueue[bool | None] = SimpleQueue()  # the one queue that a signal handler may fill
        self._thread = threading.Thread(target=self._work, name="headrace-stop", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; a stop that has begun is carried out first."""
        self._wishes.put(None)
        self._thread.join()

    def __enter__(self) -> StopThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, now: bool = False) -> None:
        """Asks for a stop, from a signal handler or elsewhere; `now` for one without time to save.

        Raises:
            RunLeft: as `leave_if_failed` does.
        """
        self.leave_if_failed()
        self.asked = True
        self._wishes.put(now)

    def leave_if_failed(self) -> None:
        """Leaves the run if it could not be stopped, from a signal handler or elsewhere.

        Raises:
            RunLeft: the last stop has failed. What can be done later has been told.
        """
        if self.failed:
            words = f"headrace: left; {self._run_id} may run on: `headrace stop {self._run_id}` stops it later\n"
            with contextlib.suppress(OSError):  # not with `print`, which the handler may have interrupted
                os.write(2, words.encode())
            raise RunLeft

    def _work(self) -> None:
        while (now := self._wishes.get()) is not None:
            try:
                self._stop(now)
                self.failed = False
            except Exception as error:  # noqa: BLE001  (the boundary: any engine's; it is told)
                why = str(error) if isinstance(error, (HeadraceError, OSError)) else repr(error)
                self.failed = True
                tell(f"the run cannot be stopped, it goes on: {why}")
                tell(f"Ctrl-C again leaves it; `headrace stop {self._run_id}` stops it later")


_LAST_LINES = 20


class RunStatus(Protocol):
    """SageMaker's TrainingJobStatus."""

    @property
    def value(self) -> str:
        """Its text, e.g. ``Completed``."""


class FirstCause(Protocol):
    """Why a run did not succeed; its text says it in one sentence."""

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last output of the program that failed."""


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
    def cause(self) -> FirstCause | None:
        """Why it did not succeed; None when it did, or goes on."""

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Waits for the end and returns the status."""

    def logs(self, *, follow: bool = False) -> Iterable[object]:
        """Returns the lines of all programs; `follow` goes on to the end of the run."""

    def output(self) -> Iterable[object]:
        """Returns the lines of all programs, and what the run does before and after them, to the end of the run."""

    def stop(self, now: bool = False) -> None:
        """Stops the run. Any thread may call it."""


class Explains(Protocol):
    """A job."""

    def hint_after(self, lines: Sequence[str]) -> str:
        """See `Job.hint_after`."""


def tell(words: str) -> None:
    """Writes to standard error. That it cannot be written, as when Ctrl-C has ended its reader too, ends nothing."""
    with contextlib.suppress(OSError):
        print(f"headrace: {words}", file=sys.stderr, flush=True)


def tell_unseen(run_id: str, error: OSError) -> None:
    """Says that the output of a run cannot be shown any more, which does not stop it."""
    again = f"`headrace logs {run_id} -f` shows it, Ctrl-C stops it"
    tell(f"the output cannot be written ({error.strerror}): {run_id} goes on unseen; {again}")


def show(lines: Iterable[object], run_id: str) -> None:
    """Prints lines of a run as they come, for as long as they can be printed."""
    for line in lines:
        try:
            print(line, flush=True)
        except OSError as error:
            tell_unseen(run_id, error)
            break


def wait_for_success(handle: RunHandle, *, logs: bool, job: Explains | None = None) -> None:
    """Waits for the end of a run.

    Args:
        handle: the run.
        logs: print the output of all programs meanwhile, and what the run does before and after them.
        job: what it runs; a hint about its failure may come of it.

    Raises:
        RunFailed: it did not succeed.
    """
    if logs:
        show(handle.output(), handle.id)
    status = handle.wait()
    if status.value != "Completed":
        cause = handle.cause
        lines = cause.last_lines[-_LAST_LINES:] if cause else ()
        message = f"{handle.id}: {status.value}: {cause or 'no cause is known'}"
        hint = job.hint_after(lines) if job else ""
        raise RunFailed(message, hint or f"headrace logs {handle.id}", lines)


class CtrlC:
    """Ctrl-C while a run is started and waited for stops the run, and then ends the program as a stop does.

    The first one stops the run with time to save, a second one at once. While the run is being started the first one
    is kept for it, so that no run is left that nobody stops; a second one breaks off the start. When the run was
    stopped, the program ends with exit code 130 and without a traceback (`RunInterrupted`); where Python is used
    interactively it goes on, with KeyboardInterrupt. When the run could not be stopped, the next one leaves it and ends
    the program likewise. A run that ended otherwise counts as it ended. A handler of the
    user's own is left in its place, and then does what it does.
    """

    def __init__(self) -> None:
        self._handle: RunHandle | None = None
        self._stopping: StopThread | None = None
        self._count = 0
        self._installed = False

    def stops(self, handle: RunHandle) -> None:
        """Names the run."""
        if self._installed:
            stopping = StopThread(self._stop, handle.id)
            stopping.start()
            self._handle, self._stopping = handle, stopping
            if self._count and not stopping.asked:
                stopping.ask()

    def __enter__(self) -> CtrlC:
        if threading.current_thread() is threading.main_thread():
            self._installed = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._installed:
            signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._stopping is not None:
            self._stopping.close()
        if not self._count or not self._stopped(error):
            return
        if isinstance(error, RunFailed):
            with contextlib.suppress(OSError):
                print(error.message, file=sys.stderr, flush=True)
        elif self._handle is None:
            tell("stopped by Ctrl-C before the run began")
        if hasattr(sys, "ps1") or sys.flags.inspect:  # a prompt, or a script with a prompt behind it (python -i)
            raise KeyboardInterrupt from None
        raise RunInterrupted(INTERRUPTED) from None

    def _stopped(self, error: BaseException | None) -> bool:
        """Tells whether the wait has ended because of Ctrl-C."""
        if error is None or isinstance(error, RunFailed):
            return self._handle is not None and self._handle.status.value == "Stopped"
        return isinstance(error, KeyboardInterrupt)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._stopping is not None:
            self._stopping.ask(now=self._count > 1)
        elif self._count > 1:
            raise KeyboardInterrupt  # `start` leaves nothing
        else:
            with contextlib.suppress(OSError):  # not with `print`, which the handler may have interrupted
                os.write(2, b"headrace: stopping once it has started (Ctrl-C again to break off)\n")

    def _stop(self, now: bool) -> None:
        assert self._handle is not None
        tell("killing" if now else "stopping (Ctrl-C again to kill)")
        self._handle.stop(now=now)
