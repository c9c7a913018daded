"""What namespaces could leave on the machine: interfaces, mounts, processes in namespaces.

machine = Machine()
... start a run; machine.know(handle) while it runs ...
machine.assert_unchanged()
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from pathlib import Path

import apart
from headrace.hosting.isolation import network, network_layout
from headrace.processes.process_table import scan
from patience import allowed

MADE = re.compile(rf"({network_layout.BRIDGE}|{network_layout.INTERFACE}|{network.INTERFACE}|algo-\d+)$")
KINDS = ("net", "pid", "mnt", "uts", "ipc", "user")
TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Remembers the machine as it is now."""

    def __init__(self) -> None:
        self._before = self._look()
        self._spaces: set[str] = set()
        self._known_at = 0.0
        self._own = _spaces_of("self")

    def know(self, pids: list[int]) -> None:
        """Remembers the namespaces of running processes."""
        for pid in pids:
            self._spaces |= _spaces_of(pid)
        self._known_at = float(Path("/proc/uptime").read_text().split()[0]) * TICKS
        self._spaces -= self._own
        assert len(self._spaces) >= 5, "these processes have no namespaces of their own"

    def assert_unchanged(self, within: float = 0.0) -> None:
        """Fails when the run has left something.

        Namespace numbers are used again: processes that came after `know` are other people's.
        """
        deadline = time.monotonic() + allowed(within)
        while left := sorted(self._look() - self._before) + self._inside():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.02)

    def _inside(self) -> list[str]:
        found = []
        for process in scan():
            try:
                spaces = _spaces_of(process.pid)
                command = Path(f"/proc/{process.pid}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if process.start <= self._known_at and spaces & self._spaces:
                found.append(f"process {process.pid} in {sorted(spaces & self._spaces)}: {command}")
        return found

    @staticmethod
    def _look() -> set[str]:
        """What other programs of the machine make is left out: headrace's own names and folders count."""
        found = {f"interface {name}" for _, name in socket.if_nameindex() if MADE.match(name)}
        found |= {f"/opt/{path.name}" for path in Path("/opt").glob("*ml*")}
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            words = line.split()
            if apart.has_own_shared_memory() or words[4].startswith(("/opt/ml", tempfile.gettempdir())):
                found.add(f"mount {' '.join(words[3:6])}")
        return found


def _spaces_of(pid: int | str) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in KINDS}
