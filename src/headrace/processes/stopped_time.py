"""Time of processes that may be stopped (SIGSTOP), suspended with their job, or held up by a file system that stalls.

`StoppedTime` tells how long another process has been stopped, `Idling` how long it has done nothing. By `RunningClock`
a process tells how long others have been silent: while it does not run itself, it hears nobody, and everything may have
been suspended together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.processes.process_table import TICKS, descendants, look

STOPPED_STATE = "T"  # of the kernel; a process that a debugger holds has "t"
LIMIT = 5.0
LOOKS = 0.5  # seconds between two looks
PAUSE = 2.0  # between two looks: the process that looks was stopped too


def is_stopped(pid: int) -> bool:
    """Tells whether a process is stopped now."""
    process = look(pid)
    return process is not None and process.state == STOPPED_STATE


class StoppedTime:
    """Watches one process.

    Args:
        pid: the process; it is a child of this one, or its pid cannot be used again for another reason.
        clock: seconds that do not go back.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._clock = clock
        self._since = float("inf")
        self._looked = float("-inf")

    def seconds(self) -> float:
        """Returns for how long it has been seen stopped, without a break; 0 if it is not. A pause of this process does
        not count: everything may have been suspended together."""
        now = self._clock()
        gap = now - self._looked
        if gap >= LOOKS:
            still = is_stopped(self._pid)
            begins_anew = gap > PAUSE or self._since == float("inf")
            self._since = float("inf") if not still else now if begins_anew else self._since
            self._looked = now
        return max(0.0, now - self._since)


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


def describe_stopped(seconds: float = LIMIT) -> str:
    """Returns how such a process ended, in words."""
    return f"stopped (SIGSTOP) for {seconds:g} s, then killed"
