"""The control group of this process: the cores that it grants, the memory, and the kernel's count of kills.

A container with `--cpus 2` on a host of 64 cores sees all 64 in its CPU set, and is throttled when it uses more than
two. It shows its group at /sys/fs/cgroup. Its path in /proc/self/cgroup may be the machine's, which is not there; then
the group is what is mounted. The machine's own first group is none: it holds all that runs.

The probe of `headrace doctor` loads this file into scripts without headrace: standard library only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 has a number near 2**63 instead
KILLS = {1: "memory.oom_control", 2: "memory.events"}
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memberships(text: str) -> list[tuple[str, str]]:
    """Returns the groups of a process by the content of /proc/PID/cgroup: the controllers of each, with commas between,
    empty in version 2; and its path.

    >>> memberships("2:cpu,cpuacct:/a\\n0::/b:c\\n")
    [('cpu,cpuacct', '/a'), ('', '/b:c')]
    """
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in text.split("\n") if line)]


def _own(membership: Path) -> list[tuple[str, str]]:
    try:
        return memberships(membership.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:  # this kernel has none
        return []


def usable_cores(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> int:
    """Returns the number of cores to plan for, at least 1.

    Args:
        mount: where the cgroup file systems are.
        membership: the file that names this process's cgroups.
    """
    return max(1, math.floor(granted_cores(mount, membership)))


def granted_cores(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> float:
    """Returns the same, not rounded: a cgroup may grant a part of a core."""
    quotas = [quota for directory in control_groups(mount, membership) if (quota := _quota(directory)) is not None]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def control_groups(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP, controller: str = "cpu") -> Iterator[Path]:
    """Names the directories that may limit this process: its cgroup and all above it, in version 2 and in version 1.

    Args:
        mount, membership: see `usable_cores`.
        controller: what is limited, as version 1 names it.
    """
    for controllers, path in _own(membership):
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controller if controllers else mount
        inside = root / path.lstrip("/")
        # In a container the path may be the host's and not be there: then the root is what limits it.
        while inside != root and root in inside.parents:
            yield inside
            inside = inside.parent
        yield root


def _quota(directory: Path) -> float | None:
    """Returns how many cores a cgroup grants; None without a limit."""
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        limit = int((directory / "cpu.cfs_quota_us").read_text())
        return limit / int((directory / "cpu.cfs_period_us").read_text()) if limit > 0 else None
    except (OSError, ValueError):
        return None


def open_kills(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> int | None:
    """Returns a descriptor of the file that `oom.OomCounter` reads; None when this process has no group of its own.

    Args:
        mount: where the cgroup file systems are.
        membership: the file that names this process's cgroups.

    Raises:
        OSError: it cannot be opened.
    """
    found = _own_group(mount, membership)
    return None if found is None else os.open(found[0] / KILLS[found[1]], os.O_RDONLY | os.O_CLOEXEC)


def memory_limit(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> int:
    """Returns the bytes that this process's group may use; 0 without a limit, and when it has no group of its own.

    The limit may be that of a group around it: Slurm gives one to a job and to its steps, and its tasks are below.

    Args:
        mount, membership: see `open_kills`.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    found = _own_group(mount, membership)
    if found is None:
        return 0
    directory, version = found
    limits = []
    while directory.is_relative_to(mount) and (file := directory / LIMIT[version]).exists():
        text = file.read_text().strip()
        if text != "max" and int(text) < _NO_LIMIT:
            limits.append(int(text))
        directory = directory.parent
    return min(limits, default=0)


def _own_group(mount: Path, membership: Path) -> tuple[Path, int] | None:
    """Returns the directory of the group that counts this process's memory, and its version of cgroups."""
    for controllers, path in _own(membership):
        version = 1 if controllers else 2
        if controllers and ("memory" not in controllers.split(",") or path == "/"):
            continue
        root = mount / "memory" if controllers else mount
        for directory in (root / path.lstrip("/"), root):
            if (directory / KILLS[version]).exists():
                return directory, version
    return None
