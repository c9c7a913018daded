"""The process table: the descendants of a process, what they used, and how to end them.

Descendants are found by walking down from a process along the kernel's own lists of children, so that the cost grows
with what is found and not with what else runs on the machine. The kernel leaves out a child of such a list only while
another one of it is being reaped, so a list that is empty proves that there was no child; a walk that met a process
which then was gone is made again. A kernel without these lists (CONFIG_PROC_CHILDREN) gets a scan of all /proc.

A process is identified by pid *and* start time, so that a recycled pid is never signalled. The callers are child
subreapers: every descendant whose parent died is re-parented to them, so a walk over parents finds all of them, daemons
included.

Read from /proc by hand because the agent does it every second: psutil 7.2 takes 6 times as long for one process (0.07
against 0.012 ms), and 9 times for a tree of 20 processes of 30 threads (8.6 ms against 0.9 in `process_tree`).

A process and its descendants, looked at again and again: cheap enough for once a second.

A walk over the kernel's lists of children (`process_table.descendants`) reads one file for every *thread*: 5 ms of CPU
time for 20 processes with 30 threads each. `ProcessTree` lists the names in /proc and then reads only the processes
that belong to the tree and those that are new: 0.4 ms, whatever the number of threads. It remembers which processes are
no descendants, since they cannot become descendants. Only a pid that was used again may hide one, so every `REWALK`
looks it walks over the whole tree again.

Time of processes that may be stopped (SIGSTOP), suspended with their job, or held up by a file system that stalls.

`Idling` tells how long another process has done nothing. By `RunningClock` a process tells how long others have been
silent: while it does not run itself, it hears nobody, and everything may have been suspended together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.exit_status import split_status

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
WALKS = 5  # before the table is scanned, because processes come and go all the time


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
        text = read_proc(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before may hold anything
    ticks = sum(int(field) for field in fields[11:15])
    return Process(pid, int(fields[1]), int(fields[19]), fields[0].decode(), ticks, int(fields[21]) * PAGE)


def read_proc(path: str) -> bytes:
    """Returns the content of a file of /proc. (`open` and pathlib take several times as long.) Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = chunk = os.read(descriptor, 1 << 16)
        while chunk:
            chunk = os.read(descriptor, 1 << 16)
            content += chunk
        return content
    finally:
        os.close(descriptor)


def pids() -> list[int]:
    """Returns the pids of all processes that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  (names are enough)


def scan() -> list[Process]:
    """Returns all processes that can be seen."""
    processes = map(look, pids())
    return [process for process in processes if process is not None]


def descendants(root: int, table: Iterable[Process] | None = None, without: Iterable[int] = ()) -> list[Process]:
    """Returns the descendants of a process, parents before children.

    Args:
        root: pid whose children, their children and so on are wanted; it is not in the result.
        table: the process table, for a picture of one moment; by default the kernel is asked now.
        without: pids that are left out, with all that descends from them.
    """
    left_out = set(without)
    if table is None:
        for _ in range(WALKS):
            walked = _walk(root, left_out)
            if walked is not None:
                return walked
    return _sort_out(root, scan() if table is None else table, left_out)


def _walk(root: int, left_out: set[int]) -> list[Process] | None:
    """Descendants by the lists of children; None when a process went away meanwhile, or there are no such lists."""
    processes: list[Process] = []
    todo = _children(root)
    while todo:
        pid = todo.pop(0)
        if pid in left_out:
            continue
        process, children = look(pid), _children(pid)
        if process is None or children is None:
            return None
        processes.append(process)
        todo += children
    return None if todo is None else processes


def _children(pid: int) -> list[int] | None:
    """Children of a process, of all its threads; None when the process is gone or the kernel has no such lists."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  (names are enough)
            children += map(int, read_proc(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:
        return None
    return children


def _sort_out(root: int, table: Iterable[Process], left_out: set[int]) -> list[Process]:
    """Descendants in a table of all processes."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    todo = [root]
    while todo:
        for process in children.get(todo.pop(), ()):
            if process.pid not in left_out:
                below.append(process)
                todo.append(process.pid)
    return below


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
    """Waits for the children that have ended. Returns (pid, wait status) of each."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, status))
    return ended


def kill_descendants(seconds: float, on_end: Callable[[int, int], object] = lambda *_: None) -> None:
    """Kills all that descends from this process until none is left: the last resort at its end.

    Args:
        seconds: after which it gives up.
        on_end: called with pid and wait status of every child that has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        for pid, status in reap():
            on_end(pid, status)
        left = descendants(os.getpid())
        if not left or time.monotonic() > deadline:
            return
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.01)


def describe_exit(status: int) -> tuple[int | None, int | None]:
    """Splits a wait status into (exit code, signal); exactly one is set."""
    return split_status(os.waitstatus_to_exitcode(status))


REWALK = 60


class ProcessTree:
    """The descendants of a process.

    Args:
        root: pid; every descendant whose parent has ended must be adopted by it or by a descendant (subreaper).
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: dict[int, int] = {}  # pid: start time
        self._strangers: set[int] = set()
        self._looks = 0

    def look(self) -> list[Process]:
        """Returns the root, if it lives, and its descendants as of now."""
        pids_now = set(pids())
        head = look(self._root)
        if head is None:
            return []
        if self._looks % REWALK:
            members = self._kept()
            members += self._new(pids_now)
        else:
            members = descendants(self._root)
            self._strangers = pids_now
        self._looks += 1
        self._members = {process.pid: process.start for process in members}
        self._strangers = (self._strangers & pids_now) - self._members.keys() - {self._root}
        return [head, *members]

    def _kept(self) -> list[Process]:
        seen = ((look(pid), start) for pid, start in self._members.items())
        return [process for process, start in seen if process is not None and process.start == start]

    def _new(self, pids_now: set[int]) -> list[Process]:
        """Members that were not there at the last look.

        Who descends from a stranger is one. A process whose parent is neither has just lost it: it is left open, and
        at the next look it has its new parent.
        """
        looked = (look(pid) for pid in pids_now - self._members.keys() - self._strangers - {self._root})
        fresh = [process for process in looked if process is not None]
        members = _grown({self._root, *self._members}, fresh)
        outside = _grown(self._strangers | {0}, fresh)
        self._strangers |= {process.pid for process in outside}
        return members


def _grown(parents: set[int], fresh: list[Process]) -> list[Process]:
    """Those of the fresh processes that descend from one of the parents."""
    pids = set(parents)
    members: list[Process] = []
    rest = fresh
    while True:  # a child may be met before its parent
        joined = [process for process in rest if process.parent in pids]
        if not joined:
            return members
        members += joined
        pids |= {process.pid for process in joined}
        rest = [process for process in rest if process.pid not in pids]


STOPPED_STATE = "T"  # of the kernel; a process that a debugger holds has "t"


def is_stopped(pid: int) -> bool:
    """Tells whether a process is stopped now."""
    process = look(pid)
    return process is not None and process.state == STOPPED_STATE


class Idling:
    """How long a process and its descendants have used no CPU time. On a busy machine a process gets little, but some.

    Args:
        pid: a child of this process that was not waited for.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: int | None = None
        self._since = 0.0

    @property
    def used(self) -> float:
        """CPU seconds that they had used at the last look."""
        return (self._ticks or 0) / TICKS

    def seconds(self) -> float:
        """Returns it as of now; it is counted from the first call on."""
        process, now = look(self._pid), time.monotonic()
        ticks = sum(member.ticks for member in (process, *descendants(self._pid))) if process is not None else -1
        if ticks != self._ticks:
            self._ticks, self._since = ticks, now
        return now - self._since

    def overdue(self, limit: float) -> str:
        """Returns why what begins will not be ready any more, in words; empty while it may.

        Args:
            limit: seconds without any CPU time, or of CPU time, that its start has at the most.
        """
        if self.seconds() >= limit:
            return f"was not ready: it has used no CPU time for {limit:g} s"
        return f"was not ready after {limit:g} s of CPU time" if self.used >= limit else ""


class RunningClock:
    """Seconds for which this process has run. It stands while the process does not.

    Args:
        most: seconds between two calls that count at the most. It is called more often than that.
        clock: seconds that do not go back.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._called = clock()
        self._ran = 0.0

    def __call__(self) -> float:
        """Returns the seconds so far."""
        now = self._clock()
        self._ran += min(now - self._called, self._most)
        self._called = now
        return self._ran
