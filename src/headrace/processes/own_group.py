"""The memory of a container, as its own processes see it: how much it may have, and the kernel's count of kills.

A container shows its control group at /sys/fs/cgroup. Its path in /proc/self/cgroup may be the machine's, which is not
there; then the group is what is mounted. The machine's own first group is none: it holds all that runs. Standard
library only.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 has a number near 2**63 instead
KILLS = {1: "memory.oom_control", 2: "memory.events"}
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


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
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return None
    for line in filter(None, lines):
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if controllers and ("memory" not in controllers.split(",") or path == "/"):
            continue
        root = mount / "memory" if controllers else mount
        for directory in (root / path.lstrip("/"), root):
            if (directory / KILLS[version]).exists():
                return directory, version
    return None
