"""Where the temporary files of a run's programs go: one folder in the machine's own, short enough for sockets in it.

Its name is no secret and cannot be guessed before it is there; it is this user's alone, else it is none of ours
(`private_folders`). Whoever has made it holds a lock of it for as long as he lives.

A program that was killed cannot remove its temporary files. The agent of a host removes those of the host, who made
the folder removes it. When they were all killed together, the next start of any run of this user does.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from pathlib import Path

from headrace.private_folders import new_folder, open_private, private_folders

_NAME = re.compile(r"headrace-[0-9a-f]{8}-\w{8}")
_held: dict[Path, int] = {}  # descriptors with the locks of this process


def scratch_dir(key: str) -> Path:
    """Returns a folder for temporary files, made if this process has none yet. Raises OSError.

    Args:
        key: the run's id; with that of a host where each has a folder of its own.
    """
    folder = next((folder for folder in _held if folder.name.startswith(_prefix(key)) and folder.is_dir()), None)
    while folder is None:
        folder = new_folder(_prefix(key))
        descriptor = open_private(folder)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            _held[folder] = descriptor
        else:  # somebody who swept has taken it away before it was held
            os.close(descriptor)
            folder = None
    return folder


def scratch_dirs(key: str) -> list[Path]:
    """Returns the folders that are there."""
    return [*private_folders(_prefix(key))]


def remove_scratch(key: str) -> None:
    """Removes the folders with all that is in them."""
    for folder in scratch_dirs(key):
        _remove(folder)


def sweep_scratch() -> None:
    """Removes the folders of this user that no process holds."""
    for folder in private_folders("headrace-"):
        if not _NAME.fullmatch(folder.name) or folder in _held:
            continue
        try:
            descriptor = open_private(folder)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except BlockingIOError:
            pass  # it is in use
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def _prefix(key: str) -> str:
    return f"headrace-{hashlib.sha256(key.encode()).hexdigest()[:8]}-"
