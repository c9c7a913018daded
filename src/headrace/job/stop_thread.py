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
        stop: stops the run; its argument is how often that was asked for.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._asked: SimpleQueue[int] = SimpleQueue()  # the one queue that a signal handler may fill
        self._thread = threading.Thread(target=self._work, name="headrace-stop", daemon=True)

    def __enter__(self) -> StopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(0)
        self._thread.join()  # a stop that has begun is carried out

    def ask(self, times: int) -> None:
        """Asks for a stop, from a signal handler or elsewhere.

        Args:
            times: how often that was asked for with this call; nothing is done for a number that was there before.
        """
        self._asked.put(times)

    def _work(self) -> None:
        done = 0
        for times in iter(self._asked.get, 0):
            if times > done:
                done = times
                try:
                    self._stop(times)
                except Exception as error:  # noqa: BLE001  (the boundary: any engine's; it is told)
                    why = str(error) if isinstance(error, (HeadraceError, OSError)) else repr(error)
                    print(f"headrace: the run cannot be stopped, it goes on: {why}", file=sys.stderr, flush=True)
