"""What namespaces could leave on the machine: interfaces, mounts, named network namespaces, processes in namespaces.

machine = Machine()
... start a run; machine.know(handle) while it runs ...
machine.assert_unchanged()
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from headrace.processes.process_table import scan

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
        deadline = time.monotonic() + within
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
        found = {f"interface {path.name}" for path in Path("/sys/class/net").iterdir()}
        found |= {f"/opt/{path.name}" for path in Path("/opt").iterdir()}
        mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
        others = f"{tempfile.gettempdir()}/pytest-of-"  # of tests that run at the same time
        found |= {f"mount {' '.join(words[3:6])}" for words in mounts if not words[4].startswith(others)}
        named = Path("/run/netns")
        return found | {f"namespace {path}" for path in (named.iterdir() if named.exists() else ())}


def _spaces_of(pid: int | str) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in KINDS}
