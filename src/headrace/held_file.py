"""A file that one process at a time holds, and that others look at without taking it; and turns in a folder. Standard
library only.

The kernel takes it from a process that ends, however it does. With `flock` whoever looks has it for a moment, and
refuses it to one that comes then; these are locks of open file descriptions, which can be asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")


def hold(path: Path) -> int | None:
    """Makes the file, if it is not there, and holds it.

    Returns:
        A descriptor, which holds it until it is closed; None if another process does, or this one already.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole(fcntl.F_WRLCK))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Tells whether a process holds the file. Raises OSError, but for one that is not there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole(fcntl.F_WRLCK)))
    finally:
        os.close(descriptor)
    return bool(found[0] != fcntl.F_UNLCK)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other process or thread that asks for it works in the folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _whole(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
