"""What a shard is, how its bytes are read by their offsets, and what is known of one kind of shard.

An index is a few columns of numbers (`Columns`), packed into bytes for the file that it is kept in. The module of a
kind has a class that is a `Format`.

Pieces of a file are read ahead when they follow each other. The position of a file is never moved (`pread`), so a
descriptor may be shared with a forked process. Behind every read the file's size and times of change are looked at: the
kernel notes a change before its bytes can be read, so bytes that have changed since the rows were counted are never
given to anybody. A program can set the time of change back, not that of the status, which also changes when a file is
renamed or gets other rights: then its content at three places is compared. A file that was removed, or replaced by
another one, stays what it was for those who have it open.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.shard_objects import ObjectBytes, ObjectPath, ObjectRanges

Columns = Mapping[str, NDArray[Any]]
ShardPath = Path | ObjectPath

_ALIGN = 8
_SAMPLE = 4096


class Stamp(NamedTuple):
    """What tells that a shard is as it was, without reading it.

    Attributes:
        size: bytes.
        modified: time of the last change, ns; of an object its ETag, as a number.
        changed, inode: of a file, time of its last change of status (which no program can set), ns, and the file's
            number: a copy of a shard has other ones.
    """

    size: int
    modified: int
    changed: int = 0
    inode: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Returns that of a file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def may_be(self, other: Stamp) -> bool:
        """Whether a shard may be the other one, or a copy of it: its content tells."""
        return self[:2] == other[:2]


class Counted(NamedTuple):
    """What a shard was when its rows were counted: its stamp, `attributes_of` it, and `sample_of` it."""

    stamp: Stamp
    attributes: int
    sample: bytes


def stamp_of(path: ShardPath) -> Stamp:
    """Returns the stamp of a shard: of an object, what it was when it was listed. Raises OSError."""
    return Stamp(*path.stamp) if isinstance(path, ObjectPath) else Stamp.of(path.stat())


def attributes_of(status: os.stat_result) -> int:
    """Returns a digest of what may explain another time of change of status, where the content is the same.

    That is mode, owner, number of names, and blocks: these are others when a file comes back from a tape or a bucket.
    """
    fields = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, getattr(status, "st_blocks", 0))
    return zlib.crc32(repr(fields).encode())


class FileBytes:
    """The bytes of a file. `size`: how many."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes, fewer only at the end. Raises OSError."""
        return os.pread(self._descriptor, size, offset)


ShardBytes = FileBytes | ObjectBytes


@contextlib.contextmanager
def open_bytes(path: ShardPath) -> Iterator[ShardBytes]:
    """Opens a shard for a walk through it. Raises OSError, ShardError."""
    if isinstance(path, ObjectPath):
        yield ObjectBytes(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield FileBytes(descriptor)
    finally:
        os.close(descriptor)


def sample_of(path: ShardPath) -> bytes:
    """Returns a digest of the first, middle and last 4 KB of a shard. Raises OSError, ShardError."""
    with open_bytes(path) as file:
        return _sample(file)


def _sample(file: ShardBytes) -> bytes:
    digest = hashlib.blake2b(digest_size=8, person=b"sample")
    for offset in (0, max(0, file.size // 2 - _SAMPLE // 2), max(0, file.size - _SAMPLE)):
        digest.update(file.pread(_SAMPLE, offset))
    return digest.digest()


class Reader(Protocol):
    """An open shard."""

    def row(self, number: int) -> Any:
        """Returns a row. Raises ShardError if it cannot be read."""

    def close(self) -> None:
        """Closes the shard."""


class Format(ABC):
    """One kind of shard.

    Its module has the function `index(path)`, which counts the rows of a shard: it returns their number, and the
    columns, and raises ShardError.

    Attributes:
        kind: its name: that of the index, and a row of `sources.KINDS`.
    """

    kind: ClassVar[str]

    @abstractmethod
    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> Reader:
        """Opens a shard. Raises ShardError."""

    def lengths(self, columns: Columns) -> NDArray[Any] | None:
        """Returns the bytes of every row, uint64; None where the index does not know them."""
        del columns
        return None


def pack(columns: Columns) -> bytes:
    """Returns columns as bytes."""
    described, parts, end = [], [], 0
    for name, column in columns.items():
        described.append((name, column.dtype.str, end, len(column)))
        raw = np.ascontiguousarray(column).tobytes()
        raw += bytes(-len(raw) % _ALIGN)
        parts.append(raw)
        end += len(raw)
    header = msgspec.msgpack.encode(described)
    header = len(header).to_bytes(_ALIGN, "little") + header + bytes(-len(header) % _ALIGN)
    return b"".join([header, *parts])


def unpack(packed: bytes) -> Columns:
    """Returns the columns that `pack` made bytes of, as views of these."""
    size = int.from_bytes(packed[:_ALIGN], "little")
    begin = _ALIGN + size + -size % _ALIGN
    return {
        name: np.frombuffer(packed, np.dtype(kind), count, begin + offset)
        for name, kind, offset, count in msgspec.msgpack.decode(packed[_ALIGN : _ALIGN + size])
    }


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
        self.path, self._counted, self.descriptor = path, counted, -1
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
                raise ShardError(f"{self.path} was changed since its rows were counted: {what}", hint=DO_NOT_CHANGE)
            self._counted = Counted(stamp, attributes, self._counted.sample)

    def _difference(self, stamp: Stamp, attributes: int) -> str:
        """Returns what tells the file from the one that was counted, "" if nothing does."""
        before = self._counted
        if stamp.size != before.stamp.size:
            return f"it has {stamp.size} bytes, and had {before.stamp.size}"
        if not stamp.may_be(before.stamp):
            return "its time of change is another one"
        try:
            if _sample(FileBytes(self.descriptor)) != before.sample:
                return "its content is another one, with the size and time of change that it had"
        except OSError as error:
            return f"it cannot be read any more: {error.strerror}"
        if stamp.changed == before.stamp.changed:  # a file system that gives its files new numbers
            return ""
        if stamp.inode != before.stamp.inode:
            return "it was replaced by another file, with the size and time of change that it had"
        if attributes != before.attributes or not self._at_path():  # other rights, another name, back from a bucket
            return ""
        return "its status was changed and its rights, owner and links are the same: its time of change may be set back"

    def _at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return False

    def require_at_path(self) -> None:
        """Raises ShardError if the path leads to another file now. Call it when a library has opened it too."""
        if not self._at_path():
            raise ShardError(f"{self.path} was replaced or removed while it was opened", hint=DO_NOT_CHANGE)

    def close(self, *, close: Callable[[int], None] = os.close) -> None:
        """Closes the file, also when the interpreter ends and has no `os` any more."""
        if self.descriptor >= 0:
            close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()  # sources, and the copies of them that lanes read, are dropped without being closed


class ByteRanges(CountedFile):
    """A file that is open for reading.

    Args:
        path: of the file.
        counted: what it was when the index was made.

    Raises:
        ShardError: it cannot be opened, or was changed since.
    """

    def __init__(self, path: Path, counted: Counted) -> None:
        super().__init__(path, counted)
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
            content = os.pread(self.descriptor, end - begin, begin)
            while len(content) < end - begin:
                more = os.pread(self.descriptor, end - begin - len(content), begin + len(content))
                if not more:
                    break
                content += more
        except OSError as error:
            raise ShardError(f"{self.path} cannot be read at offset {begin}: {error.strerror}") from error
        self.require_same()
        if len(content) < end - begin:
            raise ShardError(f"{self.path} ends at offset {begin + len(content)}; {end} bytes were counted")
        return content


def open_ranges(path: Path | ObjectPath, counted: Counted) -> ByteRanges | ObjectRanges:
    """Opens a shard for its rows; see `ByteRanges`. An object is what it was when it was listed."""
    return ObjectRanges(path) if isinstance(path, ObjectPath) else ByteRanges(path, counted)
