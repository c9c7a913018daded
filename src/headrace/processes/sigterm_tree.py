"""Asks a program to end: SIGTERM to those of its processes that must get it. Standard library only.

SIGTERM to the main process alone does not reach the script that a shell runs: a shell without a trap just dies, and
one with a trap runs it only after the script has ended. SIGTERM to every process would reach too much: a trainer that
saves its work on SIGTERM still needs its data-loading processes, and PyTorch raises an error in a trainer whose
worker was killed by a signal. So:

* every process of the tree gets SIGTERM once,
* except what descends from a program that has a handler for SIGTERM: that one tells its children itself (mpirun,
  torchrun) or still needs them. A shell is no such program, whatever it traps.
* What such a program writes its output to through pipes, or reads its input from, gets it later: `tee` that ended first
  would break the next print of a trainer that saves its work. It has `DRAIN_SECONDS` to end by itself when those
  programs have ended. Whether it is beside them or above them (a launcher in Python) makes no difference.
* A shell above them that reads their output (`x=$(python train.py)`) would go on with its next command when they end.
  It gets SIGTERM with the others; its pipes are held open here, and what comes is dropped, until the programs end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.processes.process_table import Process, is_running, look, scan, send

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "tini", "dumb-init"})
DRAIN_SECONDS = 1.0
_TERM = 1 << (signal.SIGTERM - 1)
_PIPE_BYTES = 1 << 20
_Pipes = dict[tuple[int, int], str]


class EndingTree:
    """The processes of a program that was asked to end.

    Args:
        pid: its main process, a child of the caller that was not waited for yet.

    Attributes:
        signalled: those that got SIGTERM, parents before children.
        later: those that get it when the programs that they serve have ended.
    """

    def __init__(self, pid: int) -> None:
        self.signalled: list[Process] = []
        self.later: list[Process] = []
        self._handlers: list[Process] = []
        self._outputs: list[int] = []  # what shells read that have got SIGTERM, and what they wrote
        self._inputs: list[int] = []
        self._alone_since = 0.0
        main = look(pid)
        if main is not None:
            self._ask(main)

    def _ask(self, main: Process) -> None:
        children: dict[int, list[Process]] = {}
        for process in scan():
            children.setdefault(process.parent, []).append(process)
        todo, tree = [main], []  # parents before children, so that a shell does not start its next command
        while todo:
            process = todo.pop()
            tree.append(process)
            if _tells_its_children(process.pid):
                self._handlers.append(process)
            else:
                todo += children.get(process.pid, [])
        parents = {process.pid: process.parent for process in tree}
        above: set[int] = set()  # those that descend into programs with a handler
        for process in self._handlers:
            pid = process.parent
            while pid in parents:
                above.add(pid)
                pid = parents[pid]
        apart = 0 < len(self._handlers) < len(tree)  # else nothing serves them
        pipes = {process.pid: _pipes(process.pid) for process in tree} if apart else {}
        self.later = _served_by_pipes(self._handlers, tree, pipes) if apart else []
        waiting = {process.pid for process in self.later}
        for process in tree:
            if process.parent in waiting and process not in self._handlers and process.pid not in waiting:
                waiting.add(process.pid)  # a part of what waits: a command in the loop that reads
                self.later.append(process)
        shells = {pid for pid in waiting & above if _is_shell(_status(pid))}
        self.later = [process for process in self.later if process.pid not in shells]
        self._hold_pipes([pipes[pid] for pid in shells], pipes)
        asked = [process for process in tree if process.pid not in waiting - shells]
        self.signalled = [process for process in asked if send(process, signal.SIGTERM)]

    @property
    def is_settled(self) -> bool:
        """Whether `go_on` has nothing left to do."""
        return not (self.later or self._outputs or self._inputs)

    def go_on(self) -> None:
        """Sends SIGTERM to those that waited for others, when these have ended and they do not end by themselves."""
        for end in self._outputs:
            with contextlib.suppress(BlockingIOError):
                os.read(end, _PIPE_BYTES)
        if self.is_settled or _any_runs(self._handlers):
            return
        self._alone_since = self._alone_since or time.monotonic()
        if _any_runs(self.later) and time.monotonic() - self._alone_since < DRAIN_SECONDS:
            return
        due, self.later = self.later, []
        self.signalled += [process for process in due if send(process, signal.SIGTERM)]
        self._let_go()

    def _hold_pipes(self, shells: Iterable[tuple[_Pipes, _Pipes]], pipes: Mapping[int, tuple[_Pipes, _Pipes]]) -> None:
        """Opens once more what shells alone read of the programs' output, and what they write to the programs."""
        read = set().union(*(pipes[process.pid][0] for process in self.later))
        for reads, writes in shells:
            self._outputs += _open_again({pipe: path for pipe, path in reads.items() if pipe not in read}, os.O_RDONLY)
            inputs = [pipes[process.pid][0] for process in self._handlers]
            fed = {pipe: path for pipe, path in writes.items() if any(pipe in pipes_read for pipes_read in inputs)}
            self._inputs += _open_again(fed, os.O_WRONLY)

    def _let_go(self) -> None:
        for end in (*self._outputs, *self._inputs):
            os.close(end)
        self._outputs, self._inputs = [], []

    def kill(self) -> None:
        """Sends SIGKILL to all of them."""
        for process in (*self.signalled, *self.later):
            send(process, signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether one of them still runs."""
        return _any_runs(self.signalled) or _any_runs(self.later)


def _any_runs(processes: Iterable[Process]) -> bool:
    return any(is_running(process.pid, process.start) for process in processes)


def _served_by_pipes(
    programs: list[Process], tree: list[Process], pipes: Mapping[int, tuple[_Pipes, _Pipes]]
) -> list[Process]:
    """Returns what reads the output of programs, directly or through others of these, and what writes their input."""
    served: list[Process] = []
    for reading in (0, 1):
        ends = set().union(*(pipes[program.pid][1 - reading] for program in programs))
        rest = [process for process in tree if process not in programs and process not in served]
        while True:
            joined = [process for process in rest if pipes[process.pid][reading].keys() & ends]
            if not joined:
                break
            served += joined
            rest = [process for process in rest if process not in joined]
            ends = ends.union(*(pipes[process.pid][1 - reading] for process in joined))
    return served


def _pipes(pid: int) -> tuple[_Pipes, _Pipes]:
    """Returns the pipes and FIFOs that a process reads, and those that it writes, each with its path in /proc."""
    pipes: tuple[_Pipes, _Pipes] = {}, {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError, ValueError, KeyError):
                status = Path(f"/proc/{pid}/fd/{name}").stat()
                if not stat.S_ISFIFO(status.st_mode):
                    continue
                lines = Path(f"/proc/{pid}/fdinfo/{name}").read_text().split("\n")
                flags = int(dict(line.split(":", 1) for line in lines if ":" in line)["flags"], 8) & os.O_ACCMODE
                for end, other in ((0, os.O_WRONLY), (1, os.O_RDONLY)):
                    if flags != other:
                        pipes[end][status.st_dev, status.st_ino] = f"/proc/{pid}/fd/{name}"
    return pipes


def _open_again(pipes: _Pipes, flags: int) -> list[int]:
    ends: list[int] = []
    for path in pipes.values():
        with contextlib.suppress(OSError):  # closed by now, or not to be made larger
            ends.append(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
            fcntl.fcntl(ends[-1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ends


def _tells_its_children(pid: int) -> bool:
    status = _status(pid)
    return bool(int(status.get("SigCgt", "0"), 16) & _TERM) and not _is_shell(status)


def _is_shell(status: dict[str, str]) -> bool:
    return status.get("Name", "").strip() in SHELLS


def _status(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").split("\n")
        return dict(line.split(":", 1) for line in lines if ":" in line)
    return {}
