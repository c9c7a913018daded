"""What values of Parquet and Arrow files become, for every type of Arrow: the same with workers and without."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace import feed
from headrace.errors import ShardError

ZONE = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2020, 1, 2, 12, 0, 0, 250_000)
ID = uuid.UUID(int=7)

LEAVES: dict[str, tuple[pa.Array, Any]] = {
    "null": (pa.nulls(1), None),
    "bool": (pa.array([True]), True),
    **{name: (pa.array([7], pa.type_for_alias(name)), 7) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4")},
    "uint64": (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    "half": (pa.array([0.5], pa.float16()), 0.5),
    "float": (pa.array([0.5], pa.float32()), 0.5),
    "double": (pa.array([float("inf")]), float("inf")),
    "string": (pa.array(["ä"]), "ä"),
    "large_string": (pa.array(["ä"], pa.large_string()), "ä"),
    "string_view": (pa.array(["ä"], pa.string_view()), "ä"),
    "binary": (pa.array([b"\xff"]), b"\xff"),
    "large_binary": (pa.array([b"\xff"], pa.large_binary()), b"\xff"),
    "binary_view": (pa.array([b"\xff"], pa.binary_view()), b"\xff"),
    "fixed_binary": (pa.array([b"ab"], pa.binary(2)), b"ab"),
    "date32": (pa.array([NOON.date()], pa.date32()), np.datetime64("2020-01-02", "D")),
    "date64": (pa.array([NOON.date()], pa.date64()), np.datetime64("2020-01-02", "D")),
    "far date": (pa.array([10**7], pa.int32()).view(pa.date32()), np.datetime64(10**7, "D")),
    "time32": (pa.array([NOON.time()], pa.time32("ms")), np.timedelta64(43_200_250, "ms")),
    "time64": (pa.array([43_200 * 10**9 + 1], pa.time64("ns")), np.timedelta64(43_200 * 10**9 + 1, "ns")),
    **{
        f"timestamp {unit}": (
            pa.array([int(NOON.timestamp()) * scale + (scale > 1)], pa.timestamp(unit)),
            np.datetime64(int(NOON.timestamp()) * scale + (scale > 1), unit),
        )
        for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
    },
    "zoned": (
        pa.array([NOON.replace(tzinfo=ZONE)], pa.timestamp("us", "+02:00")),
        np.datetime64("2020-01-02T10:00:00.250000", "us"),
    ),
    "duration": (pa.array([5], pa.duration("ns")), np.timedelta64(5, "ns")),
    "interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), (1, 2, 3)),
    "decimal128": (pa.array([decimal.Decimal("-1.20")]), "-1.20"),
    "decimal256": (pa.array([decimal.Decimal("1.20")], pa.decimal256(50, 2)), "1.20"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([ID.bytes], pa.binary(16))), str(ID)),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())), True),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])), '{"a": 1}'),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int32).reshape(1, 2, 3)),
        np.arange(6, dtype=np.int32).reshape(2, 3),
    ),
    "permuted tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]),
            pa.array([range(6)], pa.list_(pa.float32(), 6)),
        ),
        np.arange(6, dtype=np.float32).reshape(2, 3).transpose(),
    ),
    "union": (
        pa.UnionArray.from_sparse(pa.array([1], pa.int8()), [pa.array([1]), pa.array([NOON])]),
        np.datetime64(NOON),
    ),
    "dense union": (
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1]), pa.array(["x"])]),
        1,
    ),
    "run ends": (pa.RunEndEncodedArray.from_arrays([1], pa.array([NOON.date()])), np.datetime64("2020-01-02", "D")),
}  # fmt: skip


def _arrays(kind: pa.DataType, value: Any) -> Any:
    """What a list of one value is at the top of a column: an array of numbers or times, else a list."""
    if isinstance(value, (np.datetime64, np.timedelta64)) and not (pa.types.is_union(kind) or kind.num_buffers == 0):
        return np.array([value]) if not pa.types.is_run_end_encoded(kind) else [value]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array([value], kind.to_pandas_dtype())
    return [value]


def _list(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)


WRAPS: dict[str, tuple[Callable[[pa.Array], pa.Array], Callable[[pa.DataType, Any], Any]]] = {
    "plain": (lambda array: array, lambda kind, value: value),
    "list": (_list, _arrays),
    "large_list": (lambda array: pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), array), _arrays),
    "fixed_list": (lambda array: pa.FixedSizeListArray.from_arrays(array, 1), _arrays),
    "list_view": (
        lambda array: pa.ListViewArray.from_arrays(pa.array([0], pa.int32()), pa.array([1], pa.int32()), array),
        _arrays,
    ),
    "list of lists": (lambda array: _list(_list(array)), lambda kind, value: [[value]]),
    "struct": (lambda array: pa.StructArray.from_arrays([array], ["x"]), lambda kind, value: {"x": value}),
    "map": (
        lambda array: pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), array),
        lambda kind, value: [("k", value)],
    ),
    "dictionary": (
        lambda array: pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), array),
        lambda kind, value: value,
    ),
}


def _canonical(value: Any) -> Any:
    """A value as something that is equal only to what has the same types, shapes and bytes."""
    if isinstance(value, dict):
        return [(name, _canonical(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_canonical(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist()
    return type(value), repr(value)


def _with_null(array: pa.Array) -> pa.Array | None:
    """The array with a null behind; None if its type has none."""
    if len(array) == 2:  # a dictionary: pyarrow 26 makes 14336 of a half float of 0.5 when it joins two of them
        return array
    try:
        return pa.concat_arrays([array, pa.nulls(1, array.type)])
    except pa.ArrowException:
        return None


def _columns(write: Callable[[pa.Table, Path], None], folder: Path) -> tuple[dict[str, pa.Array], dict[str, Any]]:
    """All types that can be written and read. Returns columns of a value and a null, and what the values become."""
    columns, expected = {}, {}
    for leaf, (array, value) in LEAVES.items():
        for wrap, (wrapped, rewrapped) in WRAPS.items():
            try:
                column = _with_null(wrapped(array))
                if column is None:
                    continue
                write(pa.table({"x": column}), folder / "try")
                if _read(folder / "try").column(0).type != column.type:
                    continue  # Parquet has no seconds, for one
            except (pa.ArrowException, NotImplementedError, TypeError, OSError):
                continue
            columns[f"{wrap} of {leaf}"] = column
            expected[f"{wrap} of {leaf}"] = rewrapped(array.type, value)
    return columns, expected


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(path).read_all() if path.read_bytes()[:4] == b"ARRO" else parquet.read_table(path)


def _write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path)


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


FORMS: dict[str, tuple[Callable[[pa.Table, Path], None], Callable[..., feed.Source], int]] = {
    "parquet": (_write_parquet, feed.parquet, 200),
    "arrow": (_write_arrow, feed.arrow, 230),
}


@pytest.mark.promise("feed-formats", "each type of Arrow becomes one value, with workers and without")
@pytest.mark.parametrize("form", FORMS)
def test_every_type_becomes_one_value_with_workers_and_without(form: str, tmp_path: Path) -> None:
    write, opened, least = FORMS[form]
    columns, expected = _columns(write, tmp_path)
    assert len(columns) > least, "types that pyarrow writes"
    (tmp_path / "data").mkdir()
    write(pa.table(columns), tmp_path / "data" / f"a.{form}")
    source = opened(tmp_path / "data")
    batches = []
    for workers in (0, 1):
        with feed.DataLoader(source, 2, num_workers=workers, collate_fn=list) as loader:
            [batch] = loader
            batches.append(batch)
    for name in columns:
        local, remote = ([row[name] for row in batch] for batch in batches)
        assert _canonical(local) == _canonical(remote), name
        assert _canonical(local[0]) == _canonical(expected[name]), name
        assert local[1] is None, name


@pytest.mark.parametrize("form", FORMS)
def test_extension_types_are_what_they_are_stored_as_also_where_a_library_has_registered_them(
    form: str, tmp_path: Path
) -> None:
    class Point(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.list_(pa.float64(), 2), "headrace.tests.point")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Any:
            return cls()

    write, opened, _ = FORMS[form]
    points = pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))
    pa.register_extension_type(Point())
    try:
        write(pa.table({"p": pa.ExtensionArray.from_storage(Point(), points)}), tmp_path / f"a.{form}")
        registered = list(opened(tmp_path))
    finally:
        pa.unregister_extension_type("headrace.tests.point")
    plain = list(opened(tmp_path))
    assert _canonical(registered) == _canonical(plain)
    assert _canonical(plain) == _canonical([{"p": np.array([1.0, 2.0])}, {"p": None}])


@pytest.mark.parametrize("form", FORMS)
def test_two_columns_or_fields_of_one_name_are_refused_with_the_file(form: str, tmp_path: Path) -> None:
    write, opened, _ = FORMS[form]
    one = pa.array([1])
    write(pa.Table.from_arrays([one, one, one], names=["a", "b", "a"]), tmp_path / f"a.{form}")
    with pytest.raises(ShardError, match=rf"a\.{form}, .* has 2 columns of the name 'a': a row can hold one"):
        opened(tmp_path)[0]
    with pytest.raises(ShardError, match=rf"a\.{form}, .* has 2 columns of the name 'a'"):
        list(feed.DataLoader(opened(tmp_path), num_workers=1))
    if form == "parquet":
        assert feed.parquet(tmp_path, columns=["b"])[0] == {"b": 1}
        with pytest.raises(ValueError, match=r"columns names a column twice: \['b', 'b'\]"):
            feed.parquet(tmp_path, columns=["b", "b"])
    else:
        write(pa.table({"s": pa.StructArray.from_arrays([one, one], names=["a", "a"])}), tmp_path / f"a.{form}")
        with pytest.raises(ShardError, match=rf"a\.{form}, .*, column 's' has 2 fields of the name 'a'"):
            opened(tmp_path)[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_cannot_be_read_is_named_with_file_row_and_column(form: str, tmp_path: Path) -> None:
    write, opened, _ = FORMS[form]
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    holes = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [1, None]], pa.list_(pa.int32(), 2))
    )
    for column, why in ((broken, "'utf-8' codec can't decode byte 0xff"), (holes, "a tensor has 1 nulls in it")):
        write(pa.table({"id": [1, 2], "text": column}), tmp_path / f"a.{form}")
        source = opened(tmp_path)
        assert source[0]["id"] == 1
        with pytest.raises(ShardError, match=rf"a\.{form}, .* 0, row 1 of it: column 'text', of the type .*{why}"):
            source[1]


def test_a_column_in_several_chunks_of_a_row_group_is_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"text": [f"{row}" for row in range(10)], "n": range(10)})
    parquet.write_table(rows, tmp_path / "a.parquet")
    read = parquet.ParquetFile.read_row_group

    def in_chunks(*given: Any, **options: Any) -> pa.Table:
        """As pyarrow does it where strings are more than 2 GB."""
        table = read(*given, **options)
        return pa.concat_tables([table[:3], table[3:]])

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", in_chunks)
    assert list(feed.parquet(tmp_path)) == rows.to_pylist()
