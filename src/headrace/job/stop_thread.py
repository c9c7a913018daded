"""Stopping a run from a signal handler.

A handler runs in the middle of any line of the main thread, which may hold the very lock that a stop needs (the one of
the platform's news, or of the answer of an engine). So the handler only asks, and a thread of its own calls the engine.

An engine that cannot stop its run must not hold the user: after a stop that failed, the next wish leaves the run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace.errors import HeadraceError


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
                then = f"headrace: Ctrl-C again leaves it; `headrace stop {self._run_id}` stops it later"
                print(f"headrace: the run cannot be stopped, it goes on: {why}\n{then}", file=sys.stderr, flush=True)
                self.failed = True
