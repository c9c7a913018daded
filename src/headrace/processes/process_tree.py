"""A process and its descendants, looked at again and again: cheap enough for once a second.

A walk over the kernel's lists of children (`process_table.descendants`) reads one file for every *thread*: 5 ms of CPU
time for 20 processes with 30 threads each. `ProcessTree` lists the names in /proc and then reads only the processes
that belong to the tree and those that are new: 0.4 ms, whatever the number of threads. It remembers which processes are
no descendants, since they cannot become descendants. Only a pid that was used again may hide one, so every `REWALK`
looks it walks over the whole tree again.
"""

from __future__ import annotations

from headrace.processes.process_table import Process, descendants, look, pids

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
        there = set(pids())
        head = look(self._root)
        if head is None:
            return []
        if self._looks % REWALK:
            found = self._kept()
            found += self._new(there)
        else:
            found = descendants(self._root)
            self._strangers = there
        self._looks += 1
        self._members = {process.pid: process.start for process in found}
        self._strangers = (self._strangers & there) - self._members.keys() - {self._root}
        return [head, *found]

    def _kept(self) -> list[Process]:
        seen = ((look(pid), start) for pid, start in self._members.items())
        return [process for process, start in seen if process is not None and process.start == start]

    def _new(self, there: set[int]) -> list[Process]:
        """Members that were not there at the last look.

        Who descends from a stranger is one. A process whose parent is neither has just lost it: it is left open, and
        at the next look it has its new parent.
        """
        looked = (look(pid) for pid in there - self._members.keys() - self._strangers - {self._root})
        fresh = [process for process in looked if process is not None]
        found = _grown({self._root, *self._members}, fresh)
        outside = _grown(self._strangers | {0}, fresh)
        self._strangers |= {process.pid for process in outside}
        return found


def _grown(parents: set[int], fresh: list[Process]) -> list[Process]:
    """Those of the fresh processes that descend from one of the parents."""
    pids = set(parents)
    found: list[Process] = []
    rest = fresh
    while True:  # a child may be met before its parent
        joined = [process for process in rest if process.parent in pids]
        if not joined:
            return found
        found += joined
        pids |= {process.pid for process in joined}
        rest = [process for process in rest if process.pid not in pids]
