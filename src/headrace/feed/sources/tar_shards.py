"""Tar files in WebDataset's naming: members that share a name up to its first dot are the fields of one row.

The index is made by walking the headers; the files' contents are not read. A row's members may lie anywhere in the
shard; where they are near each other, the row is read with one `pread`. A link is what it leads to, which must be in
the same shard; a shard with links is walked twice. Hidden files, and others that no packer means (`_row_of`), are no
fields. Whatever else has a row's name is a field of that row, or an error that names the shard and the member.

POSIX (pax), GNU and old tar files are understood, compressed and sparse ones are not: they cannot be read at an offset.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.byte_ranges import (
    ByteRanges,
    Columns,
    Counted,
    Format,
    ShardBytes,
    ShardPath,
    open_bytes,
    open_ranges,
)
from headrace.feed.sources.open_source import Folder, ShardFiles
from headrace.feed.sources.shard_objects import ObjectRanges
from headrace.feed.sources.source import Source

BLOCK = 512
_ZEROS = bytes(BLOCK)
_FIELDS = re.compile(r"(.*/|)([^./]+)[.]([^/]*)", re.DOTALL)
_LEFT_BEHIND = frozenset({"thumbs.db", "desktop.ini"})  # by file managers
_FOLDERS_LEFT_BEHIND = frozenset({"__MACOSX", ".AppleDouble", ".ipynb_checkpoints", "@eaDir"})
_FILES = (b"0", b"\0", b"7")
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_FOLDERS = (b"5", b"D")  # D: GNU's list of what was in a folder
_KINDS = {b"3": "a device", b"4": "a device", b"6": "a FIFO"}
_LABEL = b"V"
_PIECE = 1 << 20
_LARGEST_NAME = 1 << 20  # bytes of an extended header
_ADLER = 65521
_NEAR = 16 << 10  # bytes between two members, on average, that are read with them rather than in two reads
_MOST_LINKS = 40  # one behind the other, as Linux has it


class Member(NamedTuple):
    """A member of a tar file.

    Attributes:
        name: as it is written.
        kind: type flag of its header.
        at: offset of its header.
        offset, size: where its bytes lie, none but of files.
        target: of a link.
    """

    name: str
    kind: bytes
    at: int
    offset: int
    size: int
    target: str = ""


def _walk(path: ShardPath) -> Iterator[Member]:
    """Walks the headers of a tar file. Yields its members in order.

    Raises:
        ShardError: it is broken, compressed or sparse; names file and offset.
    """
    with open_bytes(path) as file:
        yield from _members(path, file, file.size)


def _members(path: ShardPath, file: ShardBytes, end: int) -> Iterator[Member]:
    at = 0
    defaults: dict[str, Any] = {}  # of a global pax header
    extended: dict[str, Any] | None = None  # of the headers before a member's own
    while True:
        header = file.pread(BLOCK, at)
        if len(header) < BLOCK:
            if len(header) > 0 and at == 0:
                raise _no_tar(path)
            raise _broken(path, at, "it ends without the mark of a tar file's end: it was cut off")
        if header == _ZEROS:
            if extended is not None:
                raise _broken(path, at, "an extended header stands before no member")
            _check_rest(path, file, at, end)
            return
        _check(path, at, header)
        kind, size = header[156:157], _number(path, at, header[124:136])
        fields = defaults if extended is None else extended
        if kind in b"xXgLK":
            if size > _LARGEST_NAME:
                raise _broken(path, at, f"an extended header of {size} bytes")
            content = file.pread(size, at + BLOCK)
            if len(content) < size:
                raise _broken(path, at, f"an extended header of {size} bytes, and {len(content)} are left: cut off")
            if kind == b"g":
                defaults = defaults | _extended(path, at, kind, content)
            else:
                extended = fields | _extended(path, at, kind, content)
        else:
            name = fields.get("path") or _name(header)
            if kind == b"S" or "sparse" in fields:
                raise _broken(
                    path, at, f"the member {fields.get('sparse') or name!r} is sparse: it cannot be read at an offset",
                    "pack the shard without --sparse",
                )  # fmt: skip
            if kind in (b"M", b"N"):
                what = "goes on from another volume" if kind == b"M" else "is in a form that GNU tar gave up"
                raise _broken(path, at, f"the member {name!r} {what}")
            if "\0" in name:
                raise _broken(path, at, f"the member {name!r} has a NUL in its name")
            if kind in b"123456":  # links, devices and folders have no contents
                size = 0
            elif "size" in fields:
                size = fields["size"]
            if at + BLOCK + size > end:
                left = max(0, end - at - BLOCK)
                raise _broken(path, at, f"the member {name!r} has {size} bytes, and only {left} are left: cut off")
            if kind in (_HARD_LINK, _SYMBOLIC_LINK):
                target = fields.get("linkpath") or _text(header[157:257].partition(b"\0")[0])
                yield Member(name, kind, at, at + BLOCK, 0, target)
            else:
                yield Member(name, b"5" if name[-1:] == "/" else kind, at, at + BLOCK, size)
            extended = None
        at += BLOCK + size + -size % BLOCK


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
        written = int(header[148:156].rstrip(b" \0").lstrip() or b"-", 8)
    except ValueError:
        written = -1
    # Adler's lower half is 1 + the sum of the bytes, modulo 65521: it sums 512 bytes in one call.
    if written < 0 or ((zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32 - written) % _ADLER:
        if at == 0:
            raise _no_tar(path)
        raise _broken(path, at, "no header of a tar file where the next one should stand")


def _number(path: ShardPath, at: int, field: bytes) -> int:
    if field[0] & 0x80:  # GNU's form for large files
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits.translate(None, b"01234567"):
        raise _broken(path, at, f"a member's size is {field!r}")
    return int(digits or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _extended(path: ShardPath, at: int, kind: bytes, content: bytes) -> dict[str, Any]:
    """Reads what a header says of what follows: a long name (GNU), the long name of a link's target, or pax records."""
    if kind in b"LK":
        return {"path" if kind == b"L" else "linkpath": _text(content.partition(b"\0")[0])}
    fields: dict[str, Any] = {}
    while content and content[0]:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not 4 < int(length) <= len(content):
            raise _broken(path, at, "a pax header that is damaged")
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        if key in (b"path", b"linkpath"):
            fields[key.decode()] = _text(value)
        elif key == b"size" and value:
            if not value.isdigit():
                raise _broken(path, at, f"a pax header that is damaged: a size of {value!r}")
            fields["size"] = int(value)
        elif key.startswith(b"GNU.sparse"):
            fields["sparse"] = _text(value) if key == b"GNU.sparse.name" else fields.get("sparse", "")
        content = content[int(length) :]
    return fields


def _broken(path: ShardPath, at: int, what: str, hint: str = "pack this shard again, or take it away") -> ShardError:
    return ShardError(f"{path} at offset {at}: {what}", hint)


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `Format`.

    Columns: of members `offset`, `size` and `field`; of rows `first` (its first member; one more than there are rows)
    and `key` (end of its key in `keys`); `keys` and `fields` are text, the latter with NUL between.
    """
    offsets, sizes, fields, heads = array("Q"), array("Q"), array("L"), array("Q")
    runs, hashes = array("Q"), array("q")  # of members: number of their run; of runs of members with one key
    keys, ends = bytearray(), array("Q")
    names: dict[str, int] = {}
    links: dict[str, Member] = {}
    rowless: Member | None = None
    current = None
    for member in _walk(path):
        if member.kind in (_HARD_LINK, _SYMBOLIC_LINK):
            links[posixpath.normpath(member.name)] = member
        row = _row_of(path, member)
        if row is None:
            rowless = member if member.kind in _FILES else rowless
            continue
        key, field = row
        if key != current:
            current = key
            keys += key.encode("utf-8", "surrogateescape")
            ends.append(len(keys))
            hashes.append(hash(key))
        runs.append(len(ends) - 1)
        offsets.append(member.offset)
        sizes.append(member.size)
        fields.append(names.setdefault(field, len(names)))
        heads.append(member.at)
    members = _Members(path, np.array(ends), keys, list(names), *map(np.array, (offsets, sizes, fields, heads, runs)))
    if links:
        members.follow(links)
    if links or len(set(hashes)) < len(hashes):
        members.gather()
    members.refuse_fields_that_come_twice()
    if not len(members.offset) and rowless is not None and not _is_note(rowless.name):
        raise _broken(
            path, rowless.at, f"no member belongs to a row, as {rowless.name!r} does not",
            "name members KEY.FIELD: 17.jpg and 17.cls are the row 17",
        )  # fmt: skip
    return members.columns()


def _is_note(name: str) -> bool:
    return name[:2] == "__" and name[-2:] == "__" and "/" not in name


def _row_of(path: ShardPath, member: Member) -> tuple[str, str] | None:
    """Returns the key and the field that a member is; None for one that belongs to no row.

    Those are folders; names without a dot; hidden files, whose names begin with a dot; what file managers leave behind;
    and, as WebDataset has it, `__NAME__`, a note on the whole shard.

    Raises:
        ShardError: it has a row's name and cannot be a field; names shard and member.
    """
    name, kind = member.name, member.kind
    parts = _FIELDS.fullmatch(name)
    if parts is None or kind in _FOLDERS or kind == _LABEL or _is_note(name):
        return None
    folder, base, field = parts.groups()
    field = field.lower()
    if f"{base.lower()}.{field}" in _LEFT_BEHIND or not _FOLDERS_LEFT_BEHIND.isdisjoint(folder.split("/")):
        return None
    if kind not in _FILES and kind not in (_HARD_LINK, _SYMBOLIC_LINK):
        what = _KINDS.get(kind, f"of the kind {kind!r}")
        raise _broken(path, member.at, f"the member {name!r} is {what}, no file: it cannot be a row's field")
    if _is_note(field):
        raise _broken(
            path, member.at, f"the member {name!r} would be the field {field!r}, which is kept for notes on a row",
            "give the field a name without __ around it",
        )  # fmt: skip
    if "./" in folder or "//" in folder:  # ./0.jpg and 0.jpg are of one row
        return posixpath.normpath(folder + base), field
    return folder + base, field


@dataclass(eq=False)
class _Members:
    """The members of a shard that are fields of rows: columns, and the rows' keys, by run of members.

    Attributes:
        path: the shard.
        ends: where the key of each run ends in `keys`.
        keys: of all runs.
        names: of the fields.
        offset, size, field, head: of members, `field` a number in `names`.
        run: number of each member's run, later of its row.
    """

    path: ShardPath
    ends: NDArray[Any]
    keys: bytearray
    names: list[str]
    offset: NDArray[Any]
    size: NDArray[Any]
    field: NDArray[Any]
    head: NDArray[Any]
    run: NDArray[Any]

    def _take(self, which: NDArray[Any]) -> None:
        self.offset, self.size, self.field = self.offset[which], self.size[which], self.field[which]
        self.head, self.run = self.head[which], self.run[which]

    def _key(self, run: int) -> bytes:
        return bytes(self.keys[int(self.ends[run - 1]) if run else 0 : int(self.ends[run])])

    def follow(self, links: Mapping[str, Member]) -> None:
        """Puts what each link leads to in its place, and takes links to folders away. Raises ShardError."""
        by_head = {link.at: link for link in links.values()}
        places = {at: _target(self.path, link, links) for at, link in by_head.items()}
        files, folders = _find(self.path, {place for place in places.values() if place is not None})
        kept = np.ones(len(self.head), np.bool_)
        for number in np.flatnonzero(np.isin(self.head, list(by_head))).tolist():
            link = by_head[int(self.head[number])]
            place = places[link.at]
            file = files.get(place) if place is not None else None
            if file is not None:
                self.offset[number], self.size[number] = file.offset, file.size
            elif place in folders:
                kept[number] = False
            else:
                why = "to itself" if place is None else "to what is not in this shard"
                raise _broken(
                    self.path, link.at, f"the member {link.name!r} is a link to {link.target!r}, {why}",
                    "pack the files themselves (tar --dereference --hard-dereference), or what links lead to as well",
                )  # fmt: skip
        self._take(kept)

    def gather(self) -> None:
        """Brings the members of each row together, wherever they are, in the order in which the rows begin."""
        rows: dict[bytes, int] = {}
        self.run = np.array([rows.setdefault(self._key(run), len(rows)) for run in self.run.tolist()], np.uint64)
        self.keys = bytearray(b"".join(rows))
        self.ends = np.cumsum([len(key) for key in rows], dtype=np.uint64)
        self._take(np.argsort(self.run, kind="stable"))

    def refuse_fields_that_come_twice(self) -> None:
        """Raises ShardError if a row has two members of one field; names both places."""
        code = self.run.astype(np.int64) * len(self.names) + self.field.astype(np.int64)
        order = np.argsort(code, kind="stable")
        [twice] = np.nonzero(np.diff(code[order]) == 0)
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            key, field = _text(self._key(int(self.run[first]))), self.names[int(self.field[first])]
            raise _broken(
                self.path, int(self.head[second]),
                f"row {key!r} has the field {field!r} twice: it stands at offset {int(self.head[first])} already",
                "every row needs a key of its own, also where an archive was updated (tar -r, tar -u): pack it again",
            )  # fmt: skip

    def columns(self) -> tuple[int, Columns]:
        """Returns the number of rows, and the columns; see `index`."""
        rows = len(self.ends)
        return rows, {
            "offset": self.offset.astype(np.uint64), "size": self.size.astype(np.uint64),
            "field": self.field.astype(np.uint32),
            "first": np.searchsorted(self.run, np.arange(rows + 1)).astype(np.uint64),
            "key": self.ends.astype(np.uint64), "keys": np.frombuffer(bytes(self.keys), np.uint8),
            "fields": np.frombuffer("\0".join(self.names).encode("utf-8", "surrogateescape"), np.uint8),
        }  # fmt: skip


def _target(path: ShardPath, link: Member, links: Mapping[str, Member]) -> str | None:
    """Returns the place in the archive that a link leads to, through other links; None if it leads to itself."""
    place = posixpath.normpath(link.name)
    for _ in range(_MOST_LINKS):
        parts = place.split("/")
        count = next((n for n in range(1, len(parts) + 1) if "/".join(parts[:n]) in links), None)
        if count is None:
            return place
        step = links["/".join(parts[:count])]
        base = "" if step.kind == _HARD_LINK else posixpath.dirname("/".join(parts[:count]))
        place = posixpath.normpath(posixpath.join(base, step.target, *parts[count:]))
    return None


def _find(path: ShardPath, places: Collection[str]) -> tuple[dict[str, Member], set[str]]:
    """Walks the archive again. Returns the files, and the folders, that are at some places."""
    files: dict[str, Member] = {}
    folders: set[str] = set()
    for member in _walk(path):
        place = posixpath.normpath(member.name)
        if place in places:
            if member.kind in _FOLDERS:
                folders.add(place)
            elif member.kind in _FILES:
                if place in files:
                    raise _broken(
                        path, member.at, f"the member {member.name!r}, which a link leads to, is there twice: it "
                        f"stands at offset {files[place].at} already",
                    )  # fmt: skip
                files[place] = member
        while place and (place := posixpath.dirname(place)) not in ("", "/"):
            if place in places:
                folders.add(place)
    return files, folders


class TarFormat(Format):
    """Rows of tar files: dicts of field to bytes, with the row's key as `__key__`."""

    kind = "tar"

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> _TarReader:
        """See `Format`."""
        return _TarReader(open_ranges(path, counted), columns)

    def lengths(self, columns: Columns) -> NDArray[Any]:
        """See `Format`: the bytes of the fields."""
        begins = columns["first"][:-1].astype(np.int64)
        lengths: NDArray[np.uint64] = np.add.reduceat(columns["size"], begins) if len(begins) else columns["size"][:0]
        return lengths


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
        start = int(self._key[number - 1]) if number else 0
        row: dict[str, Any] = {"__key__": _text(self._keys[start : int(self._key[number])].tobytes())}
        names = [self._fields[field] for field in self._field[first:last].tolist()]
        begin, end = min(offsets), max(map(sum, zip(offsets, sizes, strict=True)))
        if end - begin <= sum(sizes) + _NEAR * len(sizes):
            content = self._file.read(begin, end, follows=number == self._following)
            self._following = number + 1
            for name, offset, size in zip(names, offsets, sizes, strict=True):
                row[name] = content[offset - begin : offset - begin + size]
        else:
            for name, offset, size in zip(names, offsets, sizes, strict=True):
                row[name] = self._file.read(offset, offset + size, follows=False)
        return row

    def close(self) -> None:
        self._file.close()


def tar(folder: Folder, pattern: str = "*.tar") -> Source:
    """Opens tar files in WebDataset's naming. A row is a dict of field (``"jpg"``) to bytes, and `__key__`.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is broken or compressed.
    """
    return ShardFiles(folder, pattern, TarFormat())
