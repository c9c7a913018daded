"""The process table: who descends from whom, what they used, and how to end them.

One scan of /proc gives a consistent enough picture for all three uses. A process is identified by pid *and* start
time, so that a recycled pid is never signalled. The callers are child subreapers: every descendant whose parent
died is re-parented to them, so a walk over parents finds all of them, daemons included.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of the process table.

    Attributes:
        pid: process id.
        parent: its parent's process id.
        start: start time in clock ticks since boot; with `pid` an identity.
        state: the kernel's letter; ``Z`` is a zombie.
        ticks: CPU time of the process and of its children that ended and were waited for, in clock ticks.
        resident: resident bytes.
    """

    pid: int
    parent: int
    start: int
    state: str
    ticks: int
    resident: int


def look(pid: int) -> Process | None:
    """Returns the process of that pid, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
    ticks = sum(int(field) for field in fields[11:15])
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], ticks, int(fields[21]) * PAGE)


def scan() -> list[Process]:
    """Returns all processes that can be seen."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  (names are enough)
    return [process for process in found if process is not None]


def descendants(root: int, table: Iterable[Process] | None = None, without: Iterable[int] = ()) -> list[Process]:
    """Returns the descendants of a process, parents before children.

    Args:
        root: pid whose children, their children and so on are wanted; it is not in the result.
        table: the process table, scanned if not given.
        without: pids that are left out, with all that descends from them.
    """
    children: dict[int, list[Process]] = {}
    for process in scan() if table is None else table:
        children.setdefault(process.parent, []).append(process)
    left_out = set(without)
    found: list[Process] = []
    todo = [root]
    while todo:
        for process in children.get(todo.pop(), ()):
            if process.pid not in left_out:
                found.append(process)
                todo.append(process.pid)
    return found


def is_running(pid: int, start: int) -> bool:
    """Tells whether that very process still runs; a zombie does not."""
    process = look(pid)
    return process is not None and process.start == start and process.state != "Z"


def send(process: Process, number: int) -> bool:
    """Sends a signal to that very process. Returns False when it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        seen = look(process.pid)
        if seen is None or seen.start != process.start:
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)


def reap() -> list[tuple[int, int]]:
    """Takes in the children that have ended. Returns (pid, wait status) of each."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, status))
    return ended


def describe_exit(status: int) -> tuple[int | None, int | None]:
    """Splits a wait status into (exit code, signal); exactly one is set."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def name_of_exit(exit_code: int | None, number: int | None) -> str:
    """Returns how a program ended, in words: ``exited with code 3`` or ``killed by SIGKILL``."""
    if number is None:
        return f"exited with code {exit_code}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {number}"
