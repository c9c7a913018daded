"""A kind of shards: bytes, each of which is a row. A kind is such a file and a row of `sources.KINDS`."""

from __future__ import annotations

import numpy as np

from headrace.feed.sources.byte_ranges import ByteRanges, Columns, Counted, Format, ShardPath, open_bytes, open_ranges
from headrace.feed.sources.open_source import Folder, ShardFiles
from headrace.feed.sources.shard_objects import ObjectRanges
from headrace.feed.sources.source import Source


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `Format`. Column `at`: where each row lies."""
    with open_bytes(path) as file:
        return file.size, {"at": np.arange(file.size)}


class ToyFormat(Format):
    kind = "toy"

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> ToyReader:
        return ToyReader(open_ranges(path, counted), columns)


class ToyReader:
    def __init__(self, file: ByteRanges | ObjectRanges, columns: Columns) -> None:
        self._file, self._at = file, columns["at"]

    def row(self, number: int) -> int:
        at = int(self._at[number])
        return self._file.read(at, at + 1, follows=True)[0]

    def close(self) -> None:
        self._file.close()


def toy(folder: Folder, pattern: str = "*.toy") -> Source:
    """Opens files of bytes."""
    return ShardFiles(folder, pattern, ToyFormat())
