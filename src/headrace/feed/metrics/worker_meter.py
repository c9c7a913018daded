"""Measures data workers: writes a `WorkerSecond` every second, with what they made and what their time went to.

Nothing is measured where there is no file to write it to.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable

import psutil

from headrace.feed.batch.row_layout import decode_layout
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.tcp_busy import LinkUse
from headrace.feed.metrics.worker_time import WorkTime
from headrace.feed.wire import messages
from headrace.feed_metrics import Because, WorkerSecond

WINDOW_SECONDS = 1.0


class WorkMeter:
    """Measures the executors of a feed server, or of one loader.

    Args:
        file: where the lines go.
        loader: the loader whose own workers they are; empty for a feed server.
        executors: how many there are.
        pids: returns the processes that they are now.
        clock: monotonic seconds.

    Attributes:
        links: what is sent to clients, where that goes through a network.
        because, because_figures: what the number of executors is based on, where the loader chooses it.
    """

    def __init__(
        self,
        file: MetricFile,
        loader: str,
        executors: int,
        pids: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.links = LinkUse()
        self.because: Because | None = None
        self.because_figures = ""
        self._file = file
        self._loader = loader
        self._pids = pids
        self._clock = clock
        self._time = WorkTime(executors, clock())
        self._due = clock() + WINDOW_SECONDS
        self._requests: dict[int, collections.deque[messages.SliceRequest]] = {}
        self._slices = self._samples = self._bytes = 0
        self._processes: dict[int, tuple[psutil.Process, float]] = {}

    def asked(self, executor: int, request: messages.SliceRequest) -> None:
        """An executor was given a slice, behind those that it has."""
        if self._file:
            self._requests.setdefault(executor, collections.deque()).append(request)
            self._time.asked(executor, self._clock())

    def answered(self, executor: int, answer: messages.Message) -> None:
        """An executor has answered the first of its slices; other messages than answers do not count."""
        if not isinstance(answer, (messages.Done, messages.Failed, messages.Unstackable, messages.Cancelled)):
            return
        owed = self._requests.get(executor)
        if not owed:
            return
        request, seconds = owed.popleft(), None
        if isinstance(answer, messages.Done):
            seconds = answer.seconds
            failed = {failure.batch for failure in answer.failures}
            batches = [batch for number, batch in enumerate(request.batches) if number not in failed]
            self._slices += 1
            self._samples += sum(batch.last - batch.first - len(batch.left_out) for batch in batches)
            self._bytes += _payload(request, answer, batches)
        elif isinstance(answer, messages.Cancelled):
            seconds = 0.0
        self._time.answered(executor, self._clock(), seconds)

    def lost(self, executor: int) -> None:
        """An executor has ended."""
        if self._requests.pop(executor, None) is not None:
            self._time.lost(executor, self._clock())

    def hold(self, count: int) -> None:
        """Says how many results wait to be sent, and how many slices wait for memory, from now on."""
        self._time.hold(count, self._clock())

    def tick(self, executors: int) -> None:
        """Writes a line when one is due.

        Args:
            executors: how many there are.
        """
        if self._file and self._clock() >= self._due:
            self._time.executors = executors
            self.flush()

    def flush(self) -> None:
        """Writes a line now."""
        if not self._file:
            return
        now = self._clock()
        spent = self._time.take(now)
        self._due = now + WINDOW_SECONDS
        if not spent.seconds:
            return
        sent, sending = self.links.take()
        slices, samples, size = self._slices, self._samples, self._bytes
        self._slices = self._samples = self._bytes = 0  # before the write: a signal may end it, and a last one comes
        self._file.write(
            WorkerSecond(
                t=round(time.time(), 6), seconds=round(spent.seconds, 6), loader=self._loader,
                executors=self._time.executors, produce=round(spent.produce, 6), blocked=round(spent.blocked, 6),
                idle=round(spent.idle, 6), cpu=round(self._cpu(), 6), slices=slices, samples=samples, bytes=size,
                sent=sent, sending=round(min(sending, spent.seconds), 6), because=self.because,
                because_figures=self.because_figures,
            )
        )  # fmt: skip

    def _cpu(self) -> float:
        """Returns the CPU seconds since the last time; those of a process that has ended since then are not seen."""
        used, processes = 0.0, {}
        for pid in self._pids():
            try:
                process, before = self._processes.get(pid) or (psutil.Process(pid), 0.0)
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            processes[pid] = (process, times.user + times.system)
            used += times.user + times.system - before
        self._processes = processes
        return used


def _payload(request: messages.SliceRequest, answer: messages.Done, batches: list[messages.BatchRows]) -> int:
    """Returns the payload bytes of an answer; `size` is that of a whole slab, or ends behind the slice's batch."""
    if answer.layout and (answer.fresh or len(request.batches) == 1) and answer.size:
        layout = decode_layout(answer.layout)
        return sum(layout.size(batch.last - batch.first) for batch in batches)
    return answer.size
