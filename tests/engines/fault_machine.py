"""What a machine holds, before and after a job: two sets of words to compare.

In the box of a row (see `fault_box`) nothing else runs, so every process, socket, mount, interface and file that is new
was left by the job. Looks from outside: it asks the kernel, not the run.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

ACCEPTS = 0x10000  # flag of /proc/net/unix: somebody listens
LISTENS = "0A"


def look(place: Path, run_ids: tuple[str, ...] = ()) -> set[str]:
    """Returns all that there is.

    Args:
        place: folder with the runs and what belongs to the test; temporary files are looked for beside it.
        run_ids: runs whose control groups are looked for: those are the whole machine's.
    """
    found = {f"process {pid}: {command}" for pid, command in processes().items()}
    found |= {f"TCP port {address}:{port}" for address, port in tcp_ports()}
    found |= {f"Unix socket {name}" for name in unix_sockets(listening=False)}
    found |= {f"mount {' '.join(words)}" for words in mounts()}
    found |= {f"interface {name}" for _, name in socket.if_nameindex()}
    found |= {f"namespace {path}" for path in _entries(Path("/run/netns"))}
    found |= {f"shared memory {path}" for path in _entries(Path("/dev/shm"))}
    for kind in ("shm", "sem", "msg"):
        found |= {f"System V {kind} {line}" for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]}
    found |= {f"control group {path}" for run_id in run_ids for path in control_groups(run_id)}
    found |= {f"file {path}" for path in place.parent.rglob("*") if not path.is_relative_to(place)}
    runs = place / "home" / "runs"
    found |= {f"FIFO {path}" for path in runs.rglob("*") if path.is_fifo()}
    return found | {f"channel area {path}" for path in runs.glob("*/channels")}


def processes() -> dict[int, str]:
    """Returns the command line of every process but this one, its `init` and what has ended."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) not in {1, os.getpid()}:
            try:
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if state not in "ZX":
                found[int(path.name)] = command
    return found


def tcp_ports() -> set[tuple[str, int]]:
    """Returns (address, port) of every TCP socket that listens, IPv6 addresses as ``::``."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            address, _, port = local.rpartition(":")
            if state == LISTENS:
                readable = ".".join(str(octet) for octet in reversed(bytes.fromhex(address)))
                found.add((readable if len(address) == 8 else "::", int(port, 16)))
    return found


def unix_sockets(listening: bool = True) -> set[str]:
    """Returns the names of Unix sockets; abstract ones begin with ``@``."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[7] for row in rows if len(row) > 7 and (not listening or int(row[3], 16) & ACCEPTS)}


def mounts() -> set[tuple[str, ...]]:
    """Returns (root, mount point, options) of every mount."""
    return {tuple(line.split()[3:6]) for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def control_groups(run_id: str) -> list[str]:
    """Returns the control groups of a run, in every hierarchy that is mounted."""
    name = f"headrace-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}-"
    return [f"{top}/{each}" for top, folders, _ in os.walk("/sys/fs/cgroup") for each in folders if name in each]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []
