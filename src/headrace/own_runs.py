"""The runs and grids that this user has started here, or fetched: only these may make headrace do anything.

What a run's directory says of itself is not believed. It may be somebody else's, copied below the folder of runs by a
person who wants to help; its tickets, process numbers and links would act with the rights of whoever looks at it.
So a run that is made is entered in a list outside of all records:

    <home>/started-<user id>/<token>     the list, mode 0700: the same file as
    <runs>/<run id>/started              which holds the token

These are two names of one file, so a copy of a record is not in the list, and a record that is put into the place of
one that was removed is not either. A record that is renamed, or moved with its home, stays in it, and every machine
that shares the home sees the same. Where a file system gives no file two names in two folders, the entry is a file of
its own that tells the inode of the other one and when that was last changed, which nobody can set. Folders of grids,
with their journals, are entered in the same way.

Several users may share a home, or one may see another's under another id: each has a list of his own. A folder of runs
that has another name, as of `headrace fetch --into`, is in no home: its runs are entered in that of the user. Every
room may import this module.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from headrace.errors import EngineRefused
from headrace.home import GRIDS, RUNS, home_dir
from headrace.private_folders import make_folders, open_private
from headrace.record_files import open_record

MARK = "started"  # in the directory of a run
_TOKEN_BYTES = 16
_TOKEN = re.compile(rb"[0-9a-f]{%d}" % (2 * _TOKEN_BYTES))


def enter_run(directory: Path) -> None:
    """Enters a run or grid in the list; its directory has no mark yet, or one that a full disk or a kill left, and may
    get its name later.

    Raises:
        OSError: the list is not this user's alone, or cannot be written.
    """
    folder = _list_folder(directory)
    make_folders(folder)
    entries = open_private(folder)
    token = os.urandom(_TOKEN_BYTES).hex()
    mark = directory / MARK
    try:
        mark.unlink(missing_ok=True)
        descriptor = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(mark, token, dst_dir_fd=entries)
        except OSError:  # a file system, or two, without such links
            entry = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=entries)
            with os.fdopen(entry, "wb") as file_of_entry:
                file_of_entry.write(_identity(mark.lstat()))
    finally:
        os.close(entries)


def started_here(directory: Path) -> bool:
    """Tells whether this user has started, or fetched, a run or grid here."""
    return _entry_of(directory) is not None


def leave_list(directory: Path) -> None:
    """Takes a run that is about to be removed out of the list, if it is in it. Raises OSError."""
    if (entry := _entry_of(directory)) is not None:
        entry.unlink()


def _entry_of(directory: Path) -> Path | None:
    """Returns the entry of a run in the list; None when it has none, or one that is another's."""
    try:
        mark, token = _read(directory / MARK, 2 * _TOKEN_BYTES)
        if not _TOKEN.fullmatch(token):
            return None
        folder = _list_folder(directory)
        entries = open_private(folder)
        try:
            entry, content = _read(Path(f"/proc/self/fd/{entries}", token.decode()), len(_identity(mark)))
        finally:
            os.close(entries)
    except OSError:
        return None
    # A third name would be one that somebody else's archive has given it.
    ours = mark.st_nlink == 2 if os.path.samestat(mark, entry) else content == _identity(mark)
    return folder / token.decode() if ours else None


_REACHED = (
    "ask whoever started it; a run that you started yourself, with another HEADRACE_HOME or an older "
    "headrace, is reached from there or with the tools of its platform"
)


def require_started_here(directory: Path, what: str, hint: str = _REACHED) -> None:
    """Raises EngineRefused for a run or grid that this user has not started here.

    Args:
        directory: of the run or grid.
        what: is refused, in words.
        hint: what to do.
    """
    if not started_here(directory):
        raise EngineRefused(
            f"{what}: {directory.name} was not started here by user {os.geteuid()}, so its record is only read",
            hint=hint,
        )


def _list_folder(directory: Path) -> Path:
    kind = directory.absolute().parent
    return (kind.parent if kind.name in (RUNS, GRIDS) else home_dir()) / f"started-{os.geteuid()}"


def _read(path: Path, size: int) -> tuple[os.stat_result, bytes]:
    """Returns a file's status and content, one byte more than `size` at most. Raises OSError."""
    with os.fdopen(open_record(path), "rb", buffering=0) as file:
        return os.fstat(file.fileno()), file.read(size + 1)


def _identity(status: os.stat_result) -> bytes:
    return f"{status.st_ino} {status.st_ctime_ns}".encode()
