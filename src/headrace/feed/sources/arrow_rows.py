"""Rows of Arrow record batches as Python values, and batches that stay decoded: what Parquet and Arrow shards share.

Numbers, strings and bytes become Python's, a list of numbers becomes a NumPy array, so that token lists and embeddings
need no loop in Python; everything else becomes what pyarrow's `as_py` makes of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from headrace.errors import PipelineError
from headrace.feed.sources.shard_format import ShardPath


def require_pyarrow() -> Any:
    """Returns the module pyarrow. Raises PipelineError if it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise PipelineError(
            "Parquet and Arrow shards need the library pyarrow", hint="pip install 'headrace[arrow]'"
        ) from error
    return pyarrow


class RowsOfBatch:
    """The rows of a record batch, or of a table in one piece.

    Args:
        names: of the columns.
        columns: one array each.
    """

    def __init__(self, names: list[str], columns: list[Any]) -> None:
        self._columns = [(name, column, _holds_numbers(column)) for name, column in zip(names, columns, strict=True)]

    def row(self, number: int) -> dict[str, Any]:
        """Returns a row: name of the column to value."""
        return {
            name: _numbers(column[number]) if numbers else column[number].as_py()
            for name, column, numbers in self._columns
        }


class Rows(Protocol):
    """Rows of a decoded batch."""

    def row(self, number: int) -> Any:
        """Returns a row."""


class DecodedBatches:
    """Decoded record batches, or row groups, of all shards of a source: the last used ones, within a limit of bytes.

    One that is larger than the limit is kept until the next one is needed.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"memory must be a number of bytes, an integer of at least 1, got {limit!r}")
        self._limit = limit
        self._held: OrderedDict[tuple[ShardPath, int], tuple[Rows, int]] = OrderedDict()
        self._bytes = 0

    def rows(self, path: ShardPath, number: int, decode: Callable[[], tuple[Rows, int]]) -> Rows:
        """Returns the rows of a batch, decoded if they are not there."""
        found = self._held.get((path, number))
        if found is None:
            found = self._held[path, number] = decode()
            self._bytes += found[1]
            while self._bytes > self._limit and len(self._held) > 1:
                _, (_, size) = self._held.popitem(last=False)
                self._bytes -= size
        else:
            self._held.move_to_end((path, number))
        return found[0]


def _holds_numbers(column: Any) -> bool:
    types = require_pyarrow().types
    kind = column.type
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(listed and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def _numbers(value: Any) -> Any:
    values = value.values
    if values is None or values.null_count:
        return value.as_py()
    return values.to_numpy(zero_copy_only=False).copy()  # the row's own: what it is a view of may be a file
