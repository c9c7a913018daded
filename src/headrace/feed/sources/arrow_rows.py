"""Rows of Arrow record batches as Python values; what Parquet and Arrow shards share.

Numbers, strings and bytes become Python's, a list of numbers becomes a NumPy array, so that token lists and embeddings
need no loop in Python; everything else becomes what pyarrow's `as_py` makes of it.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import PipelineError


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
