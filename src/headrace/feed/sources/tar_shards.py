"""Tar files in WebDataset's naming: members that share a name up to its first dot are the fields of one row.

The index is made by walking the headers; the files' contents are not read. A row is read with one `pread`, from its
first member to its last. POSIX (pax), GNU and old tar files are understood, compressed and sparse ones are not: they
cannot be read at an offset.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.byte_ranges import ByteRanges, open_ranges
from headrace.feed.sources.s3_objects import ObjectRanges
from headrace.feed.sources.shard_format import Columns, ShardBytes, ShardPath, Stamp, open_bytes

BLOCK = 512
_ZEROS = bytes(BLOCK)
_FIELDS = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_FILES = (b"0", b"\0", b"7")
_PIECE = 1 << 20
_LARGEST_NAME = 1 << 20  # bytes of an extended header
_ADLER = 65521


class Member(NamedTuple):
    """A file in a tar file: its name, where its bytes begin, and how many there are."""

    name: str
    offset: int
    size: int


def members(path: ShardPath) -> Iterator[Member]:
    """Walks the headers of a tar file. Yields its ordinary files in order.

    Raises:
        ShardError: it is broken, compressed or sparse; names file and offset.
    """
    with open_bytes(path) as file:
        yield from _walk(path, file, file.size)


def _walk(path: ShardPath, file: ShardBytes, end: int) -> Iterator[Member]:
    at = 0
    told: dict[str, Any] = {}
    while True:
        header = file.pread(BLOCK, at)
        if len(header) < BLOCK:
            if len(header) > 0 and at == 0:
                raise _no_tar(path)
            raise _broken(path, at, "it ends without the mark of a tar file's end: it was cut off")
        if header == _ZEROS:
            _check_rest(path, file, at, end)
            return
        _check(path, at, header)
        kind, size = header[156:157], _number(path, at, header[124:136])
        if kind in _FILES or kind not in b"123456":
            if "size" in told:
                size = told["size"]
            begin = at + BLOCK
            if begin + size > end:
                raise _broken(path, at, f"a member of {size} bytes, and only {max(0, end - begin)} are left: cut off")
        else:
            begin, size = at + BLOCK, 0  # links, devices and folders have no contents
        following = begin + size + -size % BLOCK
        if kind in (b"x", b"L"):
            if size > _LARGEST_NAME:
                raise _broken(path, at, f"an extended header of {size} bytes")
            told |= _extended(path, at, kind, file.pread(size, begin))
        elif kind in (b"S",) or told.get("sparse"):
            raise _broken(path, at, "a sparse member, which cannot be read at an offset", "pack the shard without it")
        elif kind not in (b"g", b"K"):
            if kind in _FILES:
                yield Member(told.get("path") or _name(header), begin, size)
            told = {}
        at = following


def _check_rest(path: ShardPath, file: ShardBytes, at: int, end: int) -> None:
    """Behind the mark of its end a tar file holds zeros only: rows that nobody would read are refused."""
    while at < end:
        rest = file.pread(_PIECE, at)
        if not rest:  # it has become shorter: its stamp is another one then
            return
        kept = len(rest.lstrip(b"\0"))
        if kept:
            raise _broken(
                path, at + len(rest) - kept, "something stands behind the mark of the tar file's end",
                "tar files that were joined with cat are shards of their own: keep them apart, or pack them as one",
            )  # fmt: skip
        at += len(rest)


def _no_tar(path: ShardPath) -> ShardError:
    return _broken(
        path, 0, "this is no tar file, or a compressed one",
        "shards are read at offsets: unpack .tar.gz and .tar.zst once; .jpg and the like may stay compressed",
    )  # fmt: skip


def _check(path: ShardPath, at: int, header: bytes) -> None:
    """Compares a header with its check sum: that of its bytes, with spaces in the sum's own place."""
    try:
        told = int(header[148:156].rstrip(b" \0").lstrip() or b"-", 8)
    except ValueError:
        told = -1
    # Adler's lower half is 1 + the sum of the bytes, modulo 65521: it sums 512 bytes in one call.
    if told < 0 or ((zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32 - told) % _ADLER:
        if at == 0:
            raise _no_tar(path)
        raise _broken(path, at, "no header of a tar file where the next one should stand")


def _number(path: ShardPath, at: int, field: bytes) -> int:
    if field[0] & 0x80:  # GNU's form for large files
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.rstrip(b" \0") or b"0", 8)
    except ValueError:
        raise _broken(path, at, f"a member's size is {field!r}") from None


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _extended(path: ShardPath, at: int, kind: bytes, content: bytes) -> dict[str, Any]:
    """Reads what a header says of the member that follows: a long name (GNU), or pax records."""
    if kind == b"L":
        return {"path": _text(content.partition(b"\0")[0])}
    told: dict[str, Any] = {}
    while content:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not 4 < int(length) <= len(content):
            raise _broken(path, at, "a pax header that is damaged")
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"path":
            told["path"] = _text(value)
        elif key == b"size" and value.isdigit():
            told["size"] = int(value)
        elif key.startswith(b"GNU.sparse"):
            told["sparse"] = True
        content = content[int(length) :]
    return told


def _broken(path: ShardPath, at: int, what: str, hint: str = "pack this shard again, or take it away") -> ShardError:
    return ShardError(f"{path} at offset {at}: {what}", hint)


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `shard_format`.

    Columns: of members `offset`, `size` and `field`; of rows `first` (its first member; one more than there are rows)
    and `key` (end of its key in `keys`); `keys` and `fields` are text, the latter with NUL between.
    """
    offsets: list[int] = []
    sizes: list[int] = []
    fields: list[int] = []
    first: list[int] = []
    ends: list[int] = []
    names: dict[str, int] = {}
    keys = bytearray()
    current, seen = "", set[str]()
    for name, offset, size in members(path):
        found = _FIELDS.fullmatch(name)
        if found is None or (name.startswith("__") and name.endswith("__")):
            continue  # as WebDataset: no field, or a note on the whole shard
        key, field = found.group(1), found.group(2).lower()
        if key != current or not first:
            current, seen = key, set()
            first.append(len(offsets))
            keys += key.encode("utf-8", "surrogateescape")
            ends.append(len(keys))
        if field in seen:
            raise _broken(path, offset - BLOCK, f"row {key!r} has the field {field!r} twice")
        seen.add(field)
        offsets.append(offset)
        sizes.append(size)
        fields.append(names.setdefault(field, len(names)))
    rows = len(first)
    first.append(len(offsets))
    return rows, {
        "offset": np.array(offsets, np.uint64), "size": np.array(sizes, np.uint64),
        "field": np.array(fields, np.uint32), "first": np.array(first, np.uint64), "key": np.array(ends, np.uint64),
        "keys": np.frombuffer(bytes(keys), np.uint8),
        "fields": np.frombuffer("\0".join(names).encode("utf-8", "surrogateescape"), np.uint8),
    }  # fmt: skip


class TarFormat:
    """Rows of tar files: dicts of field to bytes, with the row's key as `__key__`."""

    def open(self, path: ShardPath, stamp: Stamp, columns: Columns) -> _TarReader:
        """See `shard_format.Format`."""
        return _TarReader(open_ranges(path, stamp), columns)

    def lengths(self, columns: Columns) -> NDArray[np.uint64]:
        """Returns the bytes of the fields of every row."""
        begins = columns["first"][:-1].astype(np.int64)
        found: NDArray[np.uint64] = np.add.reduceat(columns["size"], begins) if len(begins) else columns["size"][:0]
        return found


class _TarReader:
    def __init__(self, file: ByteRanges | ObjectRanges, columns: Columns) -> None:
        self._file = file
        self._offset, self._size, self._field = columns["offset"], columns["size"], columns["field"]
        self._first, self._key, self._keys = columns["first"], columns["key"], columns["keys"]
        self._fields = _text(columns["fields"].tobytes()).split("\0")
        self._following = 0

    def row(self, number: int) -> dict[str, Any]:
        first, last = self._first[number : number + 2].tolist()
        offsets, sizes = self._offset[first:last].tolist(), self._size[first:last].tolist()
        begin = offsets[0]
        content = self._file.read(begin, offsets[-1] + sizes[-1], follows=number == self._following)
        self._following = number + 1
        start = int(self._key[number - 1]) if number else 0
        row: dict[str, Any] = {"__key__": _text(self._keys[start : int(self._key[number])].tobytes())}
        fields = self._fields
        for field, offset, size in zip(self._field[first:last].tolist(), offsets, sizes, strict=True):
            row[fields[field]] = content[offset - begin : offset - begin + size]
        return row

    def close(self) -> None:
        self._file.close()
