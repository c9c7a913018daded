"""What a host has left for more executors: how long they had to wait for its cores, and how much memory is free.

A control group may grant less than the machine has, so both are asked, and memory that the kernel can take back at once
(the cache of files) is free. How long executors could have run and did not, because others had the cores or their group
was throttled, tells contention from waits for a disk or a network, which cost no core.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from headrace.control_group import control_groups, usable_cores
from headrace.feed.tuning.executor_rule import Host

MEMORY_SECONDS = 5.0  # the kernel walks a process's page tables to tell its proportional set size
PROBED = 4  # executors whose size is looked at
_NO_LIMIT = 1 << 60  # version 1 of control groups has a huge number for no limit


class HostUse:
    """Looks again and again.

    Args:
        groups: directories of the control groups that may limit the memory; None for this process's.
    """

    def __init__(self, groups: Iterable[Path] | None = None) -> None:
        self._groups = list(control_groups(controller="memory") if groups is None else groups)
        self._cores = usable_cores()
        self._own = (time.monotonic(), time.process_time())
        self._delays: dict[int, float] = {}
        self._delayed = 0.0
        self._sized = 0.0
        self._size = self._free = self._memory = 0

    def look(self, pids: Iterable[int], slabs: int) -> Host:
        """Returns what the host has now, and the cores that this process has used since the last look.

        Args:
            pids: of the executors.
            slabs: bytes of the batches on their way.
        """
        if time.monotonic() >= self._sized + MEMORY_SECONDS or not self._size:
            self._sized = time.monotonic()
            self._size = max((proportional_bytes(pid) for pid in list(pids)[-PROBED:]), default=0) or self._size
            self._free, self._memory = memory_left(self._groups)
        before, self._own = self._own, (time.monotonic(), time.process_time())
        seconds, used = (now - then for now, then in zip(self._own, before, strict=True))
        trainer = used / max(seconds, 1e-6)
        return Host(self._cores, self._size, self._free, self._memory, slabs, trainer)

    def delayed(self, pids: Iterable[int]) -> float:
        """Returns the seconds so far, from call to call, in which these processes could have run, and had no core."""
        before, self._delays = self._delays, {pid: run_delay(pid) for pid in pids}
        self._delayed += sum(now - before[pid] for pid, now in self._delays.items() if pid in before)
        return self._delayed


def memory_left(groups: Iterable[Path]) -> tuple[int, int]:
    """Returns the bytes that are free, and those that may be used in all, in the group or machine with the least left.

    Args:
        groups: directories of control groups.
    """
    machine = psutil.virtual_memory()
    found = [(machine.available, machine.total)]
    for directory in groups:
        limit, used = (
            _first(directory, "memory.max", "memory.limit_in_bytes"),
            _first(directory, "memory.current", "memory.usage_in_bytes"),
        )
        if limit is not None and used is not None and limit < _NO_LIMIT:
            found.append((max(0, min(limit, limit - used + _cache(directory))), limit))
    return min(found)


def run_delay(pid: int) -> float:
    """Returns the seconds that a process's main thread has waited for a core; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def proportional_bytes(pid: int) -> int:
    """Returns the proportional set size of a process: what it shares with others counts in parts. 0 when it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
        return int(fields[fields.index("Pss:") + 1]) << 10
    return 0


def _first(directory: Path, *names: str) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            return int((directory / name).read_text())
    return None


def _cache(directory: Path) -> int:
    """Returns the bytes of files that the kernel can take back from a group."""
    with contextlib.suppress(OSError, ValueError):
        lines = (directory / "memory.stat").read_text().splitlines()
        fields = {name: int(value) for name, value in (line.split() for line in lines)}
        return fields.get("total_inactive_file", fields.get("inactive_file", 0))
    return 0
