"""Reads pieces of one file by their offsets, ahead when they follow each other.

The position of a file is never moved (`pread`), so a descriptor may be shared with a forked process. Behind every read
the file's size and time of change are looked at: the kernel notes a change before its bytes can be read, so bytes that
have changed since the rows were counted are never given to anybody. A file that was removed, or replaced by another
one, stays what it was for those who have it open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ShardError
from headrace.feed.sources.s3_objects import ObjectPath, ObjectRanges
from headrace.feed.sources.shard_format import Stamp

DO_NOT_CHANGE = (
    "close all loaders that have it open on the same feed servers, and build them again; do not change shards while "
    "they are read"
)
READ_AHEAD = 256 << 10  # bytes: a piece of cache, and one system call for many small rows


class CountedFile:
    """A file that is open, and that must stay as it was when its rows were counted. It is closed with its last user.

    Args:
        path: of the file.
        stamp: what it was then.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self._path, self._stamp, self.descriptor = path, stamp, -1
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            hint = DO_NOT_CHANGE if isinstance(error, FileNotFoundError) else ""
            raise ShardError(f"{path} cannot be read: {error.strerror}", hint) from error
        self.require_same()

    def require_same(self) -> None:
        """Raises ShardError if it was changed. Call it when something was read, before that is used."""
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != self._stamp:
            what = "its time of change is another one"
            if now.st_size != self._stamp.size:
                what = f"it has {now.st_size} bytes, and had {self._stamp.size}"
            raise ShardError(f"{self._path} was changed since its rows were counted: {what}", hint=DO_NOT_CHANGE)

    def require_at_path(self) -> None:
        """Raises ShardError if the path leads to another file now. Call it when a library has opened it too."""
        try:
            same = os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except OSError:
            same = False
        if not same:
            raise ShardError(f"{self._path} was replaced or removed while it was opened", hint=DO_NOT_CHANGE)

    def close(self, *, close: Callable[[int], None] = os.close) -> None:
        """Closes the file, also when the interpreter ends and has no `os` any more."""
        if self.descriptor >= 0:
            close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()  # sources, and the copies of them that lanes read, are dropped without being closed


class ByteRanges:
    """A file that is open for reading.

    Args:
        path: of the file.
        stamp: what it was when the index was made.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self.path = path
        self._file = CountedFile(path, stamp)
        self._size = stamp.size
        self._ahead = b""
        self._begin = 0

    def read(self, begin: int, end: int, *, follows: bool) -> bytes:
        """Returns the bytes from `begin` to `end` - 1.

        Args:
            begin, end: offsets.
            follows: whether the piece follows the one before: then more is read than this one.

        Raises:
            ShardError: the file was changed, or the disk gives an error.
        """
        at = begin - self._begin
        if at >= 0 and end - self._begin <= len(self._ahead):
            return self._ahead[at : at + end - begin]
        if not follows or end - begin >= READ_AHEAD:
            return self._read(begin, end)
        self._ahead, self._begin = self._read(begin, min(begin + READ_AHEAD, self._size)), begin
        return self._ahead[: end - begin]

    def _read(self, begin: int, end: int) -> bytes:
        try:
            found = os.pread(self._file.descriptor, end - begin, begin)
            while len(found) < end - begin:
                more = os.pread(self._file.descriptor, end - begin - len(found), begin + len(found))
                if not more:
                    break
                found += more
        except OSError as error:
            raise ShardError(f"{self.path} cannot be read at offset {begin}: {error.strerror}") from error
        self._file.require_same()
        if len(found) < end - begin:
            raise ShardError(f"{self.path} ends at offset {begin + len(found)}; {end} bytes were counted")
        return found

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def open_ranges(path: Path | ObjectPath, stamp: Stamp) -> ByteRanges | ObjectRanges:
    """Opens a shard for its rows; see `ByteRanges`. An object is what it was when it was listed."""
    return ObjectRanges(path) if isinstance(path, ObjectPath) else ByteRanges(path, stamp)
