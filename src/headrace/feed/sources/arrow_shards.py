"""Arrow files, of the file or the stream form, as `datasets` writes them too.

They are mapped into memory: a row is read where it lies, and nothing is decoded ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ShardError
from headrace.feed.sources.arrow_rows import RowsOfBatch, require_pyarrow
from headrace.feed.sources.byte_ranges import CountedFile
from headrace.feed.sources.shard_format import Columns, Counted, Reader, ShardPath

_FILE_MARK = b"ARROW1"


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `shard_format`. Columns: `begin`, first row of every record batch, and the number of rows."""
    counts = [batch.num_rows for batch in _mapped(path)]
    begin = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.uint64)
    return int(begin[-1]), {"begin": begin}


class ArrowFormat:
    """Rows of Arrow files: dicts of column to value."""

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> Reader:
        """See `shard_format.Format`."""
        return _MappedBatches(path, counted, columns["begin"].tolist())


class _MappedBatches:
    def __init__(self, path: ShardPath, counted: Counted, begin: list[int]) -> None:
        assert isinstance(path, Path), "`feed.arrow` takes no objects"
        self._file = CountedFile(path, counted)
        self._batches = [
            RowsOfBatch(f"{path}, record batch {number}", batch.schema.names, batch.columns)
            for number, batch in enumerate(_mapped(path))
        ]
        self._file.require_at_path()
        self._begin = begin

    def row(self, number: int) -> dict[str, Any]:
        batch = bisect_right(self._begin, number) - 1
        found = self._batches[batch].row(number - self._begin[batch])
        self._file.require_same()
        return found

    def close(self) -> None:
        self._batches.clear()
        self._file.close()


def _mapped(path: ShardPath) -> list[Any]:
    """Returns the record batches of a file. Raises ShardError."""
    assert isinstance(path, Path), "`feed.arrow` takes no objects"
    pyarrow = require_pyarrow()
    try:
        with path.open("rb") as file:
            whole = file.read(len(_FILE_MARK)) == _FILE_MARK
        source = pyarrow.memory_map(str(path))
        if not whole:
            return list(pyarrow.ipc.open_stream(source))
        reader = pyarrow.ipc.open_file(source)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pyarrow.ArrowException, OSError) as error:
        raise ShardError(f"{path} is no Arrow file, or is broken: {error}") from error
