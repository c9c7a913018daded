"""Tells a program that the kernel killed for memory from one that another process killed.

The kernel's counter of the host rises before the process ends. Every SIGKILL that is explained takes one from the
rise; what is left stands for `RECENT` seconds, so that a rank that fails because its child was killed can say so, and
a later SIGKILL of another origin is not taken for one of the kernel's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable

from headrace.processes.oom import FD_VARIABLE, OomCounter, format_bytes, whose_memory
from headrace.runs.cause import Cause, CauseKind

_log = logging.getLogger(__name__)

RECENT = 5.0
INTERVAL = 1.0


class MemoryKills:
    """The out-of-memory kills of this host.

    Args:
        limit: bytes that the host may use; 0 means no limit.
        counter: the kernel's counter; by default that of $HEADRACE_OOM_FD, None without one.
        clock: seconds.
    """

    def __init__(
        self,
        limit: int,
        counter: OomCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._counter = counter or _inherited_counter()
        self._clock = clock
        self._seen = 0
        self._news = 0  # kills that nothing was explained with
        self._risen = 0.0  # when the counter rose last
        if self._counter is not None:
            with contextlib.suppress(OSError, ValueError):  # it will be logged when it is needed
                self._seen = self._counter.read()  # an earlier attempt of the job may have had kills in the same group

    def of_program(self, exit_code: int | None, number: int | None) -> Cause:
        """Returns how a program ended: for memory, if the kernel's lack of it explains the end.

        Args:
            exit_code, number: one is set: its exit code, or the signal that ended it.
        """
        if not self.look() or exit_code == 0:
            return Cause(CauseKind.PROGRAM_EXITED, exit_code=exit_code, signal=number)
        if number == signal.SIGKILL:
            return self._killed()
        killed, self._news = self._news, 0
        processes = "one of its processes" if killed == 1 else f"{killed} of its processes"
        of = f" ({format_bytes(self._limit)})" if self._limit else ""
        detail = f"the kernel had killed {processes} for memory (OOM): the instance's limit{of} was reached"
        return Cause(CauseKind.CHILD_OUT_OF_MEMORY, detail, exit_code=exit_code, signal=number)

    def of_executor(self, exit_code: int | None, number: int | None) -> Cause:
        """Returns how a data worker process ended: as `of_program`, but it has no children whose end explains its own.

        Args:
            exit_code, number: one is set: its exit code, or the signal that ended it.
        """
        if number == signal.SIGKILL and self.look():
            return self._killed()
        return Cause(CauseKind.PROGRAM_EXITED, exit_code=exit_code, signal=number)

    def _killed(self) -> Cause:
        self._news -= 1
        return Cause(CauseKind.OUT_OF_MEMORY, whose_memory(self._limit), signal=signal.SIGKILL)

    def close(self) -> None:
        """Closes the counter."""
        if self._counter is not None:
            self._counter.close()

    async def watch(self) -> None:
        """Keeps the time of the last rise until cancelled."""
        while self._counter is not None:
            self.look()
            await asyncio.sleep(INTERVAL)

    def look(self) -> int:
        """Returns the recent kills that nothing was explained with."""
        if self._counter is None:
            return 0
        try:
            kills = self._counter.read()
        except (OSError, ValueError) as error:
            _log.warning("the kernel's count of out-of-memory kills cannot be read any more: %s", error)
            self._counter = None
            return 0
        if kills > self._seen:
            _log.warning("the kernel has killed %d processes of this instance for memory (OOM)", kills - self._seen)
            self._news += kills - self._seen
            self._seen, self._risen = kills, self._clock()
        elif self._clock() - self._risen > RECENT:
            self._news = 0
        return self._news


def _inherited_counter() -> OomCounter | None:
    descriptor = os.environ.get(FD_VARIABLE)
    return OomCounter(int(descriptor)) if descriptor else None
