"""The kernel's counters of one host (bytes of its network devices and disks, memory of its control group), and when it
last worked: used CPU or a GPU, or sent data to a trainer."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from headrace.instance.launch_plan import LaunchPlan, is_loopback
from headrace.processes.oom import FD_VARIABLE
from headrace.processes.process_table import TICKS, Process, read_proc
from headrace.runs.metric_records import HostSecond

_log = logging.getLogger(__name__)

_NETWORK = "/proc/self/net/dev"
_LOOPBACK = b"lo"


def has_network(plan: LaunchPlan, host: str) -> bool:
    """Whether a host has network devices of its own: as a namespace, or as a machine. Hosts that are loopback
    addresses of one machine have none."""
    return plan.isolation.own_network or not is_loopback(plan.host(host).address)


def network_bytes(table: str = _NETWORK) -> tuple[int, int]:
    """Returns (received, sent) of all devices but loopback, counted since each device was made.

    Args:
        table: a file in the form of /proc/net/dev.
    """
    received = sent = 0
    for line in read_proc(table).splitlines()[2:]:
        name, _, numbers = line.partition(b":")
        if name.strip() != _LOOPBACK:
            fields = numbers.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


class DiskBytes:
    """Bytes that processes moved from and to disks (not from the page cache), with those of their ended children.

    Args:
        folder: /proc.
    """

    def __init__(self, folder: str = "/proc") -> None:
        self._folder = folder
        self._read = 0
        self._written = 0
        self._logged = False
        self._counted = os.path.exists(f"{folder}/self/io")
        if not self._counted:
            _log.warning("no disk figures: this kernel does not count the bytes of a process (/proc/PID/io)")

    def read(self, processes: Iterable[Process]) -> tuple[int, int] | None:
        """Returns (read, written) so far; it never goes back. None when the kernel does not count."""
        if not self._counted:
            return None
        read = written = 0
        for process in processes:
            try:
                lines = read_proc(f"{self._folder}/{process.pid}/io").split()
            except PermissionError:
                self._leave_out(process.pid)
                continue
            except OSError:  # it has ended
                continue
            read += int(lines[9])
            written += int(lines[11])
        self._read, self._written = max(self._read, read), max(self._written, written)
        return self._read, self._written

    def _leave_out(self, pid: int) -> None:
        if not self._logged:
            self._logged = True
            _log.warning("disk figures are without process %d and others of another user: /proc/PID/io is closed", pid)


def disk_share(folder: Path) -> float | None:
    """Returns how much of the file system of a folder is in use, 0 to 100, as `df` has it; None if nobody knows."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    used = status.f_blocks - status.f_bfree
    whole = used + status.f_bavail
    return round(100 * used / whole, 2) if whole else None


def memory_file() -> Path | None:
    """Returns memory.stat of this host's own control group, None if it has none or /sys does not show it.

    It is found beside the kernel's counter of out-of-memory kills, which the engine has opened for this agent.
    """
    descriptor = os.environ.get(FD_VARIABLE)
    if not descriptor:
        return None
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/fd/{descriptor}").readlink().with_name("memory.stat")
        return path if os.access(path, os.R_OK) else None
    return None


def used_memory(path: Path) -> int:
    """Returns the bytes of a control group that the kernel cannot take back: private and shared memory, each page
    once; without the cache of files. Raises OSError."""
    lines = dict(line.split() for line in read_proc(str(path)).splitlines())
    if b"total_rss" in lines:  # v1, where the names without `total` leave groups below out
        return int(lines[b"total_rss"]) + int(lines[b"total_shmem"])
    return int(lines[b"anon"]) + int(lines[b"shmem"])


def busy_seconds(cpus: Collection[int], table: str = "/proc/stat") -> float | None:
    """Returns the CPU seconds that some CPUs were not idle since the start of the machine, with those that a hypervisor
    gave to others; None where the kernel does not tell.

    Args:
        cpus: their ids.
        table: a file in the form of /proc/stat.
    """
    rows = (line.split() for line in read_proc(table).splitlines() if line.startswith(b"cpu"))
    # user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user time already
    ticks = [sum(map(int, (*row[1:4], *row[6:9]))) for row in rows if row[0][3:].isdigit() and int(row[0][3:]) in cpus]
    return sum(ticks) / TICKS if len(ticks) == len(cpus) else None


BUSY_CORES = 0.1
"""A host works whose processes, without its agent, use this many cores or more."""


class Activity:
    """What one host did last.

    Args:
        clock: seconds.
        own: CPU seconds of this process, the agent.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, own: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._own = own
        self._own_before = 0.0
        self._worked = self._handed = clock()
        self._before: HostSecond | None = None
        self._sent: dict[str, int] = {}

    def used(self, second: HostSecond) -> None:
        """Takes in what the host used so far."""
        before, self._before = self._before, second
        own_before, self._own_before = self._own_before, self._own()
        if before is None or second.t <= before.t:
            return
        cores = (second.cpu - before.cpu - (self._own_before - own_before)) / (second.t - before.t)
        if cores >= BUSY_CORES or any(gpu.use for gpu in second.gpus):
            self._worked = self._clock()

    def sent(self, stream: str, total: int) -> None:
        """Takes in how many bytes a server of the host has sent to trainers since its start."""
        before, self._sent[stream] = self._sent.get(stream, 0), total
        if total > before:
            self._handed = self._clock()

    def idle(self) -> float:
        """Returns for how many seconds the host has not worked."""
        return self._clock() - self._worked

    def unsent(self) -> float:
        """Returns for how many seconds no server of it has sent anything."""
        return self._clock() - self._handed
