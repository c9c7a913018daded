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
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from headrace.processes.process_table import Process, is_running, look, scan, send

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "tini", "dumb-init"})
DRAIN_SECONDS = 1.0
_TERM = 1 << (signal.SIGTERM - 1)
_Pipes = set[tuple[int, int]]


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
        self._above: set[int] = set()  # those that descend into programs with a handler
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
        for process in self._handlers:
            pid = process.parent
            while pid in parents:
                self._above.add(pid)
                pid = parents[pid]
        self.later = _served_by_pipes(self._handlers, tree)
        waiting = {process.pid for process in self.later}
        for process in tree:
            if process.parent in waiting and process not in self._handlers and process.pid not in waiting:
                waiting.add(process.pid)  # a part of what waits: a command in the loop that reads
                self.later.append(process)
        self.signalled = [process for process in tree if process.pid not in waiting and send(process, signal.SIGTERM)]

    def go_on(self) -> None:
        """Sends SIGTERM to those that waited for others, when these have ended and they do not end by themselves."""
        if not self.later or _any_runs(self._handlers):
            return
        self._alone_since = self._alone_since or time.monotonic()
        over = time.monotonic() - self._alone_since >= DRAIN_SECONDS
        # A shell that has read the output of its command would go on with its next one.
        shells = {process.pid for process in self.later if _is_shell(_status(process.pid))} & self._above
        due = [process for process in self.later if over or process.pid in shells]
        self.later = [process for process in self.later if process not in due]
        self.signalled += [process for process in due if send(process, signal.SIGTERM)]

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


def _served_by_pipes(programs: list[Process], tree: list[Process]) -> list[Process]:
    """Returns what reads the output of programs, directly or through others of these, and what writes their input."""
    if not programs or len(programs) == len(tree):
        return []
    pipes = {process.pid: _pipes(process.pid) for process in tree}
    served: list[Process] = []
    for reading in (0, 1):
        ends = set().union(*(pipes[program.pid][1 - reading] for program in programs))
        rest = [process for process in tree if process not in programs and process not in served]
        while True:
            joined = [process for process in rest if pipes[process.pid][reading] & ends]
            if not joined:
                break
            served += joined
            rest = [process for process in rest if process not in joined]
            ends = ends.union(*(pipes[process.pid][1 - reading] for process in joined))
    return served


def _pipes(pid: int) -> tuple[_Pipes, _Pipes]:
    """Returns the pipes and FIFOs that a process reads, and those that it writes."""
    found: tuple[_Pipes, _Pipes] = set(), set()
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
                        found[end].add((status.st_dev, status.st_ino))
    return found


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
