"""The links of a client: its local executors, the feed server of its own host, and its receiver with the remote hosts.

All of them speak `messages` over a Unix stream socket with descriptors, so the session treats them alike: a link
carries one or more workers (executors, hosts), each known by its number, which is the frame's route on a receiver's
link.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import psutil

from headrace.child_python import module_command
from headrace.errors import FeedError, PipelineError
from headrace.exit_status import exit_text, split_status
from headrace.feed.descriptors import FULL, no_room
from headrace.feed.identifiers import PipelineNumber
from headrace.feed.pipelines.fetch import Built
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection, Link
from headrace.feed.wire.messages import OpenFailed, RemoteError, decode_greeting
from headrace.feed.wire.remote_errors import kind_of
from headrace.feed.worker.executor import executor_main
from headrace.feed.worker.executor_rules import Hang
from headrace.feed.worker.parent_death import watch_parent

PICKLED_HINT = "with spawn and forkserver the dataset is pickled: define functions and classes at the top of a module"
TELL_SECONDS = 5.0


def connect_unix(address: str) -> Link:
    """Connects to a feed server of this host, ``unix:@name``. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)  # where too many wait to be accepted, it is an error, and tried again
    try:
        connection.connect("\0" + address.removeprefix("unix:").removeprefix("@"))
    except OSError:
        connection.close()
        raise
    return Link(FramedConnection(connection, handshake=decode_greeting))


@dataclass(eq=False)
class ReceiverLink(Link):
    """To the receiver process, which holds the TCP connections."""

    process: subprocess.Popen[bytes]

    def reason(self) -> str:
        """Returns how the receiver ended."""
        try:
            return f"the receiver process {exit_text(*split_status(self.process.wait(1.0)))}"
        except subprocess.TimeoutExpired:
            return "the receiver process closed its connection"

    def cpu_seconds(self) -> float:
        """Returns the process's CPU time, also when it has ended and was not waited for."""
        try:
            times = psutil.Process(self.process.pid).cpu_times() if self.process.returncode is None else None
        except psutil.NoSuchProcess:  # somebody else has waited for it
            times = None
        return 0.0 if times is None else times.user + times.system

    def close(self) -> None:
        """Closes the connection; the receiver ends at that."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def start_receiver() -> ReceiverLink:
    """Starts a receiver process."""
    ours, theirs = socket.socketpair()
    with ExitStack() as undo, theirs:
        undo.callback(ours.close)
        command = module_command("headrace.feed.client.receiver")
        command += ["--socket", str(theirs.fileno()), "--parent", str(os.getpid())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        undo.pop_all()
    return ReceiverLink(FramedConnection(ours), process, shared=True)


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
