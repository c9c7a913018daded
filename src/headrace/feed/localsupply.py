"""Workers that are children of this process."""

from __future__ import annotations

import collections
import os
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext

from headrace.errors import WorkersLost
from headrace.feed.compute import Built
from headrace.feed.links import ExecutorLink, Link, start_executor
from headrace.feed.restarts import RestartBudget
from headrace.feed.supply import Supply, Worker

STACK_SECONDS = 0.5  # to write a stack


class LocalSupply(Supply):
    """Executors that are children of this process.

    Args:
        executors: how many.
        context: start method, as torch's `multiprocessing_context`.
        given: pipelines as objects.
        init: `worker_init_fn`.
    """

    def __init__(
        self,
        executors: int,
        context: str | BaseContext | None,
        given: dict[int, Built],
        init: Callable[[int], None] | None,
    ) -> None:
        super().__init__()
        self._size = executors
        self._context = context
        self._given = given
        self._init = init
        self._owner = os.getpid()
        self._missing = collections.deque(range(executors))
        self._restarts = RestartBudget()
        self._last = ""
        self._stuck: dict[int, tuple[str, float]] = {}  # those that are being ended: why, and since when

    def end_stuck(self, worker: Worker, now: float, limit: float) -> bool:
        """Has an executor that hangs write its stack to its log, and kills it a moment later."""
        assert isinstance(worker.link, ExecutorLink)
        if worker.number not in self._stuck:
            self._stuck[worker.number] = f"it hung for {limit:.0f} s; its stack is in the log", now
            worker.link.signal(signal.SIGUSR1)
            return True
        if now - self._stuck[worker.number][1] > STACK_SECONDS:
            worker.link.signal(signal.SIGKILL)
        return False

    def maintain(self, now: float) -> list[Worker]:
        """Starts what is missing, within the restart budget."""
        started = []
        while self._missing:
            number = self._missing.popleft()
            foreign = [worker.link.channel.fileno() for worker in self._workers.values()]
            link = start_executor(number, self._size, self._context, self._given, self._init, foreign)
            started.append(self._add(f"worker {number}", "executor", link))
        return started

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """An executor ended: it is replaced."""
        assert isinstance(link, ExecutorLink)
        worker = self.worker_of(link, 0)
        assert worker is not None
        self._last = worker.reason = self._stuck.pop(worker.number, ("",))[0] or link.reason()
        link.close()
        del self._workers[worker.number]
        if not self._restarts.spend(now):
            raise WorkersLost(f"{self._restarts.describe('worker processes')}; the last one {self._last}")
        self._missing.append(link.number)
        return [worker]

    def describe(self) -> str:
        """Says whom one waits for."""
        return f"waited for {self._size} local worker processes{f'; the last one {self._last}' if self._last else ''}"

    def close(self) -> None:
        """Ends the executors. In a forked child of the owner nothing is touched."""
        if os.getpid() == self._owner:
            for worker in self._workers.values():
                worker.link.close()
        self._workers.clear()
