"""The file that the index of a folder of shards is kept in.

    mark | length of the table | table | its digest | what was packed of every shard

The table names every shard with its size, the time of its last change and a digest of some of its bytes, and counts
its rows. A file is written
beside its place and moved there, so no reader sees half of one. One that is cut off, damaged or of another version is
taken for none; a shard's own part is compared with its check sum when the shard is opened for the first time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.errors import ShardError
from headrace.feed.sources.shard_format import Columns, Stamp, unpack

_MARK = b"headrace index 4"  # 4: Arrow shards say where their messages lie
_ALIGN = 8
_DIGEST = 16


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What the table says of a shard.

    Attributes:
        size, modified: its `Stamp`.
        rows: how many.
        offset, length, sum: where its part lies behind the table, bytes, and its CRC-32.
        sample: digest of some of its bytes, see `shard_format.sample_of`.
    """

    size: int
    modified: int
    rows: int
    offset: int
    length: int
    sum: int
    sample: bytes

    @property
    def stamp(self) -> Stamp:
        """What the shard was like when its rows were counted."""
        return Stamp(self.size, self.modified)

    @property
    def digest(self) -> str:
        """What tells this shard from another of as many rows, also after it was copied: 16 hex digits."""
        told = msgspec.msgpack.encode([self.size, self.rows, self.sum, self.sample])
        return hashlib.blake2b(told, digest_size=8, person=b"shard").hexdigest()


class IndexedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard that was indexed: what its entry is made of, and its columns, packed."""

    size: int
    modified: int
    rows: int
    packed: bytes
    sample: bytes


_TABLE = msgspec.msgpack.Decoder(dict[str, Entry])


class ShardIndex:
    """An index file that is open; its bytes are shared by all processes that have it open.

    Attributes:
        entries: by the shards' names.
    """

    def __init__(self, path: Path, entries: dict[str, Entry], data: mmap.mmap | bytes, begin: int) -> None:
        self._path, self._data, self._begin = path, data, begin
        self.entries = entries
        self._sound: set[str] = set()

    @classmethod
    def open(cls, path: Path) -> ShardIndex | None:
        """Opens an index file. Returns None if there is none, or none that is whole."""
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # ValueError: it is empty
            return None
        found = cls._parsed(path, data)
        if found is None:
            data.close()
        return found

    @classmethod
    def read(cls, path: Path) -> ShardIndex | None:
        """As `open`, of a file that others may remove: its bytes are copied."""
        try:
            return cls._parsed(path, path.read_bytes())
        except OSError:
            return None

    @classmethod
    def _parsed(cls, path: Path, data: mmap.mmap | bytes) -> ShardIndex | None:
        first = len(_MARK) + _ALIGN
        end = first + int.from_bytes(data[len(_MARK) : first], "little")
        table, digest = data[first:end], data[end : end + _DIGEST]
        if data[: len(_MARK)] != _MARK or digest != _digest(table):
            return None
        entries = _TABLE.decode(table)
        begin = end + _DIGEST
        if len(data) != begin + sum(entry.length for entry in entries.values()):
            return None
        return cls(path, entries, data, begin)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._path, self._told())

    def _told(self) -> dict[str, tuple[Stamp, str]]:
        return {name: (entry.stamp, entry.digest) for name, entry in self.entries.items()}

    def packed(self, name: str) -> memoryview:
        """Returns the columns of a shard, packed. Raises ShardError if they are damaged."""
        entry = self.entries[name]
        begin = self._begin + entry.offset
        found = memoryview(self._data)[begin : begin + entry.length]
        if name not in self._sound:
            if zlib.crc32(found) != entry.sum:
                raise ShardError(f"the index {self._path} is damaged: the part of {name}", "remove this file")
            self._sound.add(name)
        return found

    def columns(self, name: str) -> Columns:
        """Returns the columns of a shard. Raises ShardError if they are damaged."""
        return unpack(self.packed(name))

    def indexed(self, name: str) -> IndexedShard:
        """Returns a shard as it was indexed."""
        entry = self.entries[name]
        return IndexedShard(entry.size, entry.modified, entry.rows, bytes(self.packed(name)), entry.sample)


def _reopened(path: Path, told: dict[str, tuple[Stamp, str]]) -> ShardIndex:
    """Opens an index in another process. It may have become larger: another loader may have found new shards."""
    found = ShardIndex.open(path)
    here = found._told() if found is not None else {}
    changed = [name for name, shard in told.items() if here.get(name) != shard]
    if found is None or changed:
        raise ShardError(
            f"the index {path} does not hold the shards any more that the loader began with: "
            f"{changed[0] if found is not None else 'it is gone'}",
            hint="do not change or remove shards while they are read",
        )
    return found


def _digest(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=_DIGEST, person=b"shard index").digest()


def write(path: Path, shards: Mapping[str, IndexedShard]) -> None:
    """Writes an index file in one step. Raises OSError."""
    entries, offset = {}, 0
    for name, shard in sorted(shards.items()):
        length = len(shard.packed)
        entries[name] = Entry(
            shard.size, shard.modified, shard.rows, offset, length, zlib.crc32(shard.packed), shard.sample
        )
        offset += length
    table = msgspec.msgpack.encode(entries)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MARK + len(table).to_bytes(_ALIGN, "little") + table + _digest(table))
            for name in entries:
                file.write(shards[name].packed)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
