"""Workers that are children of this process: how they are started, and how they are kept up."""

from __future__ import annotations

import collections
import gc
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from headrace.child_python import watch_parent
from headrace.errors import FeedError, PipelineError, WorkersLost
from headrace.exit_status import exit_text, split_status
from headrace.feed.client.worker_pool import Arrival, Worker, WorkerPool
from headrace.feed.descriptors import FULL, no_room
from headrace.feed.identifiers import NO_ROUTE, PipelineNumber
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.worker_meter import WorkMeter
from headrace.feed.pipelines.fetch import Built
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection, Link
from headrace.feed.wire.messages import OpenFailed, RemoteError, SliceRequest
from headrace.feed.wire.remote_errors import kind_of
from headrace.feed.worker.executor import executor_main
from headrace.feed.worker.executor_rules import Hang, RestartBudget
from headrace.feed_metrics import Because

PICKLED_HINT = "with spawn and forkserver the dataset is pickled: define functions and classes at the top of a module"
TELL_SECONDS = 5.0


@dataclass(eq=False)
class ExecutorLink(Link):
    """To one local executor."""

    number: int
    process: Any  # multiprocessing's Process of some context
    starting: threading.Thread | None = None
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.hang = Hang(self.signal)

    @property
    def pid(self) -> int:
        """The process's id; 0 while it is being started."""
        return 0 if self.starting is not None and self.starting.is_alive() else self.process.pid or 0

    def settle(self) -> None:
        """Waits until the process has been started, or could not be."""
        if self.starting is not None:
            self.starting.join()
            self.starting = None

    def reason(self) -> str:
        """Returns how the executor ended, also in the words of torch. Raises FeedError if it could not be started."""
        self.settle()
        if self.failure is not None:
            raise _not_started(self.failure) from self.failure
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "closed its connection"
        exit_code, number = split_status(code)
        torchs = f"DataLoader worker (pid(s) {self.process.pid}) exited unexpectedly"
        if number is not None:
            torchs = f"DataLoader worker (pid {self.process.pid}) is killed by signal: {signal.strsignal(number)}"
        return f"{exit_text(exit_code, number)}: {torchs}"

    def signal(self, number: int) -> None:
        """Sends the executor a signal."""
        self.settle()
        if self.process.exitcode is None:
            os.kill(self.process.pid, number)

    def close(self) -> None:
        """Ends the executor."""
        self.channel.close()
        self.settle()
        if self.failure is not None:
            return
        if self.process.exitcode is None:
            self.process.kill()
        self.process.join()
        self.process.close()


class ExecutorInputs(NamedTuple):
    """What each local executor is given.

    Attributes:
        pipelines: as objects: inherited by a fork, pickled by other start methods, as torch does.
        init: `worker_init_fn`.
        most: how many executors there will ever be.
    """

    pipelines: dict[PipelineNumber, Built]
    init: Callable[[int], None] | None = None
    most: int = 0


def _context(context: str | BaseContext | None) -> Any:
    return multiprocessing.get_context(context) if context is None or isinstance(context, str) else context


def start_method(context: str | BaseContext | None) -> str:
    """Returns the start method of a context, as torch's `multiprocessing_context` names it."""
    return str(_context(context).get_start_method())


def start_executor(
    number: int, context: str | BaseContext | None, inputs: ExecutorInputs, foreign: Sequence[int]
) -> ExecutorLink:
    """Starts a local executor.

    Args:
        number: which one.
        context: start method or context, as torch's `multiprocessing_context`; None for the platform's default.
        inputs: what it is given.
        foreign: descriptors of this process that a forked child must close: the other executors' sockets.
    """
    chosen = _context(context)
    if chosen.current_process().daemon:
        raise FeedError(
            "this loader cannot start worker processes here: daemonic processes are not allowed to have children, and "
            f"this process, {chosen.current_process().name}, is one",
            hint="load in the process itself (num_workers=0), or start it with daemon=False",
        )
    ours, theirs = socket.socketpair()
    forked = chosen.get_start_method() == "fork"
    close = [*foreign, ours.fileno()] if forked else []
    link = ExecutorLink(FramedConnection(ours), number, None)

    def start() -> None:
        try:
            with _nothing_collected() if forked else nullcontext():
                link.process.start()
        except Exception as error:  # noqa: BLE001 - the dataset is pickled here, which may raise anything
            link.failure = error
        except BaseException as error:
            link.failure = error
            if forked:
                raise  # a Ctrl-C
        finally:
            theirs.close()

    try:
        link.process = chosen.Process(
            target=_local_main,
            args=(_WorkerEnd(theirs), number, inputs, os.getpid(), close, gc.isenabled()),
            daemon=True,
            name=f"headrace-worker-{number}",
        )
        if forked:  # in this thread: a forked child has the thread that called fork, and no other
            start()
        else:  # the child has to import what it needs before it takes its dataset; meanwhile the next one is started
            link.starting = threading.Thread(target=start, name=f"headrace-start-{number}")
            link.starting.start()
    except BaseException:
        theirs.close()
        link.channel.close()
        raise
    if forked and link.failure is not None:
        link.channel.close()
        raise _not_started(link.failure) from link.failure
    return link


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keeps Python from collecting garbage, in a forked child too: it would be the trainer's.

    What holds something of CUDA's ends the child when it is freed there.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _not_started(failure: BaseException) -> FeedError:
    """Returns what is raised for a worker process that could not be started."""
    if isinstance(failure, OSError) and failure.errno in FULL:
        return no_room(failure)
    unpicklable = isinstance(failure, (pickle.PicklingError, AttributeError, TypeError))
    named = str(failure) if unpicklable or isinstance(failure, OSError) else f"{type(failure).__name__}: {failure}"
    return FeedError(f"cannot start a worker process: {named}", PICKLED_HINT if unpicklable else "")


class _WorkerEnd:
    """A worker's end of its connection, which comes first of what it is given.

    Where that is pickled, the worker tells through it what it cannot unpickle: its process ends by that.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.connection = state["connection"]
        sys.excepthook = self._tell

    def take(self) -> socket.socket:
        """Returns the connection: all that was given is there."""
        if sys.excepthook == self._tell:
            sys.excepthook = sys.__excepthook__
        return self.connection

    def _tell(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        words = (
            "a worker process cannot unpickle what it was given (dataset, collate_fn, worker_init_fn): "
            f"{kind.__name__}: {error}. {PICKLED_HINT[0].upper()}{PICKLED_HINT[1:]}"
        )
        text = "".join(traceback.format_exception(kind, error, trace))
        channel = FramedConnection(self.take())
        try:
            channel.send(OpenFailed(PipelineNumber(0), RemoteError(kind_of(PipelineError), words, text)))
            channel.drain(TELL_SECONDS)
        except (ConnectionClosed, TimeoutError):
            sys.__excepthook__(kind, error, trace)


def _local_main(
    end: _WorkerEnd, number: int, inputs: ExecutorInputs, parent: int, close: Sequence[int], collects: bool
) -> None:
    gc.freeze()  # what a fork inherits is never collected in it; see `_nothing_collected`
    if collects:
        gc.enable()
    for descriptor in close:
        os.close(descriptor)
    watch_parent(parent)
    roots = [Path(os.path.realpath(entry or ".")) for entry in sys.path]
    executor_main(end.take(), number, inputs.most, roots, inputs.pipelines, inputs.init)


_log = logging.getLogger(__name__)

# The first batch is made by the first worker. To fork a large process takes a while, and to pickle a large dataset
# takes long, so the others are started when it has answered, or has not within these seconds of having its dataset.
FORK_SECONDS, SPAWN_SECONDS = 0.05, 0.5
START_STEP = 0.01
CHEAP_SECONDS = 0.015  # if all others are forked in less, they are, at once


def _link(worker: Worker) -> ExecutorLink:
    assert isinstance(worker.link, ExecutorLink), "a local pool has no others"
    return worker.link


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
        self._work = WorkMeter(metrics or MetricFile(""), loader, executors, self.pids)
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
        return [link.pid for link in map(_link, self._workers.values()) if link.pid]

    def request(self, worker: Worker, request: SliceRequest) -> None:
        """See WorkerPool."""
        self._work.asked(worker.number, request)
        super().request(worker, request)

    def held(self, *, short: bool) -> None:
        """Whether slices wait for memory: then every executor that has nothing to do is blocked."""
        self._work.hold(self._size if short else 0)

    def exchange(self, pause: float) -> list[Arrival]:
        """See WorkerPool."""
        arrivals = super().exchange(pause)
        for arrival in arrivals if self._work.measures else ():
            if (worker := self.worker_of(arrival.link, NO_ROUTE)) is not None:
                for frame in arrival.frames:
                    self._work.answered(worker.number, frame.message)
        self._work.tick(self._size)
        return arrivals

    def end_stuck(self, now: float, limit: float) -> int:
        """Has executors that hang write their stacks to their log, and kills them a moment later."""
        stuck = [worker for worker in self._workers.values() if worker.stuck(now, limit)]
        if not stuck and not self._hanging:
            return 0
        self._hanging, fresh = bool(stuck), 0
        for worker in self._workers.values():
            if worker in stuck:
                fresh += _link(worker).hang.overdue(now, limit)
            else:
                _link(worker).hang.answered()
        return fresh

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
        staying = {_link(worker).number: worker for worker in self._workers.values() if not worker.leaves}
        free = (number for number in itertools.count() if number not in staying and number not in self._missing)
        while len(staying) + len(self._missing) < executors:
            self._missing.append(next(free))
        while self._missing and len(staying) + len(self._missing) > executors:
            self._missing.pop()
        for number in sorted(staying)[executors:]:
            self.dismiss(staying[number])

    def tuned(self, because: Because, figures: str) -> None:
        """Notes what the number of executors is based on."""
        self._work.because, self._work.because_figures = because, figures

    def release(self, worker: Worker) -> None:
        """Lets an executor go: it ends when its connection is closed, and is waited for later."""
        link = _link(worker)
        self._forget(worker)
        link.settle()
        link.channel.close()
        self._ending.append(link)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.number]
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
        return self._add(f"worker {number}", link, is_executor=True)

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """An executor ended: it is replaced."""
        worker = self.worker_of(link, NO_ROUTE)
        assert worker is not None
        executor = _link(worker)
        self._last = worker.reason = executor.hang.reason or executor.reason()
        _log.info("%s: ended: %s", worker.name, self._last)
        code = executor.process.exitcode
        executor.close()
        self._forget(worker)
        if worker.leaves:
            return [worker]
        killed = code is not None and code < 0 and any(other.ready for other in self._workers.values())
        if not self._restarts.spend(now, begun=worker.ready, killed_beside_others=killed):
            told = f"{self._restarts.describe('worker processes')}; the last one {self._last}"
            raise WorkersLost(told, self._start_hint(code) if self._restarts.cannot_start else "")
        self._missing.append(executor.number)
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
            self._work.flush()
            with ExitStack() as stack:  # all of them, also when one cannot be
                for link in (*(worker.link for worker in self._workers.values()), *self._ending):
                    stack.callback(link.close)
        self._workers.clear()
