"""Stopping a run from a signal handler.

A handler runs in the middle of any line of the main thread, which may hold the very lock that a stop needs (the one of
the platform's news, or of the answer of an engine). So the handler only asks, and a thread of its own calls the engine.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace.errors import HeadraceError


class StopThread:
    """Stops a run for a signal handler. An error of the engine is told, and the run is waited for all the same.

    Args:
        stop: stops the run; its argument is whether at once.

    Attributes:
        asked: whether a stop was ever asked for.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.asked = False
        self._stop = stop
        self._wishes: SimpleQueue[bool | None] = SimpleQueue()  # the one queue that a signal handler may fill
        self._thread = threading.Thread(target=self._work, name="headrace-stop", daemon=True)

    def __enter__(self) -> StopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wishes.put(None)
        self._thread.join()  # a stop that has begun is carried out

    def ask(self, now: bool = False) -> None:
        """Asks for a stop, from a signal handler or elsewhere; `now` for one without time to save."""
        self.asked = True
        self._wishes.put(now)

    def _work(self) -> None:
        while (now := self._wishes.get()) is not None:
            try:
                self._stop(now)
            except Exception as error:  # noqa: BLE001  (the boundary: any engine's; it is told)
                why = str(error) if isinstance(error, (HeadraceError, OSError)) else repr(error)
                print(f"headrace: the run cannot be stopped, it goes on: {why}", file=sys.stderr, flush=True)
