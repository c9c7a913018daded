"""Arrow files, of the file or the stream form, as `datasets` writes them too.

They are mapped into memory: a row is read where it lies, and nothing is decoded ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from headrace.errors import ShardError
from headrace.feed.sources.arrow_rows import RowsOfBatch, require_pyarrow
from headrace.feed.sources.parquet_shards import require_same
from headrace.feed.sources.s3_objects import ObjectPath
from headrace.feed.sources.shard_format import Columns, ShardPath, Stamp

_FILE = b"ARROW1"


def _batches(path: ShardPath) -> list[Any]:
    pyarrow = require_pyarrow()
    if isinstance(path, ObjectPath):
        raise ShardError(
            f"{path} is an object, and Arrow files are mapped into memory",
            hint="use feed.parquet, or make them a channel (input_mode File) and pass feed.channel(name)",
        )
    try:
        with path.open("rb") as file:
            whole = file.read(len(_FILE)) == _FILE
        source = pyarrow.memory_map(str(path))
        if not whole:
            return list(pyarrow.ipc.open_stream(source))
        reader = pyarrow.ipc.open_file(source)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pyarrow.ArrowException, OSError) as error:
        raise ShardError(f"{path} is no Arrow file, or is broken: {error}") from error


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `shard_format`. Column `begin`: first row of every record batch, and the number of rows."""
    counts = [batch.num_rows for batch in _batches(path)]
    begin = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.uint64)
    return int(begin[-1]), {"begin": begin}


class ArrowFormat:
    """Rows of Arrow files: dicts of column to value."""

    def open(self, path: ShardPath, stamp: Stamp, columns: Columns) -> _ArrowReader:
        """See `shard_format.Format`."""
        require_same(path, stamp)
        return _ArrowReader(_batches(path), columns["begin"].tolist())


class _ArrowReader:
    def __init__(self, batches: list[Any], begin: list[int]) -> None:
        self._batches = [RowsOfBatch(batch.schema.names, batch.columns) for batch in batches]
        self._begin = begin

    def row(self, number: int) -> dict[str, Any]:
        batch = bisect_right(self._begin, number) - 1
        return self._batches[batch].row(number - self._begin[batch])

    def close(self) -> None:
        self._batches.clear()
