"""Workers that are children of this process."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.context import BaseContext

from headrace.errors import WorkersLost
from headrace.feed.client.links import ExecutorInputs, ExecutorLink, start_executor, start_method
from headrace.feed.client.worker_pool import Arrival, Worker, WorkerPool
from headrace.feed.identifiers import NO_ROUTE, WorkerNumber
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.worker_meter import WorkMeter
from headrace.feed.wire.framed_connection import Link
from headrace.feed.wire.messages import SliceRequest
from headrace.feed.worker.executor_rules import RestartBudget
from headrace.feed_metrics import Because

_log = logging.getLogger(__name__)

# The first batch is made by the first worker. To fork a large process takes a while, and to pickle a large dataset
# takes long, so the others are started when it has answered, or has not within these seconds of having its dataset.
FORK_SECONDS, SPAWN_SECONDS = 0.05, 0.5
START_STEP = 0.01
CHEAP_SECONDS = 0.015  # if all others are forked in less, they are, at once


class LocalPool(WorkerPool):
    """Executors that are children of this process.

    Args:
        executors: how many.
        context: start method, as torch's `multiprocessing_context`.
        inputs: what each is given.
        metrics: where a line a second goes.
        loader: name of the loader in these lines.
    """

    def __init__(
        self,
        executors: int,
        context: str | BaseContext | None,
        inputs: ExecutorInputs,
        metrics: MetricFile | None = None,
        loader: str = "",
    ) -> None:
        super().__init__()
        self._work = WorkMeter(metrics, loader, executors, self.pids) if metrics else None
        self._size, self._context = executors, context
        self._inputs = inputs._replace(most=max(executors, inputs.most))
        self._owner = os.getpid()
        self._missing = collections.deque(range(executors))
        self._restarts = RestartBudget()
        self._last = ""
        self._forked = start_method(context) == "fork"
        self._begun = self._opened = self._fork_seconds = 0.0
        self._ending: list[ExecutorLink] = []  # those that were let go
        self._hanging = False  # whether any was being ended when it was last looked

    def pids(self) -> list[int]:
        """Returns the process ids of the executors."""
        links = (worker.link for worker in self._workers.values())
        return [link.pid for link in links if isinstance(link, ExecutorLink) and link.pid]

    def request(self, worker: Worker, request: SliceRequest) -> None:
        """See WorkerPool."""
        if self._work is not None:
            self._work.asked(worker.number, request)
        super().request(worker, request)

    def held(self, *, short: bool) -> None:
        """Whether slices wait for memory: then every executor that has nothing to do is blocked."""
        if self._work is not None:
            self._work.hold(self._size if short else 0)

    def exchange(self, pause: float) -> list[Arrival]:
        """See WorkerPool."""
        arrivals = super().exchange(pause)
        if self._work is not None:
            for arrival in arrivals:
                worker = self.worker_of(arrival.link, NO_ROUTE)
                for frame in arrival.frames:
                    if worker is not None:
                        self._work.answered(worker.number, frame.message)
            self._work.tick(self._size)
        return arrivals

    def end_stuck(self, numbers: Sequence[WorkerNumber], now: float, limit: float) -> int:
        """Has executors that hang write their stacks to their log, and kills them a moment later."""
        if not numbers and not self._hanging:
            return 0
        self._hanging, found = bool(numbers), 0
        for number, worker in self._workers.items():
            assert isinstance(worker.link, ExecutorLink)
            if number in numbers:
                found += worker.link.hang.overdue(now, limit)
            else:
                worker.link.hang.answered()
        return found

    @property
    def executors(self) -> int:
        """Executors of all workers, those included that will be started."""
        return self._size

    @property
    def patience(self) -> float:
        """Seconds after which `maintain` should be called again."""
        return START_STEP if self._missing else super().patience

    def resize(self, executors: int) -> None:
        """Has as many executors from now on: starts what is missing, or has those with the highest numbers leave."""
        self._size = executors
        staying = {
            worker.link.number: worker for worker in self._workers.values()
            if isinstance(worker.link, ExecutorLink) and not worker.leaves
        }  # fmt: skip
        free = (number for number in itertools.count() if number not in staying and number not in self._missing)
        while len(staying) + len(self._missing) < executors:
            self._missing.append(next(free))
        while self._missing and len(staying) + len(self._missing) > executors:
            self._missing.pop()
        for number in sorted(staying)[executors:]:
            self.dismiss(staying[number])

    def tuned(self, because: Because, figures: str) -> None:
        """Notes what the number of executors is based on."""
        if self._work is not None:
            self._work.because, self._work.because_figures = because, figures

    def release(self, worker: Worker) -> None:
        """Lets an executor go: it ends when its connection is closed, and is waited for later."""
        link = worker.link
        assert isinstance(link, ExecutorLink)
        self._forget(worker)
        link.settle()
        link.channel.close()
        self._ending.append(link)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.number]
        if self._work is not None:
            self._work.lost(worker.number)

    def _due(self, now: float) -> int:
        """Returns how many to start now. The others wait for the first one to give something, but not long."""
        if self.served or not self._missing:
            return len(self._missing)
        if not self._workers:
            self._begun = now
            return 1
        if self._forked and self._fork_seconds * len(self._missing) < CHEAP_SECONDS:
            return len(self._missing)
        if any(worker.ready for worker in self._workers.values()):
            self._opened = self._opened or now
        grace = FORK_SECONDS if self._forked else SPAWN_SECONDS
        late = bool(self._opened) and now - self._opened > grace
        late = late or (self._forked and now - self._begun > 5 * FORK_SECONDS)
        return len(self._missing) if late else 0

    def maintain(self, now: float) -> list[Worker]:
        """Starts what is missing, within the restart budget."""
        started: list[Worker] = []
        for link in [link for link in self._ending if link.process.exitcode is not None]:
            self._ending.remove(link)
            link.close()
        while due := self._due(now):
            for _ in range(due):
                started.append(self._start(self._missing.popleft()))
        return started

    def _start(self, number: int) -> Worker:
        foreign = [worker.link.channel.fileno() for worker in self._workers.values()]
        begun = time.perf_counter()
        link = start_executor(number, self._context, self._inputs, foreign)
        self._fork_seconds = time.perf_counter() - begun
        _log.debug("worker %d: process %s", number, link.pid)
        return self._add(f"worker {number}", "executor", link)

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """An executor ended: it is replaced."""
        assert isinstance(link, ExecutorLink)
        worker = self.worker_of(link, NO_ROUTE)
        assert worker is not None
        self._last = worker.reason = link.hang.reason or link.reason()
        _log.info("%s: ended: %s", worker.name, self._last)
        code = link.process.exitcode
        link.close()
        self._forget(worker)
        if worker.leaves:
            return [worker]
        killed = code is not None and code < 0 and any(other.ready for other in self._workers.values())
        if not self._restarts.spend(now, begun=worker.ready, killed_beside_others=killed):
            told = f"{self._restarts.describe('worker processes')}; the last one {self._last}"
            raise WorkersLost(told, self._start_hint(code) if self._restarts.cannot_start else "")
        self._missing.append(link.number)
        return [worker]

    def _start_hint(self, code: int | None) -> str:
        """Returns what to do about workers that end, with that exit code, before they have answered."""
        if code == 1 and not self._forked:
            return (
                "see the traceback above; what a script does must stand under `if __name__ == '__main__':`, "
                "because with spawn and forkserver its workers import it"
            )
        if code is not None and code < 0:
            return "the kernel kills processes when memory is short: use fewer workers, or a smaller dataset object"
        return "see what they wrote above: what the dataset imports, or worker_init_fn, ends the process"

    def opened(self, worker: Worker) -> None:
        """See WorkerPool."""
        self._restarts.begun()
        super().opened(worker)

    def describe(self) -> str:
        """Returns whom a session waits for, in words."""
        words = f"waited for {self._size} local worker processes"
        if not self.served and not any(worker.ready for worker in self._workers.values()):
            words += ", none of which has opened its dataset yet"
        return f"{words}; the last one {self._last}" if self._last else words

    def close(self) -> None:
        """Ends the executors. In a forked child of the owner nothing is touched."""
        if os.getpid() == self._owner:
            if self._work is not None:
                self._work.flush()
            with ExitStack() as stack:  # all of them, also when one cannot be
                for link in (*(worker.link for worker in self._workers.values()), *self._ending):
                    stack.callback(link.close)
        self._workers.clear()
