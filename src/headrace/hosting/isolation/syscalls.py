"""The system calls of namespaces, which Python has only since 3.12 or not at all. Standard library only.

All of them act on the calling thread; the programs that use them have one.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MS_RELATIME = 0x200000

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Gives this process new namespaces; a new PID namespace is for its children only. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Moves this process into the namespace of a descriptor. Raises OSError."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Calls mount(2). Raises OSError that names the target."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or source} on {target}")


def bind(source: str, target: str) -> None:
    """Shows a file or directory, with what is mounted in it, at another place too. Raises OSError."""
    mount(source, target, flags=MS_BIND | MS_REC)


def die_with_parent(number: int) -> None:
    """Asks the kernel to send this process a signal when its parent dies. Raises OSError."""
    _check(_libc.prctl(1, ctypes.c_ulong(number), 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent dies. Raises OSError."""
    _check(_libc.prctl(36, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def may_separate() -> bool:
    """Whether this process may make namespaces as it is, without becoming root of a user namespace first."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    capabilities = next(int(row[1], 16) for row in rows if row[0] == "CapEff:")
    needed = (1 << 12) | (1 << 21)  # CAP_NET_ADMIN, CAP_SYS_ADMIN
    return capabilities & needed == needed


def become_root(keep_ids: bool = False) -> None:
    """Puts this process into a new user namespace, with all rights there. Outside it stays who it is. Raises OSError.

    Args:
        keep_ids: it keeps its user and group ids inside too, and the rights until it starts a program; else it is root.
    """
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid if keep_ids else 0} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid if keep_ids else 0} {gid} 1")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
