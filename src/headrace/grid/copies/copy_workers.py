"""Does many pieces of work at once, with a bound, and ends when it is asked to."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from headrace.grid.copies.copy_failure import CopyFailed, CopyFailure

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS = 0.5
"""After so long at most it is seen that an end was asked for."""


def all_at_once(
    parallel: int, work: Callable[[T], R], items: Iterable[T], done: Callable[[T, R], object], stop: threading.Event
) -> None:
    """Works on all items in threads.

    Args:
        parallel: how many at once.
        work: what is done with an item.
        items: taken as they are needed.
        done: told of each in the caller's thread, as it is done.
        stop: ends the work; what has begun is done to its end first.

    Raises:
        CopyFailed: an end was asked for.
        what `work` raises: the first one ends the others.
    """
    left = iter(items)
    running: dict[Future[R], T] = {}
    with ThreadPoolExecutor(parallel, "headrace-copy") as pool:
        try:
            while True:
                if stop.is_set():
                    raise CopyFailed(CopyFailure.STOPPED, "the copy was stopped", "it goes on where it was")
                for item in itertools.islice(left, 2 * parallel - len(running)):
                    running[pool.submit(work, item)] = item
                if not running:
                    return
                ended, _ = wait(running, LOOK_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    done(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
