"""Shards that are objects of a store: which there are, and their bytes, by ranged GETs.

An object is what it was when it was listed: every GET names its ETag, so one that was replaced since is an error that
names it, never other bytes.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.errors import ObjectChanged, ObjectMissing, ShardError
from headrace.feed.sources import object_stores
from headrace.feed.sources.object_stores import SCHEMES, Entry

AHEAD = 1 << 20  # bytes read ahead where the next piece is likely to be near
BLOCK = 1 << 20  # bytes; rows that are smaller are read by such blocks
MOST_BLOCKS = 8  # in one GET, where rows follow each other
BLOCKS_MEMORY = 256 << 20  # bytes that a process keeps
_LEAST_USED = 0.2  # share of a block: below, rows are read one by one
_PROBE = 32  # then so often a block all the same
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class ObjectPath:
    """One object, as it was listed.

    Attributes:
        root: of its store, as ``s3://bucket``.
        entry: its key, and what it must be.
    """

    root: str
    entry: Entry

    def __str__(self) -> str:
        return f"{self.root}/{self.entry.key}"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.entry.size

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and version, the latter as a number."""
        digest = hashlib.blake2b(self.entry.version.encode(), digest_size=7).digest()
        return self.entry.size, int.from_bytes(digest, "big")

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes from `begin` to `end` - 1. Raises ShardError if it is gone or another, StorageError."""
        if end <= begin:
            return b""
        try:
            return object_stores.read(self.root, self.entry, begin, end)
        except ObjectChanged as error:
            raise ShardError(
                f"{self} was changed since its rows were counted",
                hint="build the loader again; do not change shards while they are read",
            ) from error
        except ObjectMissing as error:
            raise ShardError(
                f"{self} is gone: it was there when the shards were listed",
                "put it back, or build the loader again",
            ) from error


@dataclass
class ObjectFolder:
    """The objects whose keys begin with a prefix, as they were when they were looked for.

    Args:
        uri: ``s3://bucket/prefix``; likewise with ``gs``, ``az``, ``https``.

    Raises:
        ShardError: the URI names no bucket.
    """

    uri: str
    objects: dict[str, ObjectPath] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        scheme, _, rest = self.uri.partition("://")
        bucket, _, prefix = rest.partition("/")
        if f"{scheme}://" not in SCHEMES or not bucket:
            raise ShardError(f"{self.uri} names no bucket", f"write {scheme}://bucket/prefix/")
        self._root = f"{scheme}://{bucket}"
        self._prefix = prefix + ("/" if prefix and not prefix.endswith("/") else "")
        self.uri = f"{self._root}/{self._prefix}"

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> ObjectPath:
        return self.objects[name]

    def names(self, pattern: str) -> list[str]:
        """Looks for the objects whose names match a pattern, as in a shell. Returns their names, sorted.

        Raises:
            ShardError: none does.
            StorageError: they cannot be looked for.
        """
        if self._root.startswith("http"):  # such a server lists nothing
            self._look_up(_expanded(pattern))
            return sorted(self.objects)
        found = object_stores.entries(self._root, self._prefix)
        self.objects = {entry.key[len(self._prefix) :]: ObjectPath(self._root, entry) for entry in found}
        parts = pattern.split("/")
        names = sorted(
            name for name in self.objects if _matches(name.split("/"), parts) and not is_hidden(name, pattern)
        )
        if not names:
            there = sorted(self.objects)
            shown = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
            above, _, last = self.uri.rstrip("/").rpartition("/")
            raise ShardError(
                f"no object in {self} matches {pattern!r}; there is: {shown or 'nothing'}",
                hint=f"pass what stands before the objects' names, and a pattern of these: '{above}/', {last!r}"
                if "." in last and not there
                else "pass what stands before the objects' names, and a pattern of these, as in a shell",
            )
        return names

    def _look_up(self, names: list[str]) -> None:
        for name in names:
            if any(sign in name for sign in "*?[{"):
                raise ShardError(
                    f"{self} cannot be listed, so {name!r} matches nothing",
                    hint="name the shards: one, or numbered ones as 'train-{0000..0146}.tar'",
                )
            self.objects[name] = ObjectPath(self._root, object_stores.entry(self._root, self._prefix + name))


def _expanded(pattern: str) -> list[str]:
    """Returns the names of numbered shards, ``a-{00..12}.tar``; the pattern itself if it is none."""
    numbers = _NUMBERS.search(pattern)
    if numbers is None:
        return [pattern]
    begin, end = numbers.groups()
    middle = [f"{number:0{len(begin)}}" for number in range(int(begin), int(end) + 1)]
    return [name for number in middle for name in _expanded(pattern.replace(numbers[0], number, 1))]


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a file, or a folder above it, has a name that begins with a dot, for which the pattern has no part."""
    dotted = [part for part in pattern.split("/") if part.startswith(".")]
    hidden = [part for part in name.split("/") if part.startswith(".")]
    return not all(any(fnmatch.fnmatchcase(part, own) for own in dotted) for part in hidden)


def _matches(name: list[str], pattern: list[str]) -> bool:
    if not pattern or not name:
        return not name and not pattern
    if pattern[0] == "**":
        return _matches(name, pattern[1:]) or _matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


class ObjectBytes:
    """The bytes of an object, for those who walk through it: pieces that are near each other share a GET.

    Attributes:
        size: bytes.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        self.size = path.size
        self._held, self._begin, self._last = b"", 0, 0

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes, fewer only at the end. Raises ShardError, StorageError."""
        end = min(offset + size, self.size)
        at = offset - self._begin
        if not (at >= 0 and end - self._begin <= len(self._held)):
            ahead = AHEAD if 0 <= offset - self._last <= AHEAD // 2 else 0
            self._held, self._begin = self._path.read(offset, min(self.size, max(end, offset + ahead))), offset
            at = 0
        self._last = offset
        return self._held[at : at + max(0, end - offset)]


class ObjectFile(io.RawIOBase):
    """An object as a file that is open for reading, for libraries that take one."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path, self._at = path, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position. Returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Returns the position."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, in one GET; fewer only at the end."""
        end = self._path.size if size < 0 else min(self._path.size, self._at + size)
        found = self._path.read(self._at, end)
        self._at += len(found)
        return found


K = TypeVar("K")
V = TypeVar("V")


class LastUsed(Generic[K, V]):
    """What was read or decoded and used last, within a limit of bytes. One that is larger is kept until the next comes.

    Args:
        limit: bytes.
        dropped: called with what is given up.
    """

    def __init__(self, limit: int, dropped: Callable[[V], None] = lambda _: None) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"memory must be a number of bytes, an integer of at least 1, got {limit!r}")
        self._limit, self._dropped = limit, dropped
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """Returns what is kept, which is the last one used then."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keeps a value of so many bytes; `trim` gives others up for it."""
        before = self._held.pop(key, None)
        self._held[key] = value, size
        self._bytes += size - (before[1] if before is not None else 0)

    def trim(self) -> None:
        """Gives up the first ones until the others are within the limit."""
        while self._bytes > self._limit and len(self._held) > 1:
            _, (value, size) = self._held.popitem(last=False)
            self._bytes -= size
            self._dropped(value)


class _Block:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.used = 0


class _Blocks:
    """Blocks of objects that rows were read from, the last used ones. Blocks that hardly serve are not fetched."""

    def __init__(self, limit: int) -> None:
        self._held = LastUsed[tuple[ObjectPath, int], _Block](limit, self._dropped)
        self._worth = 1.0  # share of a block that was used, of those that were given up lately
        self._misses = 0

    def read(self, path: ObjectPath, begin: int, end: int, *, follows: bool) -> bytes:
        """Returns bytes of an object, by blocks where that pays."""
        first, last = begin // BLOCK, (end - 1) // BLOCK
        if end - begin >= BLOCK or end <= begin:
            return path.read(begin, end)
        missing = [number for number in range(first, last + 1) if (path, number) not in self._held]
        if missing:
            self._misses += 1
            if not follows and self._worth < _LEAST_USED and self._misses % _PROBE:
                return path.read(begin, end)
            self._fetch(path, missing[0], last, MOST_BLOCKS if follows else 1)
        found = b"".join(self._part(path, number, begin, end) for number in range(first, last + 1))
        self._held.trim()
        return found

    def _fetch(self, path: ObjectPath, first: int, last: int, most: int) -> None:
        stop = max(last + 1, min(first + most, -(-path.size // BLOCK)))
        content = path.read(first * BLOCK, min(path.size, stop * BLOCK))
        for number in range(first, stop):
            block = _Block(content[(number - first) * BLOCK : (number - first + 1) * BLOCK])
            self._held.keep((path, number), block, len(block.content))

    def _part(self, path: ObjectPath, number: int, begin: int, end: int) -> bytes:
        block = self._held.get((path, number))
        assert block is not None, "it was fetched"
        part = block.content[max(0, begin - number * BLOCK) : end - number * BLOCK]
        block.used += len(part)
        return part

    def _dropped(self, block: _Block) -> None:
        self._worth += 0.05 * (min(1.0, block.used / len(block.content)) - self._worth)


_blocks: dict[int, _Blocks] = {}  # by process


class ObjectRanges:
    """Reads rows of one object by their offsets; see `ByteRanges`."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path

    def read(self, begin: int, end: int, *, follows: bool) -> bytes:
        """See `ByteRanges.read`."""
        blocks = _blocks.setdefault(os.getpid(), _Blocks(BLOCKS_MEMORY))
        return blocks.read(self.path, begin, end, follows=follows)

    def close(self) -> None:
        """Nothing is open."""
