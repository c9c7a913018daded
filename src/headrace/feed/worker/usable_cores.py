"""How many cores this process may keep busy: what its CPU set holds, or less where a cgroup grants less.

A container with `--cpus 2` on a host of 64 cores sees all 64 in its CPU set, and is throttled when it uses more than
two. The probe of `headrace doctor` loads this file into scripts without headrace: standard library only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


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
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return
    for line in filter(None, lines):
        _, controllers, path = line.split(":", 2)
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
