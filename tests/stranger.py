"""Python run by a user who is not root: by another one where the tests are root's, else by the user of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.hosting.isolation import filesystem, syscalls

STRANGER = 65534
UNKNOWN = 54321  # /etc/passwd has no such user


def become(user: int, *used: Path) -> None:
    """Makes this process, root's, another user's, who can go to Python and to the folders `used`, wherever they lie."""
    folder = Path.cwd()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    filesystem.keep_mounts_inside()
    for path in {Path(each).resolve() for each in (sys.prefix, sys.base_prefix, *used)}:
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o1:  # only root can go there: a private view of the machine opens the way
                held = os.open(path, os.O_PATH)
                syscalls.mount("tmpfs", str(above), "tmpfs", 0, "mode=0755")
                path.mkdir(parents=True)
                syscalls.bind(f"/proc/self/fd/{held}", str(path))
                os.close(held)
    if Path("/dev/net").is_dir():
        syscalls.mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=0755")
        os.mknod("/dev/net/tun", 0o20666, os.makedev(10, 200))
        Path("/dev/net/tun").chmod(0o666)
    os.chdir(folder)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def as_stranger(*arguments: str, user: int = STRANGER) -> list[str]:
    """Returns the command that runs Python with these arguments as somebody who is not root.

    Args:
        arguments: of Python.
        user: who that is, where the tests are root's.
    """
    return [sys.executable, *(() if os.geteuid() else (__file__, str(user))), *arguments]


if __name__ == "__main__":
    become(int(sys.argv[1]), Path(__file__).parents[1] / "src")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
