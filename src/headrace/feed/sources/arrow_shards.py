"""Arrow files, of the file or the stream form, as `datasets` writes them too; and rows of record batches in Python.

The files are mapped into memory: a row is read where it lies, and nothing is decoded ahead.

Parquet and Arrow shards share what their rows are. Every value can travel from a worker, so that rows are the same
wherever they are read. Numbers, strings, bytes, lists, structs (dicts) and maps (lists of pairs) become Python's; what
Python's own types would cut short, or what cannot travel, becomes

    timestamp, date             numpy.datetime64, in its unit; with a time zone, in UTC
    duration, time of a day     numpy.timedelta64, the latter since midnight
    decimal, UUID               a string
    interval                    a tuple of months, days and nanoseconds
    list of numbers or times    a NumPy array, so that token lists and embeddings need no loop in Python
    fixed-shape tensor          a NumPy array of that shape
    other extension types       what they are stored as, whether a library has registered them or not
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import PipelineError, ShardError
from headrace.feed.sources.byte_ranges import Columns, Counted, CountedFile, Format, Reader, ShardPath
from headrace.feed.sources.open_source import Folder, ShardFiles, refuse_objects
from headrace.feed.sources.source import Source
from headrace.install_hint import install_hint

_MS_OF_A_DAY = 86_400_000


def require_pyarrow() -> Any:
    """Returns the module pyarrow. Raises PipelineError if it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise PipelineError("Parquet and Arrow shards need the library pyarrow", hint=install_hint("arrow")) from error
    return pyarrow


class RowsOfBatch:
    """The rows of a record batch, or of a table.

    Args:
        where: file, and part of it, for errors.
        names: of the columns.
        columns: an array, or an array in chunks, each.

    Raises:
        ShardError: two columns have one name.
    """

    def __init__(self, where: str, names: list[str], columns: list[Any]) -> None:
        _refuse_twice(where, "", names)
        self._where = where
        self._columns = [
            (name, column, _reader(f"{where}, column {name!r}", column.type, whole=True))
            for name, column in zip(names, columns, strict=True)
        ]

    def row(self, number: int) -> dict[str, Any]:
        """Returns a row: name of the column to value. Raises ShardError if one cannot be read."""
        row: dict[str, Any] = {}
        try:
            for name, column, read in self._columns:
                row[name] = read(column[number])
        except (ValueError, ArithmeticError, require_pyarrow().ArrowException) as error:
            why = f"column {name!r}, of the type {column.type}, cannot be read: {error}"
            raise ShardError(f"{self._where}, row {number} of it: {why}") from error
        return row


def begins_of(counts: list[int]) -> tuple[int, Columns]:
    """Returns the rows of a shard, and a column `begin`: the first row of every part of it, and the number of rows."""
    begin = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.uint64)
    return int(begin[-1]), {"begin": begin}


Read = Callable[[Any], Any]


def _refuse_twice(where: str, what: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise ShardError(
            f"{where} has {names.count(name)} {what or 'columns'} of the name {name!r}: a row can hold one of them",
            hint="" if what else "give them names of their own, or take others: feed.parquet(folder, columns=[...])",
        )


def _as_python(scalar: Any) -> Any:
    return scalar.as_py()


def _reader(where: str, kind: Any, *, whole: bool = False) -> Read:
    """Returns what makes a value of a scalar of an Arrow type; see the module.

    Args:
        where: for errors.
        kind: the type.
        whole: whether it is a column's own type; inside of others, lists stay lists.

    Raises:
        ShardError: a struct has two fields of one name.
    """
    pyarrow = require_pyarrow()
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _of_extension(where, kind, whole=whole)
    if _time_unit(kind):
        return _of_time(kind)
    if types.is_decimal(kind):
        return lambda scalar: str(scalar.as_py()) if scalar.is_valid else None
    if types.is_interval(kind):
        return lambda scalar: tuple(scalar.as_py()) if scalar.is_valid else None
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        entry = _reader(where, kind.value_type, whole=whole)
        if entry is _as_python:
            return _as_python
        return lambda scalar: entry(scalar.value) if scalar.is_valid else None
    if types.is_union(kind):
        fields = [kind.field(number).type for number in range(kind.num_fields)]
        reads = {field: _reader(where, field, whole=whole) for field in fields}
        return lambda scalar: reads[scalar.value.type](scalar.value) if scalar.is_valid else None
    if types.is_struct(kind):
        return _of_struct(where, kind)
    if types.is_map(kind):
        key, item = _reader(where, kind.key_type), _reader(where, kind.item_type)
        if key is item is _as_python:
            return _as_python
        return lambda scalar: [(key(e[0]), item(e[1])) for e in scalar.values] if scalar.is_valid else None
    if hasattr(kind, "value_type"):
        return _of_list(where, kind, whole=whole)
    return _as_python


def _time_unit(kind: Any) -> str:
    """Returns the dtype in NumPy of a type of times, "" for other types."""
    types = require_pyarrow().types
    if types.is_date(kind):
        return "M8[D]"
    if types.is_timestamp(kind):
        return f"M8[{kind.unit}]"
    return f"m8[{kind.unit}]" if types.is_duration(kind) or types.is_time(kind) else ""


def _of_time(kind: Any) -> Read:
    number = np.dtype(_time_unit(kind)).type
    unit, divisor = _time_unit(kind)[3:-1], _MS_OF_A_DAY if require_pyarrow().types.is_date64(kind) else 1
    return lambda scalar: number(scalar.value // divisor, unit) if scalar.is_valid else None


def _of_extension(where: str, kind: Any, *, whole: bool) -> Read:
    if kind.extension_name == "arrow.uuid":
        return lambda scalar: str(scalar.as_py()) if scalar.is_valid else None
    if kind.extension_name == "arrow.bool8":
        return _as_python
    if kind.extension_name != "arrow.fixed_shape_tensor":
        read = _reader(where, kind.storage_type, whole=whole)
        return lambda scalar: read(scalar.value) if scalar.is_valid else None
    shape, permutation = kind.shape, kind.permutation

    def tensor(scalar: Any) -> Any:
        if not scalar.is_valid:
            return None
        values = scalar.value.values
        if values.null_count:
            raise ValueError(f"a tensor has {values.null_count} nulls in it")
        array = values.to_numpy(zero_copy_only=False).reshape(shape)
        return (array.transpose(permutation) if permutation is not None else array).copy()

    return tensor


def _of_struct(where: str, kind: Any) -> Read:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    _refuse_twice(where, "fields", [field.name for field in fields])
    reads = [(field.name, _reader(where, field.type)) for field in fields]
    if all(read is _as_python for _, read in reads):
        return _as_python
    return lambda scalar: {name: read(scalar[name]) for name, read in reads} if scalar.is_valid else None


def _of_list(where: str, kind: Any, *, whole: bool) -> Read:
    types = require_pyarrow().types
    item = _reader(where, kind.value_type)
    time = _time_unit(kind.value_type)
    if whole and (time or types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return lambda scalar: _array(scalar, item, time)
    if item is _as_python:
        return _as_python
    return lambda scalar: [item(value) for value in scalar.values] if scalar.is_valid else None


def _array(scalar: Any, item: Read, time: str) -> Any:
    if not scalar.is_valid:
        return None
    values = scalar.values
    if values.null_count:
        return [item(value) for value in values]
    if not time:
        return values.to_numpy(zero_copy_only=False).copy()  # the row's own: what it is a view of may be a file
    pyarrow = require_pyarrow()
    numbers = values.view(pyarrow.int32() if values.type.bit_width == 32 else pyarrow.int64()).to_numpy().astype("i8")
    return (numbers // (_MS_OF_A_DAY if pyarrow.types.is_date64(values.type) else 1)).view(time)


_FILE_MARK = b"ARROW1"


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `Format`. Columns: `begin`, first row of every record batch, and the number of rows."""
    return begins_of([batch.num_rows for batch in _mapped(path)])


class ArrowFormat(Format):
    """Rows of Arrow files: dicts of column to value."""

    kind = "arrow"

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> Reader:
        """See `Format`."""
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
        row = self._batches[batch].row(number - self._begin[batch])
        self._file.require_same()
        return row

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


def arrow(folder: Folder, pattern: str = "*.arrow") -> Source:
    """Opens Arrow files, of the file or the stream form. A row is a dict of column to value, as with `parquet`.

    Args:
        folder: of the shards, on a disk: they are mapped into memory.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is broken, or they are objects.
        PipelineError: pyarrow is not installed.
    """
    require_pyarrow()
    refuse_objects("feed.arrow", folder)
    return ShardFiles(folder, pattern, ArrowFormat())
