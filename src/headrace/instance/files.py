"""Files of this machine as objects: listed by prefix, copied inside the kernel, made under a hidden name and renamed.

Errors are headrace's, with what can be done about them. `storage` puts S3 beside it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ObjectChanged, ObjectMissing, StorageError

TEMPORARY = ".headrace-part-"
INDEX_FOLDER = ".headrace-index"  # the feed's own, beside shards
CHUNK = 1 << 18

_numbers = itertools.count()


@dataclass(frozen=True)
class Object:
    """One object of a bucket, or one file.

    Attributes:
        uri: where it is, ``s3://bucket/key`` or an absolute path.
        key: its key in the bucket, or its absolute path.
        size: bytes.
        etag: changes with its content; S3's ETag, or made of inode, size and time of change.
    """

    uri: str
    key: str
    size: int
    etag: str


def is_temporary(name: str) -> bool:
    """Tells whether a file of that name is one that is not complete yet."""
    return name.startswith(TEMPORARY)


def look(path: Path) -> Object:
    """Returns one file. Raises ObjectMissing or StorageError."""
    with storage_errors(str(path)):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ObjectMissing(f"{path} is not a file")
        return Object(str(path), str(path), status.st_size, _etag(status))


def copy(source: Object, descriptor: int, target: str, cancelled: Callable[[], bool]) -> None:
    """Copies a listed file to an open one, inside the kernel.

    Args:
        source: the file.
        descriptor: where it goes.
        target: its name, for messages.
        cancelled: asked now and then; when it says yes the copy ends with an error.

    Raises:
        ObjectMissing, ObjectChanged: it is not, or no longer, what was listed.
        StorageError: it cannot be read or written.
    """
    with storage_errors(source.uri), opened(source) as reading:
        copied, in_kernel = 0, True
        while copied < source.size:
            if cancelled():
                raise StorageError(f"{target}: cancelled")
            try:
                if in_kernel:
                    moved = os.copy_file_range(reading, descriptor, min(source.size - copied, 256 << 20))
                else:
                    moved = os.sendfile(descriptor, reading, None, min(source.size - copied, 16 << 20))
            except OSError as error:
                if in_kernel and error.errno in _NO_COPY:
                    in_kernel = False
                    continue
                raise StorageError(
                    f"{source.uri} cannot be copied to {target}: {error.strerror}", hint(error)
                ) from error
            if not moved and in_kernel and not copied:
                in_kernel = False  # the kernel's own file systems may answer 0
            elif not moved:
                break
            copied += moved
        check_same(reading, source)
        if copied != source.size:
            raise _changed(source)


def check_same(descriptor: int, source: Object) -> None:
    """Checks that an open file is still what was listed. Raises ObjectChanged."""
    if _etag(os.fstat(descriptor)) != source.etag:
        raise _changed(source)


def _changed(source: Object) -> ObjectChanged:
    return ObjectChanged(f"{source.uri} changed while it was read", "do not change data while they are read")


_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def list_files(path: Path, folder: bool, data: bool = False) -> Iterator[Object]:
    """Yields the files below a folder, links followed, or those whose path begins as `path` does; in no order.

    Args:
        path: absolute path.
        folder: it can only be a folder.
        data: they are a user's data: the feed's indexes are none, and what is neither file nor folder is an error.

    Raises:
        ObjectMissing: there is neither.
        StorageError: of data, a link to nothing, a FIFO, a socket or a device.
        OSError: a folder cannot be read.
    """
    if path.is_dir():
        yield from _below(str(path), (), data)
        return
    if path.is_file() and not folder:
        status = path.stat()
        yield Object(str(path), str(path), status.st_size, _etag(status))
    names: list[os.DirEntry[str]] = []
    if not folder and path.parent.is_dir():
        with os.scandir(path.parent) as beside:
            names = [entry for entry in beside if entry.name.startswith(path.name) and entry.name != path.name]
    if not names and (folder or not path.is_file()):
        raise ObjectMissing(f"{path}: there is no such file or folder", "check the path")
    for entry in names:
        yield from _entry(entry, (), data)


def _below(folder: str, above: tuple[tuple[int, int], ...], data: bool) -> Iterator[Object]:
    status = Path(folder).stat()
    own = (status.st_dev, status.st_ino)
    if own not in above:  # a link to a folder above would never end
        with os.scandir(folder) as entries:
            for entry in entries:
                yield from _entry(entry, (*above, own), data)


def _entry(entry: os.DirEntry[str], above: tuple[tuple[int, int], ...], data: bool) -> Iterator[Object]:
    if entry.is_dir():
        if not (data and entry.name == INDEX_FOLDER):
            yield from _below(entry.path, above, data)
    elif entry.is_file():
        if not is_temporary(entry.name):
            status = entry.stat()
            yield Object(entry.path, entry.path, status.st_size, _etag(status))
    elif data:
        what = "a link to a file that is not there" if entry.is_symlink() else "no ordinary file"
        raise StorageError(
            f"{entry.path} is {what}", "put the file there, or take this name away: it is never passed over"
        )


@contextlib.contextmanager
def opened(source: Object) -> Iterator[int]:
    """Opens a listed file. Raises ObjectChanged if it is another now."""
    descriptor = os.open(source.uri, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _etag(os.fstat(descriptor)) != source.etag:
            raise ObjectChanged(
                f"{source.uri} changed since it was listed", "do not change data that a running job reads"
            )
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unnamed(folder: Path) -> Iterator[int]:
    """Opens a new file in a folder for reading and writing that goes when it is closed, whatever ends the process.

    Where the file system cannot make files without a name it has a hidden one for a moment.
    """
    descriptor, hidden = _open_new(folder, os.O_RDWR)
    if hidden is not None:
        hidden.unlink()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Opens a file for writing that gets its name at the end; after an error there is nothing of it. Folders are made.

    Until then it has no name at all where the file system can do that, so that nothing stays of it when the process is
    killed; else a hidden one (`is_temporary`).

    Raises:
        StorageError: it cannot be made, or not get its name.
    """
    with storage_errors(str(path), "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, hidden = _open_new(path.parent, os.O_WRONLY)
    try:
        try:
            yield descriptor
            if hidden is None:
                with storage_errors(str(path), "written"):
                    hidden = _name(descriptor, path)
        finally:
            with storage_errors(str(path), "written"):
                os.close(descriptor)
        if hidden is not None:
            with storage_errors(str(path), "written"):
                hidden.rename(path)
    except BaseException:
        if hidden is not None:
            with contextlib.suppress(FileNotFoundError):
                hidden.unlink()
        raise


@contextlib.contextmanager
def folders_of(path: Path) -> Iterator[None]:
    """Takes the folders away again that the block made for a file, when it ends with an error. For one writer alone."""
    new = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):  # not made, or another process has put something there
                folder.rmdir()
        raise


def _open_new(folder: Path, access: int) -> tuple[int, Path | None]:
    """Opens a new file without a name; where the file system cannot make one, with a hidden name, which is returned."""
    try:
        return os.open(folder, os.O_TMPFILE | access | os.O_CLOEXEC, 0o666), None
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    hidden = _hidden(folder)
    return os.open(hidden, access | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), hidden


def _hidden(folder: Path) -> Path:
    return folder / f"{TEMPORARY}{os.getpid()}-{next(_numbers)}"


def _name(descriptor: int, path: Path) -> Path | None:
    """Names an unnamed file. Returns the hidden name that it got when another file has that name already."""
    # With src_dir_fd, which an absolute path ignores, os.link follows /proc's link to the file itself.
    source = f"/proc/self/fd/{descriptor}"
    try:
        os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)
        return None
    except FileExistsError:
        hidden = _hidden(path.parent)
        os.link(source, hidden, src_dir_fd=descriptor, follow_symlinks=True)
        return hidden


@contextlib.contextmanager
def storage_errors(uri: str, verb: str = "read") -> Iterator[None]:
    """Turns OSError into headrace's errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{error.filename or uri}: there is no such file or folder", "check the path") from error
    except OSError as error:
        raise StorageError(f"{uri} cannot be {verb}: {error.strerror or error}", hint(error)) from error


def hint(error: OSError) -> str:
    """Returns what one can do about an error of the file system; empty if nothing is known."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full: make room, or choose another folder"
    if error.errno == errno.EROFS:
        return "it is on a file system that is mounted read-only: mount it writable, or choose another folder"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "you may not do that there: change the permissions, or choose another folder"
    if error.errno in {errno.ENOTDIR, errno.EISDIR}:
        return "one name is a file here and a folder there: rename one of them"
    return ""
