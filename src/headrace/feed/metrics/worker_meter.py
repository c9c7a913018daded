"""Measures data workers: writes a `WorkerSecond` every second, with what they made and what their time went to.

Nothing is measured where there is no file to write it to.

An executor makes its slices one after the other, in the order asked. It tells how long each took, so it is known when
it was at work even if its answers are read late: a slice begins when it was asked for, or when the one before it was
done, whichever is later. Time that is no work is *blocked* as long as something is *held*: results that wait to be
sent, or work that waits for memory. Each of them keeps one executor from being asked. All other time is *idle*. So
produce + blocked + idle = executors * seconds, in every window.

How busy a connection is, the kernel counts: TCP_INFO (Linux 4.10) has the time in which it had bytes to send or to be
acknowledged, and how much of that the receiver's window did not let it. The difference is time that the network took.
"""

from __future__ import annotations

import collections
import struct
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil

from headrace.feed.batch.row_layout import decode_layout
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed_metrics import Because, WorkerSecond

_BUSY = struct.Struct("=QQ")  # microseconds: busy, and of these limited by the receiver's window
_BUSY_OFFSET = 168  # of tcpi_busy_time in struct tcp_info
_INFO_BYTES = _BUSY_OFFSET + _BUSY.size
SHARE_SECONDS = 1.0


class LinkUse:
    """Sums over the connections of a server. One that has ended is not kept, also when the sums are never taken."""

    def __init__(self) -> None:
        self._seen: dict[FramedConnection, tuple[int, float]] = {}  # bytes and busy seconds that were added up
        self._sent, self._longest = 0, 0.0
        self._busy: dict[FramedConnection, float] = {}  # busy seconds when the share was worked out
        self._share = self._shared_at = 0.0

    def share(self, now: float) -> float:
        """Returns which part of the time the busiest connection was sending, over about the last second.

        Args:
            now: monotonic seconds.
        """
        length = now - self._shared_at
        if length >= SHARE_SECONDS:
            before, self._busy = self._busy, {}
            for connection in self._seen:
                self._busy[connection] = busy_seconds(connection.tcp_info(_INFO_BYTES))
            spent = [busy - before[connection] for connection, busy in self._busy.items() if connection in before]
            self._share = min(1.0, max(spent, default=0.0) / length)
            self._shared_at = now
        return self._share

    def begin(self, connection: FramedConnection) -> None:
        """A client has come over TCP."""
        self._seen[connection] = (0, 0.0)

    def end(self, connection: FramedConnection) -> None:
        """Its connection is closed."""
        if connection in self._seen:
            self._add(connection)
            del self._seen[connection]

    def take(self) -> tuple[int, float]:
        """Returns the bytes that have left since the last time, and the seconds that the busiest connection took."""
        for connection in self._seen:
            self._add(connection)
        taken = self._sent, self._longest
        self._sent, self._longest = 0, 0.0
        return taken

    def _add(self, connection: FramedConnection) -> None:
        bytes_before, busy_before = self._seen[connection]
        busy = max(busy_before, busy_seconds(connection.tcp_info(_INFO_BYTES)))
        self._sent += connection.bytes_sent - bytes_before
        self._longest = max(self._longest, busy - busy_before)
        self._seen[connection] = (connection.bytes_sent, busy)


def busy_seconds(info: bytes) -> float:
    """Returns the seconds of a TCP_INFO in which the network was busy; 0 for a closed connection's."""
    if len(info) < _INFO_BYTES:
        return 0.0
    busy: int
    limited: int
    busy, limited = _BUSY.unpack_from(info, _BUSY_OFFSET)
    return max(0, busy - limited) / 1e6


class WindowTime(NamedTuple):
    """Executor seconds of one window of `seconds`."""

    seconds: float
    produce: float
    blocked: float
    idle: float


class WorkTime:
    """See the module. Times are monotonic seconds.

    Args:
        executors: how many there are.
        now: when the first window begins.

    Attributes:
        executors: how many there are; may change between windows.
    """

    def __init__(self, executors: int, now: float) -> None:
        self.executors = executors
        self._asked: dict[int, collections.deque[float]] = {}  # of each executor: when it was asked what it owes
        self._since: dict[int, float] = {}  # since when those that work do so
        self._since_sum = 0.0
        self._closed = 0.0  # work on slices that are done
        self._told = 0.0  # work that windows before this one had
        self._begun = self._settled = now
        self._settled_work = 0.0
        self._held = 0
        self._blocked = 0.0

    def asked(self, executor: int, now: float) -> None:
        """An executor was asked for one more slice."""
        owed = self._asked.setdefault(executor, collections.deque())
        owed.append(now)
        if len(owed) == 1:
            self._settle(now)
            self._begin(executor, now)

    def answered(self, executor: int, now: float, seconds: float | None) -> None:
        """An executor has answered what it was asked first.

        Args:
            executor: which.
            now: when the answer was read.
            seconds: how long it worked on it; None where it did not tell: until now.
        """
        owed = self._asked.get(executor)
        if not owed:
            return
        self._settle(now)
        owed.popleft()
        end = self._end(executor, now if seconds is None else min(now, self._since[executor] + seconds))
        if owed:
            self._begin(executor, max(end, owed[0]))

    def lost(self, executor: int, now: float) -> None:
        """An executor has ended; no answer of it is outstanding any more."""
        if self._asked.pop(executor, None):
            self._settle(now)
            self._end(executor, now)

    def hold(self, count: int, now: float) -> None:
        """Says how many results or slices are held from now on."""
        if count != self._held:
            self._settle(now)
            self._held = count

    def take(self, now: float) -> WindowTime:
        """Ends a window, and begins the next one."""
        self._settle(now)
        seconds = max(0.0, now - self._begun)
        whole = self.executors * seconds
        produce = min(whole, max(0.0, self._work(now) - self._told))
        blocked = min(whole - produce, self._blocked)
        self._told += produce
        self._begun, self._blocked = now, 0.0
        return WindowTime(seconds, produce, blocked, whole - produce - blocked)

    def _begin(self, executor: int, since: float) -> None:
        self._since[executor] = since
        self._since_sum += since

    def _end(self, executor: int, end: float) -> float:
        since = self._since.pop(executor)
        self._since_sum = self._since_sum - since if self._since else 0.0
        self._closed += end - since
        return end

    def _work(self, now: float) -> float:
        return self._closed + len(self._since) * now - self._since_sum

    def _settle(self, now: float) -> None:
        """Adds up what was blocked since the last time; what is held has not changed since then."""
        if self._held:
            span, work = now - self._settled, self._work(now) - self._settled_work
            free = self.executors * span - work
            self._blocked += max(0.0, min(free, self._held * span))
        self._settled, self._settled_work = now, self._work(now)


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

    @property
    def measures(self) -> bool:
        """Whether there is a file to write to."""
        return bool(self._file)

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
