"""The messages of an Arrow file, found by their headers: where each lies, and how many rows it holds.

A stream of Arrow is a row of messages: the schema, then dictionaries and record batches, each a small header and a
body of columns. The file form is such a stream between two marks, with a footer that says where each message begins.
Of headers and footer, which are FlatBuffers, only some numbers are read here, as the format's specification places
them; the messages themselves are decoded by pyarrow.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.errors import ShardError
from headrace.feed.sources.shard_format import ShardBytes, ShardPath, open_bytes

FILE_MARK = b"ARROW1"
_FIRST = 8  # where the messages of the file form begin: behind the mark, at a multiple of eight
_CONTINUES = b"\xff\xff\xff\xff"
_LIKELY = 4096  # bytes of a header that are asked for at once
SCHEMA, DICTIONARY, BATCH, DELTA = 1, 2, 3, 4
_BLOCK = struct.Struct("<qi4xq")  # of the footer: offset, bytes of the header, bytes of the body


class ArrowMessage(NamedTuple):
    """One message.

    Attributes:
        kind: `SCHEMA`, `BATCH`, `DICTIONARY`, or `DELTA`: what is added to a dictionary.
        begin, end: offsets of its first byte, and behind its last.
        rows: of a record batch; 0 of others.
        identity: of a dictionary; 0 of others.
    """

    kind: int
    begin: int
    end: int
    rows: int = 0
    identity: int = 0


def arrow_messages(path: ShardPath) -> list[ArrowMessage]:
    """Returns the messages of an Arrow file or stream, in their order; of a file all dictionaries before the batches.

    Raises:
        ShardError: it is no Arrow file, or is broken or cut off: names the offset.
        OSError: it cannot be read.
    """
    try:
        with open_bytes(path) as file:
            whole = file.pread(len(FILE_MARK), 0) == FILE_MARK
            found = list(_of_file(file) if whole else _of_stream(file))
        if not found or found[0].kind != SCHEMA or any(each.kind == SCHEMA for each in found[1:]):
            raise ValueError("it does not begin with its only schema")
    except (struct.error, ValueError) as error:
        raise ShardError(f"{path} is no Arrow file, or is broken: {error}") from error
    return found


def needed(messages: Sequence[ArrowMessage], batch: int) -> list[ArrowMessage]:
    """Returns what must stand before a batch so that it can be decoded: the schema, and dictionaries as they are then.

    Args:
        messages: of the file.
        batch: which of them.
    """
    dictionaries: dict[int, list[ArrowMessage]] = {}
    for each in messages[:batch]:
        if each.kind == DICTIONARY:
            dictionaries[each.identity] = [each]
        elif each.kind == DELTA:
            dictionaries.setdefault(each.identity, []).append(each)
    return [messages[0], *sorted(itertools.chain(*dictionaries.values()), key=lambda each: each.begin)]


def _of_file(file: ShardBytes) -> Iterator[ArrowMessage]:
    for at in (_FIRST, *_of_footer(file)):
        message = _message(file, at)
        if message is None:
            raise ValueError(f"its footer names offset {at}, where no message is")
        yield message


def _of_stream(file: ShardBytes) -> Iterator[ArrowMessage]:
    at = 0
    while at < file.size:
        message = _message(file, at)
        if message is None:
            return
        yield message
        at = message.end


def _message(file: ShardBytes, at: int) -> ArrowMessage | None:
    """Returns the message at an offset; None for the mark of the end. Raises ValueError, struct.error."""
    head = file.pread(_LIKELY, at)
    first = 8 if head.startswith(_CONTINUES) else 4  # before Arrow 0.15 there was no mark
    (size,) = struct.unpack_from("<i", head, first - 4)
    if size == 0:
        return None
    if size < 0 or at + first + size > file.size:
        raise ValueError(f"the message at offset {at} is cut off, or is none")
    if first + size > len(head):
        head = file.pread(first + size, at)
    message = _Table.root(head[first : first + size])
    kind, body = message.number(1, "<B"), message.number(3, "<q")
    end = at + first + size + body
    if body < 0 or end > file.size:
        raise ValueError(f"the message at offset {at} is cut off: it ends at {end} of {file.size} bytes")
    if kind == SCHEMA:
        return ArrowMessage(kind, at, end)
    inside = message.table(2)
    if kind == DICTIONARY:
        delta = inside.number(2, "<B")
        return ArrowMessage(DELTA if delta else kind, at, end, identity=inside.number(0, "<q"))
    if kind != BATCH:
        raise ValueError(f"the message at offset {at} is of kind {kind}, not a schema, a dictionary or a batch")
    rows = inside.number(0, "<q")
    if rows < 0:
        raise ValueError(f"the batch at offset {at} counts {rows} rows")
    return ArrowMessage(kind, at, end, rows)


def _of_footer(file: ShardBytes) -> list[int]:
    """Returns the offsets of the dictionaries, then of the batches, as the footer of the file form tells them."""
    tail = file.pread(4 + len(FILE_MARK), max(0, file.size - 4 - len(FILE_MARK)))
    if not tail.endswith(FILE_MARK) or len(tail) < 4 + len(FILE_MARK):
        raise ValueError("its end is missing")
    (size,) = struct.unpack_from("<i", tail)
    begin = file.size - len(tail) - size
    if size <= 0 or begin < _FIRST:
        raise ValueError(f"its footer cannot have {size} bytes")
    footer = _Table.root(file.pread(size, begin))
    return [block[0] for field in (2, 3) for block in footer.structs(field, _BLOCK)]


class _Table:
    """A table of FlatBuffers: fields are found by their number, through the table of their offsets."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if not 0 <= self._fields < len(data):
            raise ValueError("a header is damaged")
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """Returns the table that a buffer is of."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + entry)
        return self._at + int(offset) if offset else 0

    def number(self, field: int, form: str) -> int:
        """Returns a number; 0 where it is left out, as the format has it."""
        place = self._place(field)
        return int(struct.unpack_from(form, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table:
        """Returns a table that a field leads to."""
        place = self._place(field)
        if not place:
            raise ValueError("a header is damaged: a part of it is missing")
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def structs(self, field: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """Returns the entries of a vector of structs; none where it is left out."""
        place = self._place(field)
        if not place:
            return []
        begin = place + struct.unpack_from("<I", self._data, place)[0]
        (count,) = struct.unpack_from("<I", self._data, begin)
        end = begin + 4 + count * form.size
        if end > len(self._data):
            raise ValueError("its footer is damaged")
        return list(form.iter_unpack(self._data[begin + 4 : end]))
