"""What is known of one kind of shard: how its rows are counted and found (`index`), and how they are read (`open`).

An index is a few columns of numbers (`Columns`), packed into bytes for the file that it is kept in. The module of a
kind has a function `index(path)`, which returns the number of rows and the columns, or raises a ShardError that names
file and offset; and a class that is a `Format`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.feed.sources.shard_objects import ObjectBytes, ObjectPath

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
    told = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, getattr(status, "st_blocks", 0))
    return zlib.crc32(repr(told).encode())


class ShardBytes(Protocol):
    """The bytes of a shard. `size`: how many."""

    size: int

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes, fewer only at the end. Raises OSError, ShardError."""


class _FileBytes:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)


@contextlib.contextmanager
def open_bytes(path: ShardPath) -> Iterator[ShardBytes]:
    """Opens a shard for a walk through it. Raises OSError, ShardError."""
    if isinstance(path, ObjectPath):
        yield ObjectBytes(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _FileBytes(descriptor)
    finally:
        os.close(descriptor)


def sample_of(path: ShardPath) -> bytes:
    """Returns a digest of the first, middle and last 4 KB of a shard. Raises OSError, ShardError."""
    with open_bytes(path) as file:
        return _sample(file)


def sample_of_open(descriptor: int) -> bytes:
    """Returns that of a file that is open. Raises OSError."""
    return _sample(_FileBytes(descriptor))


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


class Format(Protocol):
    """One kind of shard, as a source reads it."""

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> Reader:
        """Opens a shard. Raises ShardError."""


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
