"""How many processes of a control group the kernel has killed because the group, or the machine, had no memory left.

The kernel counts before it sends the SIGKILL, so when such a process is seen to end the count has already risen.
The counter is read through a descriptor that the engine's supervisor opened: that works in any namespace, and also
where /sys is not to be seen. Standard library only.
"""

from __future__ import annotations

import os

FD_VARIABLE = "HEADRACE_OOM_FD"  # of an agent: the descriptor of its host's counter


class OomCounter:
    """The counter of one group.

    Args:
        descriptor: of memory.oom_control (cgroup v1) or memory.events (v2); it belongs to this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> int:
        """Returns the number of kills so far. Raises OSError or ValueError when the file does not hold the counter."""
        for line in os.pread(self._descriptor, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        raise ValueError(f"descriptor {self._descriptor} has no line oom_kill")

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._descriptor)


def whose_memory(limit: int) -> str:
    """Returns which memory was used up when the kernel killed a process for memory.

    >>> whose_memory(3 << 29)
    "the instance's limit is 1.5 GiB"

    Args:
        limit: bytes that the instance may use; 0 when it has no limit of its own.
    """
    return f"the instance's limit is {format_bytes(limit)}" if limit else "the machine has none left"


def format_bytes(size: int) -> str:
    """Returns a size as people read it.

    >>> format_bytes(3 << 29), format_bytes(200 << 20)
    ('1.5 GiB', '200 MiB')
    """
    if size >= 1 << 30:
        return f"{size / (1 << 30):.2f}".rstrip("0").rstrip(".") + " GiB"
    return f"{size >> 20} MiB"
