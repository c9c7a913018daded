"""What is known of one kind of shard: how its rows are counted and found (`index`), and how they are read (`open`).

An index is a few columns of numbers (`Columns`), packed into bytes for the file that it is kept in. The module of a
kind has a function `index(path)`, which returns the number of rows and the columns, or raises a ShardError that names
file and offset; and a class that is a `Format`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.feed.sources.s3_objects import ObjectPath, opened

Columns = Mapping[str, NDArray[Any]]
ShardPath = Path | ObjectPath

_ALIGN = 8
_SAMPLE = 4096


class Stamp(NamedTuple):
    """What tells that a shard is as it was: bytes, and time of the last change in ns; of an object its ETag."""

    size: int
    modified: int


def stamp_of(path: ShardPath) -> Stamp:
    """Returns the stamp of a shard: of an object, what it was when it was listed. Raises OSError."""
    if isinstance(path, ObjectPath):
        return Stamp(*path.stamp)
    found = path.stat()
    return Stamp(found.st_size, found.st_mtime_ns)


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
        with opened(path) as found:
            yield found
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _FileBytes(descriptor)
    finally:
        os.close(descriptor)


def sample_of(path: ShardPath) -> bytes:
    """Returns a digest of the first, middle and last 4 KB of a shard. Raises OSError, ShardError."""
    digest = hashlib.blake2b(digest_size=8, person=b"sample")
    with open_bytes(path) as file:
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

    def open(self, path: ShardPath, stamp: Stamp, columns: Columns) -> Reader:
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


def unpack(packed: memoryview) -> Columns:
    """Returns the columns that `pack` made bytes of, as views of these."""
    size = int.from_bytes(packed[:_ALIGN], "little")
    begin = _ALIGN + size + -size % _ALIGN
    return {
        name: np.frombuffer(packed, np.dtype(kind), count, begin + offset)
        for name, kind, offset, count in msgspec.msgpack.decode(packed[_ALIGN : _ALIGN + size])
    }
