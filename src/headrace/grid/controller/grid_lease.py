"""Lets one process at a time control a grid; the kernel takes the lease from a process that ends, however it does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import StorageError, UsageError
from headrace.private_folders import make_folders

FILE = "lease"


class GridInUse(UsageError):
    """Another process controls the grid."""


@contextlib.contextmanager
def grid_lease(folder: Path) -> Iterator[None]:
    """Holds a grid for this process.

    Args:
        folder: of the grid.

    Raises:
        GridInUse: another process has it.
        StorageError: the folder cannot be made or written.
    """
    try:
        make_folders(folder)
        lease = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = f"`headrace grid status {folder.name}` shows it, `headrace grid stop {folder.name}` stops it"
            raise GridInUse(f"another process controls the grid {folder.name}", hint) from error
        yield
    finally:
        os.close(lease)


def has_controller(folder: Path) -> bool:
    """Tells whether a process controls a grid now."""
    try:
        lease = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lease)
    return False
