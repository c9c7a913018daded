"""How much the directory of a run takes, and its removal. Links are never followed, and nothing outside is touched.

A directory disappears in one step: it is renamed to a name that no list of runs shows, and what is in it goes then.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.errors import UsageError
from headrace.held_file import alone_in
from headrace.own_runs import leave_list
from headrace.runs.run_paths import RunPaths


class Ended(NamedTuple):
    """What a rule keeps or removes as one: a run that has ended, or a grid with its runs.

    Attributes:
        series: of which the newest stay: the name of a run's job; that of all grids.
        ended: when it did, in seconds since the epoch.
        runs: what it has here.
        grid: name of the grid; empty for a run.
    """

    series: str
    ended: float
    runs: tuple[RunPaths, ...]
    grid: str = ""


def size_of(paths: RunPaths) -> int:
    """Returns the bytes that a run takes on disk; a file with several names in it counts once."""
    total, counted = 0, set()
    for folder, _, files in os.walk(paths.root):
        for name in (".", *files):
            with contextlib.suppress(OSError):  # it is gone, or not this user's to look at
                status = os.lstat(f"{folder}/{name}")
                if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                    if (status.st_dev, status.st_ino) in counted:
                        continue
                    counted.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def to_prune(entries: Iterable[Ended], older: float | None, keep: int, now: float) -> list[Ended]:
    """Returns what a rule does not keep, oldest first. Pure.

    Args:
        entries: what has ended.
        older: seconds since their end after which they go; None for any.
        keep: how many of the newest of each series stay, whatever their age.
        now: seconds since the epoch.
    """
    of_series: dict[str, list[Ended]] = {}
    for entry in sorted(entries, key=lambda entry: entry.ended, reverse=True):
        of_series.setdefault(entry.series, []).append(entry)
    beyond = [entry for mine in of_series.values() for entry in mine[keep:]]
    old = (entry for entry in beyond if older is None or now - entry.ended >= older)
    return sorted(old, key=lambda entry: entry.ended)


def remove_run(paths: RunPaths) -> None:
    """Removes the directory of a run that has ended, and all that is in it.

    Raises:
        UsageError: it is no directory of its own in the folder of runs: a link, for example, or another user's.
        OSError: something in it cannot be removed; what is left no longer looks like a run.
    """
    parent = os.open(paths.root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.stat(paths.root.name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            what = "a link" if stat.S_ISLNK(status.st_mode) else f"of user {status.st_uid}"
            raise UsageError(f"{paths.root} is {what}: only a folder of your own is removed", "rm removes a link")
        gone = f".{paths.root.name}.removed-{secrets.token_hex(4)}"
        with alone_in(paths.root):
            os.rename(paths.root.name, gone, src_dir_fd=parent, dst_dir_fd=parent)
        leave_list(paths.root.with_name(gone))
        _open_up(gone, parent)
        shutil.rmtree(f"/proc/self/fd/{parent}/{gone}")
    finally:
        os.close(parent)


def _open_up(name: str, parent: int) -> None:
    """Gives this user the rights to folders that he needs to remove what is in them."""
    for _, folders, _, place in os.fwalk(name, dir_fd=parent):
        for folder in folders:
            try:
                held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            except NotADirectoryError:  # a link, which is removed as one
                continue
            mode = stat.S_IMODE(os.fstat(held).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                Path(f"/proc/self/fd/{held}").chmod(mode | stat.S_IRWXU)
            os.close(held)
