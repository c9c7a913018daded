"""JSON lines: one value a line. Empty lines are no rows.

The index is where the lines begin. It is found by looking for line ends, without decoding anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.byte_ranges import ByteRanges
from headrace.feed.sources.shard_format import Columns, Stamp

_CHUNK = 4 << 20
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")


def index(path: Path) -> tuple[int, Columns]:
    """See `shard_format`. Column `begin`: offsets of the rows, and the end of the file."""
    begins: list[NDArray[np.int64]] = []
    at, line, returned = 0, 0, False  # of the chunk, of the line; whether the chunk before ended with a \r
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if at == 0 and chunk.startswith(_COMPRESSED):
                raise ShardError(
                    f"{path} at offset 0: it is compressed",
                    "shards are read at offsets: unpack it once, or use Parquet",
                )
            data = np.frombuffer(chunk, np.uint8)
            ends = np.flatnonzero(data == ord("\n"))
            if len(ends):
                before = data[ends - 1] == ord("\r")
                before[0] = before[0] if ends[0] else returned
                starts = np.concatenate([[line], ends[:-1] + at + 1])
                length = ends + at - starts
                begins.append(starts[(length > 1) | ((length == 1) & ~before)])
                line = int(ends[-1]) + at + 1
            at, returned = at + len(chunk), chunk[-1:] == b"\r"
    if at > line:
        begins.append(np.array([line]))
    found = np.concatenate([*begins, [at]]).astype(np.uint64)
    return len(found) - 1, {"begin": found}


class JsonLinesFormat:
    """Rows of JSON lines: the decoded values."""

    def open(self, path: Path, stamp: Stamp, columns: Columns) -> _LinesReader:
        """See `shard_format.Format`."""
        return _LinesReader(ByteRanges(path, *stamp), columns)


class _LinesReader:
    def __init__(self, file: ByteRanges, columns: Columns) -> None:
        self._file = file
        self._begin = columns["begin"]
        self._following = 0

    def row(self, number: int) -> Any:
        begin, end = self._begin[number : number + 2].tolist()
        line = self._file.read(begin, end, follows=number == self._following)
        self._following = number + 1
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise ShardError(f"{self._file.path} at offset {begin}, row {number}: {error}") from error

    def close(self) -> None:
        self._file.close()
