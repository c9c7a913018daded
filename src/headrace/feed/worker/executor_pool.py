"""The executors of one feed server: started through the fork server, fed, replaced when they die.

What the pool knows of an executor: which pipelines it has opened, which slabs it has mapped, and what it was given to
do, in order (the first is what it works on). When it dies, that first task is the one it may have died of; the others
go back to the queue.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from headrace.child_python import module_command
from headrace.feed.identifiers import PipelineNumber
from headrace.feed.metrics.metric_file import METRICS_VARIABLE
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import FramedConnection, Link
from headrace.feed.wire.messages import Fork
from headrace.feed.worker.clients import ServerRequest
from headrace.feed.worker.executor import THREAD_VARIABLES
from headrace.feed.worker.executor_rules import DEPTH, Hang


@dataclass(eq=False)
class ExecutorProcess(Link):
    """One executor.

    Attributes:
        opened: the pipelines that it was told to open.
        opening: those of them of which it has not answered how that went.
        hang: ends it when it hangs.
        slices: made by this process.
        restarts: processes that had its number before.
    """

    number: int
    pid: int = 0
    opened: set[PipelineNumber] = field(default_factory=set)
    opening: set[PipelineNumber] = field(default_factory=set)
    requests: collections.deque[ServerRequest] = field(default_factory=collections.deque)
    dead: bool = False
    slices: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self.hang = Hang(self.signal)

    def signal(self, number: int) -> None:
        """Sends it a signal. When it has ended meanwhile, the word of that is on its way."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ExecutorPool:
    """Starts and replaces executors.

    Args:
        executors: how many.
        roots: directories of the job's code.
        nice: niceness of the executors.
    """

    def __init__(self, executors: int, roots: Sequence[Path], nice: int) -> None:
        self.size = executors
        self._roots = list(roots)
        self._nice = nice
        self.executors: dict[int, ExecutorProcess] = {}
        self._lanes: dict[tuple[PipelineNumber, int], int] = {}  # who goes on with a lane
        self.forkserver, self._process = self._start_forkserver()
        try:
            for number in range(executors):
                self.start(number)
        except BaseException:
            self.close()
            raise

    def _start_forkserver(self) -> tuple[FramedConnection, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(ours.close)
            command = module_command("headrace.feed.worker.forkserver", "--socket", str(theirs.fileno()))
            command += ["--parent", str(os.getpid()), "--nice", str(self._nice)]
            for root in self._roots:
                command += ["--code", str(root)]
            environment = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, "1")
            environment.pop(METRICS_VARIABLE, None)  # the server's, not that of a loader in the user's dataset
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            undo.pop_all()
        return FramedConnection(ours), process

    def alive(self) -> list[ExecutorProcess]:
        """Returns the executors that run."""
        return [executor for executor in self.executors.values() if not executor.dead]

    def choose(self, request: ServerRequest) -> ExecutorProcess | None:
        """Returns who is given a slice; None while nobody has room. A lane stays with one, or its successor."""
        alive, avoid, draw = self.alive(), request.message.avoid, request.message.draw
        others = [executor for executor in alive if executor.number != avoid and len(executor.requests) < 2 * DEPTH]
        free = [executor for executor in alive if len(executor.requests) < DEPTH]
        fit = others if avoid >= 0 and others else free  # the executor that made a slice cannot check it
        if draw is None or request.message.check == messages.SUM:
            return min(fit, key=lambda executor: len(executor.requests), default=None)
        lane = request.message.pipeline, draw.lane
        if any(executor.number == self._lanes.get(lane) for executor in alive):
            return next((executor for executor in fit if executor.number == self._lanes[lane]), None)
        held = Counter(self._lanes.values())
        chosen = min(fit, key=lambda executor: (held[executor.number], len(executor.requests)), default=None)
        if chosen is not None:
            self._lanes[lane] = chosen.number
        return chosen

    def forget(self, pipeline: PipelineNumber) -> None:
        """Nobody goes on with the lanes of a pipeline."""
        self._lanes = {lane: number for lane, number in self._lanes.items() if lane[0] != pipeline}

    def start(self, number: int) -> ExecutorProcess:
        """Starts executor `number`; it can be given tasks at once."""
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(ours.close)
            self.forkserver.send(Fork(number, self.size), descriptors=[theirs.fileno()])
            undo.pop_all()
        before = self.executors.get(number)
        restarts = before.restarts + 1 if before is not None else 0
        executor = ExecutorProcess(FramedConnection(ours), number, restarts=restarts)
        self.executors[number] = executor
        return executor

    def pids(self) -> list[int]:
        """Returns the process ids of the executors that run."""
        return [executor.pid for executor in self.executors.values() if executor.pid and not executor.dead]

    def discard(self, executor: ExecutorProcess) -> None:
        """Takes an executor that has ended, or closed its socket, out of service."""
        executor.dead = True
        executor.channel.close()
        executor.signal(signal.SIGKILL)

    def close(self) -> None:
        """Ends fork server and executors."""
        for executor in self.executors.values():
            executor.channel.close()
        self.forkserver.close()
        self._process.kill()  # the kernel kills the executors with it
        self._process.wait()
