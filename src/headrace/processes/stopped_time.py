"""Time of processes that may be stopped (SIGSTOP), suspended with their job, or held up by a file system that stalls.

`Idling` tells how long another process has done nothing. By `RunningClock` a process tells how long others have been
silent: while it does not run itself, it hears nobody, and everything may have been suspended together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.processes.process_table import TICKS, descendants, look

STOPPED_STATE = "T"  # of the kernel; a process that a debugger holds has "t"


def is_stopped(pid: int) -> bool:
    """Tells whether a process is stopped now."""
    process = look(pid)
    return process is not None and process.state == STOPPED_STATE


class Idling:
    """How long a process and its descendants have used no CPU time. On a busy machine a process gets little, but some.

    Args:
        pid: a child of this process that was not waited for.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: int | None = None
        self._since = 0.0

    @property
    def used(self) -> float:
        """CPU seconds that they had used at the last look."""
        return (self._ticks or 0) / TICKS

    def seconds(self) -> float:
        """Returns it as of now; it is counted from the first call on."""
        process, now = look(self._pid), time.monotonic()
        ticks = sum(each.ticks for each in (process, *descendants(self._pid))) if process is not None else -1
        if ticks != self._ticks:
            self._ticks, self._since = ticks, now
        return now - self._since

    def overdue(self, limit: float) -> str:
        """Returns why what begins will not be ready any more, in words; empty while it may.

        Args:
            limit: seconds without any CPU time, or of CPU time, that its start has at the most.
        """
        if self.seconds() >= limit:
            return f"was not ready: it has used no CPU time for {limit:g} s"
        return f"was not ready after {limit:g} s of CPU time" if self.used >= limit else ""


class RunningClock:
    """Seconds for which this process has run. It stands while the process does not.

    Args:
        most: seconds between two calls that count at the most. It is called more often than that.
        clock: seconds that do not go back.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._called = clock()
        self._ran = 0.0

    def __call__(self) -> float:
        """Returns the seconds so far."""
        now = self._clock()
        self._ran += min(now - self._called, self._most)
        self._called = now
        return self._ran
