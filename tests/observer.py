"""Looks at the machine from outside: what a run has left behind, without the run's help and without cleaning up.

    observer = Observer(address_prefix="127.77.3")
    ... start a run, kill something, wait for its end ...
    observer.assert_nothing_left(handle.id, handle.paths.root)

Processes are found by the mark that every process of a run carries in its environment (HEADRACE_RUN_ID), or by their
working directory inside the run, so a re-parented daemon is seen too. Listening sockets are found by address, abstract
Unix sockets and control groups by name, and files by comparing /dev/shm and the temporary directory with what was
there before.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

# What programs, torch and multiprocessing leave there; other names are other people's.
TEMPORARY = ("tmp", "pymp-", "psm_", "sem.", "torch", "gloo")


class Observer:
    """Remembers the machine as it is now.

    Args:
        address_prefix: the first three numbers of the addresses that the run uses.
    """

    def __init__(self, address_prefix: str) -> None:
        self.prefix = address_prefix
        self.before = self._files()

    def left(self, run_id: str, root: Path) -> list[str]:
        """Returns what is left of a run, in words."""
        found = [f"process {pid}: {command}" for pid, command in processes_of(run_id, root)]
        found += [f"listening socket {socket}" for socket in listening(self.prefix)]
        found += [f"abstract socket {name}" for name in abstract_sockets() if run_id in name]
        found += [f"control group {path}" for path in control_groups(run_id)]
        scratch = f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"
        found += [f"directory {path}" for path in Path(tempfile.gettempdir()).glob(scratch)]
        found += [f"file {path}" for path in sorted(self._files() - self.before)]
        return found

    def assert_nothing_left(self, run_id: str, root: Path, within: float = 0.0) -> None:
        """Fails with a list of what is left.

        Args:
            run_id: the run.
            root: its directory.
            within: seconds that the last things may need to go; files get some more, because other
                programs of this machine make temporary files too.
        """
        deadline = time.monotonic() + within
        files_deadline = deadline + 3.0
        while left := self.left(run_id, root):
            now = time.monotonic()
            if now > files_deadline or (now > deadline and not all(each.startswith("file ") for each in left)):
                raise AssertionError("left behind:\n  " + "\n  ".join(left))
            time.sleep(0.05)

    @staticmethod
    def _files() -> set[str]:
        temporary = {str(path) for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(TEMPORARY)}
        return temporary | {str(path) for path in Path("/dev/shm").iterdir()}


def processes_of(run_id: str, root: Path) -> list[tuple[int, str]]:
    """Returns (pid, command line) of every live process of a run."""
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            marked = f"HEADRACE_RUN_ID={run_id}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            inside = Path(f"/proc/{pid}/cwd").readlink().is_relative_to(root)
        except OSError:
            continue
        if marked or inside:
            found.append((pid, command.strip()))
    return found


def listening(prefix: str) -> list[str]:
    """Returns ``address:port`` of every TCP socket that listens below an address prefix."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, _, port = local.partition(":")
        readable = ".".join(str(octet) for octet in reversed(bytes.fromhex(address)))
        if state == "0A" and readable.startswith(f"{prefix}."):
            found.append(f"{readable}:{int(port, 16)}")
    return found


def control_groups(run_id: str) -> list[Path]:
    """Returns the control groups of a run, in every hierarchy that is mounted."""
    name = f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}-"
    found = []
    for top, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [Path(top, folder) for folder in folders if folder.startswith(name) or f"/{name}" in top]
    return found


def abstract_sockets() -> list[str]:
    """Returns the names of all abstract Unix sockets."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return [row[7] for row in rows if len(row) > 7 and row[7].startswith("@")]
