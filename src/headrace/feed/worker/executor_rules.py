"""What holds for executors wherever they run, in the trainer's process tree or behind a feed server.

How many slices they are given, what becomes of one that hangs, and how often they may be replaced: within a window of
time, and in a row while none gets as far as to answer. A worker that was killed is replaced and goes on. One that
cannot start ends again and again, however long each attempt takes, so those that end without an answer are counted
until one answers.
"""

from __future__ import annotations

import collections
import signal
from collections.abc import Callable

RESTARTS, WINDOW = 20, 60.0
STARTS = 4  # in a row that end before they have answered
DEPTH = 2  # slices that an executor is given: one at work, one waiting behind it
STACK_SECONDS = 0.5  # that an executor which hangs has for writing its stack


class Hang:
    """Ends an executor that hangs: it writes its stack to its log, and is killed a moment later.

    Args:
        send: sends it a signal.

    Attributes:
        reason: why it is being ended; empty while it is not.
    """

    def __init__(self, send: Callable[[int], None]) -> None:
        self._send = send
        self.answered()

    def answered(self) -> None:
        """It has answered after all: it is not to be killed the next time."""
        self.reason = ""
        self._since: float | None = None
        self._killed = False

    def overdue(self, now: float, limit: float) -> bool:
        """It has worked on one slice for more than `limit` seconds. Returns whether that was not known."""
        if self._since is None:
            self._since, self.reason = now, f"it hung for {limit:.0f} s; its stack is in the log"
            self._send(signal.SIGUSR1)
            return True
        if now - self._since > STACK_SECONDS and not self._killed:
            self._killed = True
            self._send(signal.SIGKILL)
        return False


class RestartBudget:
    """Counts the workers that ended lately, and those that ended in a row before they had begun.

    Attributes:
        refusal: in which words its owner is refused, since it is used up.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._ends: collections.deque[float] = collections.deque()
        self._vain = 0

    def begun(self) -> None:
        """A worker has answered: workers can be started."""
        self._vain = 0

    def spend(self, now: float, *, begun: bool, killed_beside_others: bool = False) -> bool:
        """A worker has ended.

        Args:
            now: monotonic seconds.
            begun: whether it had ever answered.
            killed_beside_others: whether somebody killed it while others serve: that says nothing of whether workers
                can start.

        Returns:
            Whether it may be replaced.
        """
        self._vain = 0 if begun or killed_beside_others else self._vain + 1
        self._ends.append(now)
        return self.left(now)

    def left(self, now: float) -> bool:
        """Returns whether a worker may be replaced."""
        while self._ends and self._ends[0] < now - WINDOW:
            self._ends.popleft()
        return len(self._ends) <= RESTARTS and not self.cannot_start

    @property
    def cannot_start(self) -> bool:
        """Whether so many have ended before they had begun that no further one is tried."""
        return self._vain >= STARTS

    def describe(self, who: str) -> str:
        """Returns in words how many ended, e.g. of ``worker processes``."""
        if self.cannot_start:
            return f"{self._vain} {who} ended before they had begun"
        return f"{len(self._ends)} {who} ended within {WINDOW:.0f} s"
