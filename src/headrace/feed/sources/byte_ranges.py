"""Reads pieces of one file by their offsets, ahead when they follow each other.

The position of a file is never moved (`pread`), so a descriptor may be shared with a forked process.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import ShardError
from headrace.feed.sources.s3_objects import ObjectPath, ObjectRanges

READ_AHEAD = 256 << 10  # bytes: a piece of cache, and one system call for many small rows


class ByteRanges:
    """A file that is open for reading.

    Args:
        path: of the file.
        size: bytes, and
        modified: time of the last change, nanoseconds, both as they were when the index was made.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, size: int, modified: int) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error.strerror}") from error
        now = os.fstat(self._descriptor)
        if (now.st_size, now.st_mtime_ns) != (size, modified):
            self.close()
            raise ShardError(
                f"{path} was changed since its rows were counted: it has {now.st_size} bytes, and had {size}",
                hint="build the loader again; do not change shards while they are read",
            )
        self._size = size
        self._ahead = b""
        self._begin = 0

    def read(self, begin: int, end: int, *, follows: bool) -> bytes:
        """Returns the bytes from `begin` to `end` - 1.

        Args:
            begin, end: offsets.
            follows: whether the piece follows the one before: then more is read than this one.

        Raises:
            ShardError: the file ends before, or the disk gives an error.
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
            found = os.pread(self._descriptor, end - begin, begin)
            while len(found) < end - begin:
                more = os.pread(self._descriptor, end - begin - len(found), begin + len(found))
                if not more:
                    raise ShardError(f"{self.path} ends at offset {begin + len(found)}; {end} bytes were counted")
                found += more
        except OSError as error:
            raise ShardError(f"{self.path} cannot be read at offset {begin}: {error.strerror}") from error
        return found

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def open_ranges(path: Path | ObjectPath, size: int, modified: int) -> ByteRanges | ObjectRanges:
    """Opens a shard for its rows; see `ByteRanges`. An object is what it was when it was listed."""
    return ObjectRanges(path) if isinstance(path, ObjectPath) else ByteRanges(path, size, modified)
