"""Lets one process at a time control a grid; the kernel takes the lease from a process that ends, however it does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import StorageError, UsageError
from headrace.held_file import hold, is_held
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
        lease = hold(folder / FILE)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from error
    if lease is None:
        hint = f"`headrace grid status {folder.name}` shows it, `headrace grid stop {folder.name}` stops it"
        raise GridInUse(f"another process controls the grid {folder.name}", hint)
    try:
        yield
    finally:
        os.close(lease)


def has_controller(folder: Path) -> bool:
    """Tells whether a process controls a grid now."""
    return is_held(folder / FILE)
