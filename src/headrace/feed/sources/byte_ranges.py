"""Reads pieces of one file by their offsets, ahead when they follow each other.

The position of a file is never moved (`pread`), so a descriptor may be shared with a forked process. Behind every read
the file's size and times of change are looked at: the kernel notes a change before its bytes can be read, so bytes that
have changed since the rows were counted are never given to anybody. A program can set the time of change back, not
that of the status, which also changes when a file is renamed or gets other rights: then its content at three places is
compared. A file that was removed, or replaced by another one, stays what it was for those who have it open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ShardError
from headrace.feed.sources.shard_format import Counted, Stamp, attributes_of, sample_of_open
from headrace.feed.sources.shard_objects import ObjectPath, ObjectRanges

DO_NOT_CHANGE = (
    "close all loaders that have it open on the same feed servers, and build them again; do not change shards while "
    "they are read"
)
READ_AHEAD = 256 << 10  # bytes: a piece of cache, and one system call for many small rows


class CountedFile:
    """A file that is open, and that must stay as it was when its rows were counted. It is closed with its last user.

    Args:
        path: of the file.
        counted: what it was then.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, counted: Counted) -> None:
        self._path, self._counted, self.descriptor = path, counted, -1
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            hint = DO_NOT_CHANGE if isinstance(error, FileNotFoundError) else ""
            raise ShardError(f"{path} cannot be read: {error.strerror}", hint) from error
        self.require_same()

    def require_same(self) -> None:
        """Raises ShardError if it was changed. Call it when something was read, before that is used."""
        status = os.fstat(self.descriptor)
        stamp = Stamp.of(status)
        if stamp != self._counted.stamp:
            attributes = attributes_of(status)
            what = self._difference(stamp, attributes)
            if what:
                raise ShardError(f"{self._path} was changed since its rows were counted: {what}", hint=DO_NOT_CHANGE)
            self._counted = Counted(stamp, attributes, self._counted.sample)

    def _difference(self, stamp: Stamp, attributes: int) -> str:
        """Returns what tells the file from the one that was counted, "" if nothing does."""
        before = self._counted
        if stamp.size != before.stamp.size:
            return f"it has {stamp.size} bytes, and had {before.stamp.size}"
        if not stamp.may_be(before.stamp):
            return "its time of change is another one"
        try:
            if sample_of_open(self.descriptor) != before.sample:
                return "its content is another one, with the size and time of change that it had"
        except OSError as error:
            return f"it cannot be read any more: {error.strerror}"
        if stamp.changed == before.stamp.changed:  # a file system that gives its files new numbers
            return ""
        if stamp.inode != before.stamp.inode:
            return "it was replaced by another file, with the size and time of change that it had"
        if attributes != before.attributes or not self._at_path():  # other rights, another name, back from a bucket
            return ""
        return "its time of change was set back (that of its status is another one)"

    def _at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except OSError:
            return False

    def require_at_path(self) -> None:
        """Raises ShardError if the path leads to another file now. Call it when a library has opened it too."""
        if not self._at_path():
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
        counted: what it was when the index was made.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, counted: Counted) -> None:
        self.path = path
        self._file = CountedFile(path, counted)
        self._size = counted.stamp.size
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


def open_ranges(path: Path | ObjectPath, counted: Counted) -> ByteRanges | ObjectRanges:
    """Opens a shard for its rows; see `ByteRanges`. An object is what it was when it was listed."""
    return ObjectRanges(path) if isinstance(path, ObjectPath) else ByteRanges(path, counted)
