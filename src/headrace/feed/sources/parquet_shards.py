"""Parquet files. A row group is decoded as a whole and kept, within a limit of bytes for all shards of a source.

So rows should be asked for in an order that stays in a few row groups for a while: one after the other, or shuffled by
windows (`feed.Window`). A row group that is larger than the limit is kept until the next one is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.errors import ShardError
from headrace.feed.sources.arrow_shards import RowsOfBatch, begins_of, require_pyarrow
from headrace.feed.sources.byte_ranges import Columns, Counted, CountedFile, Format, ShardPath
from headrace.feed.sources.open_source import Folder, ShardFiles
from headrace.feed.sources.shard_objects import LastUsed, ObjectFile, ObjectPath
from headrace.feed.sources.source import Source


def _opened(path: ShardPath) -> Any:
    pyarrow = require_pyarrow()
    from pyarrow import parquet

    try:
        source = pyarrow.PythonFile(ObjectFile(path), mode="r") if isinstance(path, ObjectPath) else path
        return parquet.ParquetFile(source, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise ShardError(f"{path} is no Parquet file, or is broken: {error}") from error


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `Format`. Column `begin`: first row of every row group, and the number of rows."""
    with _opened(path) as file:
        groups = range(file.metadata.num_row_groups)
        return begins_of([file.metadata.row_group(number).num_rows for number in groups])


class ParquetFormat(Format):
    """Rows of Parquet files: dicts of column to value.

    Args:
        columns: those that are read; None for all.
        memory: limit of the decoded row groups of a process, bytes.
    """

    kind = "parquet"

    def __init__(self, columns: Sequence[str] | None, memory: int) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, got {columns!r}: write [{columns!r}]")
        if columns is not None and not (
            isinstance(columns, Iterable) and all(isinstance(name, str) for name in columns)
        ):
            raise TypeError(f"columns must be a list of names, got {columns!r}")
        if columns is not None and len(set(columns)) < len(columns):
            raise ValueError(f"columns names a column twice: {columns!r}")
        self._columns = None if columns is None else list(columns)
        self._memory = memory
        self._groups = LastUsed[tuple[ShardPath, int], RowsOfBatch](memory)

    def __getstate__(self) -> tuple[list[str] | None, int]:
        """What is decoded stays here."""
        return self._columns, self._memory

    def __setstate__(self, state: tuple[list[str] | None, int]) -> None:
        ParquetFormat.__init__(self, *state)

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> _ParquetReader:
        """See `Format`."""
        watched = None if isinstance(path, ObjectPath) else CountedFile(path, counted)
        file = _opened(path)
        if watched is not None:
            watched.require_at_path()
        columns_read = self._columns
        missing = [] if columns_read is None else [name for name in columns_read if name not in file.schema_arrow.names]
        if missing:
            raise ShardError(f"{path} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
        return _ParquetReader(path, file, watched, columns["begin"].tolist(), columns_read, self._groups)


class _ParquetReader:
    def __init__(
        self,
        path: ShardPath,
        file: Any,
        watched: CountedFile | None,
        begin: list[int],
        columns: list[str] | None,
        groups: LastUsed[tuple[ShardPath, int], RowsOfBatch],
    ) -> None:
        self._path, self._file, self._watched = path, file, watched
        self._begin, self._columns, self._groups = begin, columns, groups

    def row(self, number: int) -> dict[str, Any]:
        group = bisect_right(self._begin, number) - 1
        rows = self._groups.get((self._path, group))
        if rows is None:
            rows, size = self._decode(group)
            self._groups.keep((self._path, group), rows, size)
            self._groups.trim()
        return rows.row(number - self._begin[group])

    def _decode(self, group: int) -> tuple[RowsOfBatch, int]:
        pyarrow = require_pyarrow()
        try:
            table = self._file.read_row_group(group, columns=self._columns, use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            if self._watched is not None:
                self._watched.require_same()  # rather than what came of it
            raise ShardError(f"{self._path}, row group {group}, cannot be read: {error}") from error
        if self._watched is not None:
            self._watched.require_same()
        columns = [column.chunk(0) if column.num_chunks == 1 else column for column in table.columns]
        return RowsOfBatch(f"{self._path}, row group {group}", table.column_names, columns), table.nbytes

    def close(self) -> None:
        self._file.close()
        if self._watched is not None:
            self._watched.close()


_MEMORY = 256 << 20


def parquet(
    folder: Folder, pattern: str = "*.parquet", *, columns: Sequence[str] | None = None, memory: int = _MEMORY
) -> Source:
    """Opens Parquet files. A row is a dict of column to value; lists of numbers are NumPy arrays, times NumPy's too.

    The columns are those in the files: folders `year=2024/` of a partitioned dataset give none.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.
        columns: those that are read; None for all.
        memory: limit of the row groups that a process keeps decoded, bytes.

    Raises:
        ShardError: no shard matches, or one is broken.
        PipelineError: pyarrow is not installed.
    """
    require_pyarrow()
    return ShardFiles(folder, pattern, ParquetFormat(columns, memory))
