"""JSON lines: one value a line, as Python's `json` reads it. Lines that hold nothing but white space are no rows.

The index is where the lines begin. It is found by looking for line ends, without decoding anything.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.byte_ranges import ByteRanges, Columns, Counted, Format, ShardPath, open_bytes, open_ranges
from headrace.feed.sources.open_source import Folder, ShardFiles
from headrace.feed.sources.shard_objects import ObjectRanges
from headrace.feed.sources.source import Source

_CHUNK = 4 << 20
_SPACE = b" \t\r\n"
_BLANK = np.isin(np.arange(256), list(_SPACE))
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `Format`. Column `begin`: offsets of the rows, and the end of the file."""
    begins: list[NDArray[np.int64]] = []
    at, line, filled = 0, 0, False  # of the chunk, of the line; whether something stands in the line before the chunk
    with open_bytes(path) as file:
        while chunk := file.pread(_CHUNK, at):
            if at == 0 and chunk.startswith(_COMPRESSED):
                raise ShardError(
                    f"{path} at offset 0: it is compressed",
                    "shards are read at offsets: unpack it once, or use Parquet",
                )
            data = np.frombuffer(chunk, np.uint8)
            ends = np.flatnonzero(data == ord("\n"))
            if len(ends):
                inside = np.concatenate([[0], ends[:-1] + 1])
                kept = ~_BLANK[data[inside]]
                for row in np.flatnonzero(~kept & (ends > inside)).tolist():
                    kept[row] = bool(chunk[inside[row] : ends[row]].strip(_SPACE))
                kept[0] |= filled
                starts = inside + at
                starts[0] = line
                begins.append(starts[kept])
                line, filled = int(ends[-1]) + at + 1, False
            filled = filled or bool(chunk[max(0, line - at) :].strip(_SPACE))
            at += len(chunk)
    if filled:
        begins.append(np.array([line]))
    begin = np.concatenate([*begins, [at]]).astype(np.uint64)
    return len(begin) - 1, {"begin": begin}


class JsonLinesFormat(Format):
    """Rows of JSON lines: the decoded values."""

    kind = "jsonl"

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> _LinesReader:
        """See `Format`."""
        return _LinesReader(open_ranges(path, counted), columns)

    def lengths(self, columns: Columns) -> NDArray[Any]:
        """See `Format`: the bytes of a line, with the empty ones behind it."""
        lengths: NDArray[np.uint64] = np.diff(columns["begin"])
        return lengths


class _LinesReader:
    def __init__(self, file: ByteRanges | ObjectRanges, columns: Columns) -> None:
        self._file = file
        self._begin = columns["begin"]
        self._following = 0

    def row(self, number: int) -> Any:
        begin, end = self._begin[number : number + 2].tolist()
        data = self._file.read(begin, end, follows=number == self._following)
        self._following = number + 1
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._as_python_reads_it(data, begin, number)

    def _as_python_reads_it(self, data: bytes, begin: int, number: int) -> Any:
        """Returns the value of a line that only Python's json reads: with NaN, Infinity, 1e400 or half a surrogate."""
        try:
            return json.loads(data.decode())
        except (ValueError, RecursionError) as error:  # also of bytes that are not UTF-8, and of 5,000 digits
            if data[:3] == codecs.BOM_UTF8:
                raise ShardError(
                    f"{self._file.path} at offset {begin}, row {number}: it begins with a byte order mark",
                    hint="write the file as utf-8, not utf-8-sig",
                ) from error
            # the line is the row's, and the parser's own number of it always 1
            what = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
            hint = "this is no text: feed.tar, feed.parquet and feed.arrow read other shards" if b"\0" in data else ""
            raise ShardError(f"{self._file.path} at offset {begin}, row {number}: {what}", hint) from error

    def close(self) -> None:
        self._file.close()


def jsonl(folder: Folder, pattern: str = "*.jsonl") -> Source:
    """Opens files of JSON lines. A row is the value of a line; empty lines are none.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is compressed. A line that is no JSON is an error when it is read.
    """
    return ShardFiles(folder, pattern, JsonLinesFormat())
