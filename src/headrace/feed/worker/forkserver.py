"""The fork server: imports torch once and forks executors, so that a killed one is replaced in milliseconds.

    python -m headrace.feed.worker.forkserver --socket FD --parent PID --nice N [--code DIR ...]

It is single-threaded and runs no user code, so forking it is safe, and its children can have the kernel kill them
with it. It reaps them and reports to the feed server how each ended.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import select
import socket
import sys
import warnings
from pathlib import Path

from headrace.child_python import die_with_parent
from headrace.feed.descriptors import keep_room, restore_limit
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import Frame
from headrace.feed.wire.messages import Exited, Fork, Forked
from headrace.feed.worker.executor import executor_main


class ForkServer:
    """Forks executors on request of the feed server."""

    def __init__(self, channel: FramedConnection, roots: list[Path]) -> None:
        self._channel = channel
        self._roots = roots
        self._children: dict[int, Forked] = {}  # by pidfd
        self._frames: list[Frame] = []  # the latest ones; those that wait hold connections of other executors

    def run(self) -> None:
        """Serves until the feed server closes."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor in self._children:
                    poll.unregister(descriptor)
                    self._reap(descriptor)
                    continue
                try:
                    self._frames = self._channel.receive()
                except ConnectionClosed:
                    return
                for frame in self._frames:
                    if isinstance(frame.message, Fork):
                        poll.register(self._fork(frame.message, frame.take_descriptor()), select.POLLIN)

    def _fork(self, message: Fork, descriptor: int) -> int:
        forkserver = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(descriptor)
            raise
        if pid == 0:
            status = 1
            try:
                die_with_parent(forkserver)
                self._forget()
                restore_limit()
                connection = socket.socket(fileno=os.dup(descriptor))  # the lowest number: of many, this one's is high
                os.close(descriptor)
                executor_main(connection, message.number, message.of, self._roots)
                status = 0
            except BaseException:  # noqa: BLE001 - the end of a forked child: report and leave without the parent's exits
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.close(descriptor)
        pidfd = keep_room(os.pidfd_open(pid))
        self._children[pidfd] = child = Forked(message.number, pid)
        self._tell(child)
        return pidfd

    def _forget(self) -> None:
        self._channel.close()
        for pidfd in self._children:
            os.close(pidfd)
        for frame in self._frames:
            for descriptor in frame.descriptors:
                os.close(descriptor)
            frame.descriptors.clear()

    def _reap(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(child.pid, 0)
        self._tell(Exited(child.number, os.waitstatus_to_exitcode(status)))

    def _tell(self, message: messages.Message) -> None:
        self._channel.send(message)
        self._channel.drain()


def lower_priority(nice: int) -> None:
    """Makes this process, its threads and what it forks yield to others.

    Where the kernel groups processes by session (sched_autogroup), niceness counts only inside a session, so the
    session's own niceness is set too; the fork server has a session of its own.
    """
    lowered = os.nice(nice)  # of this thread, and of those that it starts
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), lowered)
    autogroup = Path("/proc/self/autogroup")
    if autogroup.exists() and os.getsid(0) == os.getpid():
        try:
            autogroup.write_text(str(nice))
        except OSError as error:
            print(f"cannot lower the priority of the session: {error.strerror}", file=sys.stderr)


def main() -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--code", type=Path, action="append", default=[])
    options = parser.parse_args()
    die_with_parent(options.parent)
    for directory in reversed(options.code):
        sys.path.insert(0, str(directory))
    gc.disable()  # nothing of what an import makes is garbage: collecting takes a sixth of torch's
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
    gc.freeze()  # executors do not look through it either, so its pages stay shared with them
    gc.enable()
    if options.nice:  # only now: beside busy ranks the import would take six times as long
        lower_priority(options.nice)
    # A fork of a process with threads warns; nothing here has started any.
    warnings.filterwarnings("error", message=".*multi-threaded.*fork", category=DeprecationWarning)
    ForkServer(FramedConnection(socket.socket(fileno=options.socket)), options.code).run()


if __name__ == "__main__":
    main()
