"""The code directory of one instance: a copy of its own of what the user has sent, as a container gets one.

What a program writes into its working directory is then seen by no other instance, and what was sent stays as it was.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def copy_code(source: Path, target: Path) -> None:
    """Copies a directory of code: files with mode and times, symlinks as they are.

    What is there already is left when it is the same; so a tree may be built twice.

    Args:
        source: the code: directories, files and symlinks, nothing else.
        target: the instance's directory; its parent exists.

    Raises:
        FileExistsError: something else is there already; nothing of it is changed.
        OSError: something cannot be read or written.
    """
    target.mkdir(exist_ok=True)
    there = {entry.name for entry in target.iterdir()}
    with os.scandir(source) as entries:
        for entry in entries:
            path, copy = Path(entry.path), target / entry.name
            if entry.is_dir(follow_symlinks=False):
                copy_code(path, copy)
            elif entry.name not in there:
                shutil.copy2(path, copy, follow_symlinks=False)
            elif not _same(path, copy):
                raise FileExistsError(f"{copy} is there already, and is not {path}")
    shutil.copymode(source, target)


def _same(path: Path, copy: Path) -> bool:
    if path.is_symlink() or copy.is_symlink():
        return path.is_symlink() and copy.is_symlink() and path.readlink() == copy.readlink()
    return copy.is_file() and path.read_bytes() == copy.read_bytes()
