"""The code directory of one instance: a copy of its own of what the user has sent, as a container gets one.

What a program writes into its working directory is then seen by no other instance, and what was sent stays as it was.
Where the file system can, a copy shares the blocks of its original until one of them is written to (reflink).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_FICLONE = 0x40049409  # of linux/fs.h


def shares_blocks(folder: Path) -> bool:
    """Tells whether files of a folder can share their blocks, by trying it. Raises OSError: it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file, tempfile.TemporaryFile(dir=folder) as copy:
        file.write(b"x")
        file.flush()
        return _clone(file.fileno(), copy.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, or that to which a link leads, with mode and times. Raises OSError; there must be no target."""
    with source.open("rb") as file, target.open("xb") as copy:
        cloned = _clone(file.fileno(), copy.fileno())
    if not cloned:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # another file system, or one that cannot: whoever copies then is told what is wrong
        return False
    return True


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
            elif entry.name in there:
                if not _same(path, copy):
                    raise FileExistsError(f"{copy} is there already, and is not {path}")
            elif entry.is_symlink():
                shutil.copy2(path, copy, follow_symlinks=False)
            else:
                copy_file(path, copy)
    shutil.copymode(source, target)


def _same(path: Path, copy: Path) -> bool:
    if path.is_symlink() or copy.is_symlink():
        return path.is_symlink() and copy.is_symlink() and path.readlink() == copy.readlink()
    return copy.is_file() and path.read_bytes() == copy.read_bytes()
