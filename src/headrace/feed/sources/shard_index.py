"""The file that the index of a folder of shards is kept in.

    mark | number of this file | length of the table | table | its digest | what was packed of every shard

It is believed only if nobody but this user and root can have written it, and read piece by piece: a file that is cut
while it is mapped would end the process.

The table says of every shard what it was when it was counted, and how many rows it has. A file is written
beside its place and moved there, so no reader sees half of one. One that is cut off, damaged or of another version is
taken for none; a shard's own part is compared with its check sum when the shard is opened for the first time.

A shard that has another number or time of change of status than it had is counted again: another one may have been
put in its place, with its size and time. Where that has a reason, its content at three places decides: the index was
copied (its own number tells), so its shards were, too; or mode, owner or names of the shard were changed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.errors import ShardError
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.sources.byte_ranges import (
    Columns,
    Counted,
    ShardPath,
    Stamp,
    attributes_of,
    sample_of,
    unpack,
)
from headrace.private_folders import only_ours
from headrace.record_files import open_record

_MARK = b"headrace index 5"  # 5: numbers of files, and times of change of status
_ALIGN = 8
_DIGEST = 16


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What the table says of a shard.

    Attributes:
        counted: what it was when its rows were counted.
        rows: how many.
        offset, length, sum: where its part lies behind the table, bytes, and its CRC-32.
    """

    counted: Counted
    rows: int
    offset: int
    length: int
    sum: int

    @property
    def digest(self) -> str:
        """What tells this shard from another of as many rows, also after it was copied: 16 hex digits."""
        return digest_of([self.counted.stamp.size, self.rows, self.sum, self.counted.sample], b"shard")


class IndexedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard that was indexed: what its entry is made of, and its columns, packed."""

    counted: Counted
    rows: int
    packed: bytes


_TABLE = msgspec.msgpack.Decoder(dict[str, Entry])


class ShardIndex:
    """An index file that is open. It may be replaced or removed meanwhile.

    Attributes:
        entries: by the shards' names.
        copied: whether the file is a copy of the one that was written.
    """

    def __init__(self, path: Path, entries: dict[str, Entry], descriptor: int, begin: int, *, copied: bool) -> None:
        self._path, self._descriptor, self._begin = path, descriptor, begin
        self.entries, self.copied = entries, copied

    @classmethod
    def open(cls, path: Path) -> ShardIndex | None:
        """Opens an index file. Returns None if there is none, none that is whole, or others can have written it."""
        try:
            descriptor = open_record(path)
        except OSError:
            return None
        try:
            index = cls._parsed(path, descriptor)
        except (OSError, msgspec.DecodeError):
            index = None
        if index is None:
            os.close(descriptor)
        else:
            weakref.finalize(index, os.close, descriptor)
        return index

    @classmethod
    def _parsed(cls, path: Path, descriptor: int) -> ShardIndex | None:
        status, first = os.fstat(descriptor), len(_MARK) + 2 * _ALIGN
        if not only_ours(status):
            return None
        head = os.pread(descriptor, first, 0)
        size = int.from_bytes(head[first - _ALIGN :], "little")
        if head[: len(_MARK)] != _MARK or size > status.st_size:
            return None
        table, digest = os.pread(descriptor, size, first), os.pread(descriptor, _DIGEST, first + size)
        if digest != _digest(table):
            return None
        entries = _TABLE.decode(table)
        begin = first + size + _DIGEST
        if status.st_size != begin + sum(entry.length for entry in entries.values()):
            return None
        return cls(path, entries, descriptor, begin, copied=head[len(_MARK) : first - _ALIGN] != _number_of(descriptor))

    @property
    def stamps(self) -> dict[str, Stamp]:
        """What the shards were, by name."""
        return {name: entry.counted.stamp for name, entry in self.entries.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._path, self._told())

    def _told(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: (entry.counted.stamp[:2], entry.digest) for name, entry in self.entries.items()}

    def packed(self, name: str) -> bytes:
        """Returns the columns of a shard, packed. Raises ShardError if they are damaged."""
        entry = self.entries[name]
        try:
            part = os.pread(self._descriptor, entry.length, self._begin + entry.offset)
        except OSError as error:
            raise ShardError(f"the index {self._path} cannot be read: {error.strerror}") from error
        if zlib.crc32(part) != entry.sum:
            raise ShardError(f"the index {self._path} is damaged: the part of {name}", "remove this file")
        return part

    def columns(self, name: str) -> Columns:
        """Returns the columns of a shard. Raises ShardError if they are damaged."""
        return unpack(self.packed(name))

    def indexed(self, name: str, path: ShardPath, stamp: Stamp) -> IndexedShard | None:
        """Returns a shard as it was indexed, with its stamp of now; None if it must be counted (again).

        Args:
            name, path, stamp: of the shard as it is now.

        Raises:
            ShardError: its part is damaged.
            OSError: the shard cannot be read.
        """
        entry = self.entries.get(name)
        if entry is None or not entry.counted.stamp.may_be(stamp):
            return None
        before, counted = entry.counted, entry.counted
        if isinstance(path, Path) and before.stamp != stamp:
            counted = Counted(stamp, attributes_of(path.stat()), before.sample)
            explained = before.stamp.inode == stamp.inode and before.attributes != counted.attributes
            if not (self.copied or explained) or sample_of(path) != before.sample:
                return None
        return IndexedShard(counted, entry.rows, self.packed(name))


def _number_of(descriptor: int) -> bytes:
    return os.fstat(descriptor).st_ino.to_bytes(_ALIGN, "little")


def _reopened(path: Path, begun_with: dict[str, tuple[tuple[int, ...], str]]) -> ShardIndex:
    """Opens an index in another process. It may have become larger: another loader may have found new shards."""
    index = ShardIndex.open(path)
    here = index._told() if index is not None else {}
    changed = [name for name, shard in begun_with.items() if here.get(name) != shard]
    if index is None or changed:
        raise ShardError(
            f"the index {path} does not hold the shards any more that the loader began with: "
            f"{changed[0] if index is not None else 'it is gone'}",
            hint="do not change or remove shards while they are read",
        )
    return index


def _digest(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=_DIGEST, person=b"shard index").digest()


def write(path: Path, shards: Mapping[str, IndexedShard]) -> None:
    """Writes an index file in one step. Raises OSError."""
    entries, offset = {}, 0
    for name, shard in sorted(shards.items()):
        length = len(shard.packed)
        entries[name] = Entry(shard.counted, shard.rows, offset, length, zlib.crc32(shard.packed))
        offset += length
    table = msgspec.msgpack.encode(entries)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            head = _MARK + _number_of(file.fileno()) + len(table).to_bytes(_ALIGN, "little")
            file.write(head + table + _digest(table))
            for name in entries:
                file.write(shards[name].packed)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
