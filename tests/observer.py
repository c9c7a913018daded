"""Looks at the machine from outside: what a run has left behind, without the run's help and without cleaning up.

    observer = Observer(address_prefix="127.77.3")
    ... start a run, kill something, wait for its end ...
    observer.assert_nothing_left(handle.id, handle.paths.root)

Other programs use the machine at the same time, so each find must be the run's own:

* a process has the mark that every process of a run carries in its environment (HEADRACE_RUN_ID), or works in a
  directory of the run, so a re-parented daemon is seen too;
* abstract Unix sockets, control groups and the run's temporary directory have its name;
* a listening socket has an address of the run, and its owner was not there before and is not of another run;
* temporary files lie in the folder that only these tests use (`apart`); so do those of /dev/shm, where `apart` could
  mount one. Elsewhere a file there counts when a process that these tests started holds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import apart
from patience import allowed

# What programs, torch and multiprocessing leave there; other names are those of tests.
TEMPORARY = ("tmp", "pymp-", "psm_", "sem.", "torch", "gloo")
SHARED_MEMORY = Path("/dev/shm")


class Observer:
    """Remembers the machine as it is now.

    Args:
        address_prefix: the first three numbers of the addresses that the run uses.
    """

    def __init__(self, address_prefix: str) -> None:
        self.prefix = address_prefix
        self.processes = {each.pid: each.info["create_time"] for each in psutil.process_iter(["create_time"])}
        self.before = self._files()

    def left(self, run_id: str, root: Path) -> list[str]:
        """Returns what is left of a run, in words."""
        found = [f"process {pid}: {command}" for pid, command in processes_of(run_id, root)]
        held = holders() if (ports := listening(self.prefix)) else {}
        for address, inode in ports:
            owners = held.get(f"socket:[{inode}]", ())
            strange = owners and all(self._is_strange(each, run_id) for each in owners)
            if not strange and (owners or (address, inode) in listening(self.prefix)):
                found.append(f"listening socket {address}")
        found += [f"abstract socket {name}" for name in abstract_sockets() if run_id in name]
        found += [f"control group {path}" for path in control_groups(run_id)]
        scratch = f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}-*"  # see `scratch_dir`
        found += [f"directory {path}" for path in Path(tempfile.gettempdir()).glob(scratch)]
        return found + [f"file {path}" for path in sorted(self._files(run_id) - self.before)]

    def assert_nothing_left(self, run_id: str, root: Path, within: float = 0.0) -> None:
        """Fails with a list of what is left.

        Args:
            run_id: the run.
            root: its directory.
            within: seconds that the last things may need to go.
        """
        began = time.monotonic()
        while left := self.left(run_id, root):
            if time.monotonic() - began > allowed(within):
                raise AssertionError("left behind:\n  " + "\n  ".join(left))
            time.sleep(0.05)

    def _is_strange(self, process: psutil.Process, run_id: str) -> bool:
        """Whether a process is not of the run: it was there before, or is of another run."""
        with contextlib.suppress(psutil.Error):
            if self.processes.get(process.pid) == process.create_time():
                return True
            return process.environ().get("HEADRACE_RUN_ID", run_id) != run_id
        return False

    def _files(self, run_id: str = "") -> set[str]:
        temporary = {str(path) for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(TEMPORARY)}
        return temporary | {str(path) for path in shared_memory(lambda process: self._is_strange(process, run_id))}


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


def listening(prefix: str) -> list[tuple[str, int]]:
    """Returns (``address:port``, inode) of every TCP socket that listens below an address prefix."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        address, _, port = words[1].partition(":")
        readable = ".".join(str(octet) for octet in reversed(bytes.fromhex(address)))
        if words[3] == "0A" and readable.startswith(f"{prefix}."):
            found.append((f"{readable}:{int(port, 16)}", int(words[9])))
    return found


def holders() -> dict[str, list[psutil.Process]]:
    """Returns the processes that have something open or mapped: by path, or ``socket:[inode]``."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        held: set[str] = set()
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held.add(str(path.readlink()))
            held |= set(re.findall(r"/dev/shm/.*", Path(f"/proc/{process.pid}/maps").read_text()))
        for target in held:
            found.setdefault(target, []).append(process)
    return found


def shared_memory(strange: Callable[[psutil.Process], bool] = lambda _: False) -> set[Path]:
    """Returns the files of /dev/shm that these tests, or what they started, have made.

    Args:
        strange: whether a process of these tests is not looked at.
    """
    files = set(SHARED_MEMORY.iterdir())
    if apart.has_own_shared_memory():
        return files
    ours, found, held = psutil.Process(), set(), holders()
    for path in files:
        for holder in held.get(str(path), ()):
            with contextlib.suppress(psutil.Error):
                if ours in (holder, *holder.parents()) and not strange(holder) and path.exists():
                    found.add(path)
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
