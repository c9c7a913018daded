"""FUSE mounts of this machine: whether one can be made, which exist, and how to unmount them.

A mount whose server was killed stays as a dead entry until it is unmounted. libfuse leaves a small process
behind that does so (``auto_unmount``); a dead mount that is found all the same (`mounted_below`) is unmounted lazily.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from headrace.install_hint import install_hint
from headrace.instance.channels.mountinfo import read_mounts

KIND = "headrace"
"""Type of headrace's file system, after ``fuse.``."""

DEVICE = "/dev/fuse"
LIBRARIES = ("libfuse3.so.3", "libfuse3.so.4", "libfuse.so.2")
TOOLS = ("fusermount3", "fusermount")
INSTALL_PACKAGE = "apt-get install fuse3"

_DETACH = 2  # MNT_DETACH
_TOOL_SECONDS = 10.0


def why_not() -> tuple[str, str]:
    """Says why no file system can be mounted here, and what to do; both are empty when one can."""
    if importlib.util.find_spec("mfusepy") is None:
        return "the Python package mfusepy is not installed", install_hint("fastfile")
    if not any(_loads(name) for name in LIBRARIES):
        return "libfuse is not installed", INSTALL_PACKAGE
    if not Path(DEVICE).exists():
        return (
            f"there is no {DEVICE}",
            "load the kernel's module fuse (modprobe fuse), or give the container the device",
        )
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"{DEVICE} may not be opened", "ask for access to it"
    if tool() is None:
        return "fusermount3 is not installed", INSTALL_PACKAGE
    return "", ""


def tool() -> str | None:
    """Path of the program that mounts and unmounts for ordinary users."""
    return next((path for name in TOOLS if (path := shutil.which(name))), None)


def mounted_below(folder: Path) -> list[Path]:
    """Returns the mount points of headrace's file systems in a folder, dead ones too.

    Args:
        folder: an absolute path without symlinks.
    """
    points = [Path(mount.point) for mount in read_mounts() if mount.kind == f"fuse.{KIND}"]
    return [point for point in points if point.is_relative_to(folder)]


def unmount(point: Path) -> str:
    """Unmounts lazily: the path is free at once, and processes that use the mount keep it until they close it.

    Returns:
        Why it could not be done; empty if it was, or if nothing was mounted there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(point), _DETACH) == 0:
        return ""
    code = ctypes.get_errno()
    program = tool()
    if program is None or code not in (1, 13):  # EPERM, EACCES: it takes the set-user-id program
        return "" if code == 22 else os.strerror(code)  # EINVAL: nothing is mounted there
    try:
        done = subprocess.run(
            [program, "-u", "-z", "-q", str(point)], check=False, capture_output=True, text=True, timeout=_TOOL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{program} had not ended after {_TOOL_SECONDS:g} s"
    return "" if done.returncode == 0 else done.stderr.strip() or f"{program} failed"


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
