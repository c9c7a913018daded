"""Folders that are one user's alone, also where everybody may write, such as /tmp. Every room may import this module.

* A new one has a name that nobody can guess, or is made where no other user can be first: `new_folder`, `make_folders`.
* One that is there is used only after a look at the folder itself, by a descriptor: it is no link, belongs to this
  user, and is closed to all others (`open_private`). What lies in it is then reached through the descriptor, or by a
  name below a folder with the sticky bit, where others can move nothing.
* A folder that its user names must not be one that somebody else has put into a place where everybody may write
  (`check_way`).

All else that headrace makes lies in such folders. Standard library only, and of it what is imported quickly: the first
process of every host needs this.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

OPEN_TO_OTHERS = 0o077
_EVERYBODY_WRITES = 0o002
_OTHERS_WRITE = 0o022
_ROOT = 0


def new_folder(prefix: str, within: Path | None = None) -> Path:
    """Makes a folder of this user's with a name that nobody can guess. Raises OSError.

    Args:
        prefix: how the name begins.
        within: where; the machine's folder for temporary files by default.
    """
    import tempfile

    return Path(tempfile.mkdtemp(prefix=prefix, dir=within))


def make_folders(path: Path) -> None:
    """Makes a folder and those above it that are missing, all of them closed to other users. Raises OSError.

    `Path.mkdir` gives its mode to the last one only.
    """
    check_way(path)
    for folder in (*reversed(path.parents), path):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder")


def make_closed(path: Path) -> None:
    """Makes a folder, and closes it to other users when it was there. Raises OSError."""
    make_folders(path)
    path.chmod(0o700)


def open_private(path: Path | str) -> int:
    """Returns a descriptor of a folder that is this user's alone; it goes with an exec.

    Raises:
        PermissionError: it is another user's, or open to others.
        OSError: it is a link, no folder, or not there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not status.st_mode & OPEN_TO_OTHERS:
        return descriptor
    os.close(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    raise PermissionError(
        f"{path} belongs to user {status.st_uid} and has mode {mode:o}: "
        f"it must belong to user {os.geteuid()} and be closed to all others (mode 700)"
    )


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, as `write_atomically` does. Raises OSError."""
    write_atomically(path, content, 0o600)


def write_atomically(path: Path, content: bytes | memoryview, mode: int = 0o644) -> None:
    """Writes a whole file: a reader sees the old content or the new, never a part. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def only_ours(status: os.stat_result) -> bool:
    """Tells whether nobody but this user and root can have written to a file or folder (of a link: no)."""
    return status.st_uid in (os.geteuid(), _ROOT) and not status.st_mode & _OTHERS_WRITE


def is_private(path: Path | str) -> bool:
    """Tells whether there is a folder of that name that is this user's alone."""
    try:
        os.close(open_private(path))
    except OSError:
        return False
    return True


def private_folders(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Yields the folders that are this user's alone and whose names begin so. Raises OSError.

    Args:
        prefix: how the names begin.
        within: where; the machine's folder for temporary files by default.
    """
    import tempfile

    with os.scandir(within or tempfile.gettempdir()) as entries:
        names = sorted(entry.path for entry in entries if entry.name.startswith(prefix))
    yield from (Path(name) for name in names if is_private(name))


def check_way(path: Path | str) -> None:
    """Checks that nobody else has put a part of a path into a place where everybody may write. It need not exist.

    Raises:
        PermissionError: another user's folder, file or link is on the way.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  (links stay: they are looked at one by one)
    for parent, place in zip(reversed(absolute.parents), [*reversed(absolute.parents), absolute][1:], strict=True):
        try:
            open_to_all = parent.stat().st_mode & _EVERYBODY_WRITES
            owner = place.lstat().st_uid
        except OSError:  # not there, or nothing that this process may look at: whoever opens it will hear of it
            return
        if open_to_all and owner not in (os.geteuid(), _ROOT):
            raise PermissionError(f"{place} was made by user {owner}, in a folder where everybody may write")
