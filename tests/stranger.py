"""Python run by a user who is not root: by another one where the tests are root's, else by the user of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STRANGER = 65534
UNKNOWN = 54321  # /etc/passwd has no such user
_PACKAGE = Path(__file__).parents[1] / "src"
_PROGRAM = """
import os, sys
from pathlib import Path
user, package, *argv = sys.argv[1:]
sys.path.append(package)
from headrace.hosting.isolation import filesystem, syscalls
# Python may lie where only root can go; a private view of the machine opens the way, and /dev/net/tun.
folder = os.getcwd()
syscalls.unshare(syscalls.CLONE_NEWNS)
filesystem.keep_mounts_inside()
for path in {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), Path(package)}:
    for above in reversed(path.parents):
        if not above.stat().st_mode & 0o1:
            held = os.open(path, os.O_PATH)
            syscalls.mount("tmpfs", str(above), "tmpfs", 0, "mode=0755")
            path.mkdir(parents=True)
            syscalls.bind(f"/proc/self/fd/{held}", str(path))
syscalls.mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=0755")
os.mknod("/dev/net/tun", 0o20666, os.makedev(10, 200))
os.chmod("/dev/net/tun", 0o666)
os.chdir(folder)
os.setgroups([])
os.setresgid(int(user), int(user), int(user))
os.setresuid(int(user), int(user), int(user))
os.execv(sys.executable, [sys.executable, *argv])
"""


def as_stranger(*arguments: str, user: int = STRANGER) -> list[str]:
    """Returns the command that runs Python with these arguments as somebody who is not root.

    Args:
        arguments: of Python.
        user: who that is, where the tests are root's.
    """
    if os.geteuid():
        return [sys.executable, *arguments]
    return [sys.executable, "-c", _PROGRAM, str(user), str(_PACKAGE), *arguments]
