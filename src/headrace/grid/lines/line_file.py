"""Lines from a file: CSV with a header, CSV without one (``region,s3``), or JSON lines. Pure.

A cell of CSV is read as a value of a job file is: ``3`` is a number, ``true`` is one of two, all else is text. An
empty cell says nothing about its field.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from headrace.grid.lines.line import REGION
from headrace.grid.lines.line_table import MAX_LINES, LineTable, is_region
from headrace.job.file.yaml_document import read_value

MAX_BYTES = 64 << 20
"""A larger file is not read."""

_COMMENT = re.compile(r"\s*#")
_PLACE = re.compile(r"\s*\"?\s*([a-z0-9]+:/)?/")
"""A cell that begins so is a place, and no name of a field."""


def read_lines_of_file(
    raw: bytes,
    table: LineTable,
    columns: Sequence[str] | Mapping[str, str] | None,
    channels: Sequence[str],
    is_json: bool,
) -> None:
    """Reads the lines into the table.

    Args:
        raw: the file.
        table: what takes lines and problems.
        columns: fields of a file without a header, or fields by the names in its header; None: the header names
            fields, and a file whose first line begins with a region, or has a place in it, such as ``s3://bucket``,
            has none.
        channels: of the job: a file that has neither header nor columns says the place of the only one.
        is_json: the file holds an object in every line.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        table.refuse("file", "must be UTF-8 text", line=line)
        return
    if is_json:
        _read_json(text, table, columns)
    else:
        _read_csv(text, table, columns, channels)
    if not table.lines and not table.problems:
        table.refuse("file", "has no lines")


def _read_json(text: str, table: LineTable, columns: Sequence[str] | Mapping[str, str] | None) -> None:
    names = columns if isinstance(columns, Mapping) else {}
    if columns is not None and not isinstance(columns, Mapping):
        table.refuse("columns", "must map names to fields: every object in the file names its own")
        return
    known: dict[tuple[str, ...], tuple[str, ...] | None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if _too_many(table, number):
            return
        try:
            found = json.loads(line, object_pairs_hook=_once)
        except ValueError as error:
            table.refuse("line", f"is no JSON: {error}", line=number)
            continue
        except RecursionError:
            table.refuse("line", "is nested too deeply", line=number)
            continue
        if not isinstance(found, dict):
            table.refuse("line", "must be an object of fields and values", line=number)
            continue
        given = tuple(names.get(name, name) for name in found)
        if given not in known:
            known[given] = table.columns(given, number)
        elif known[given] is None:
            table.columns(given, number)
        if known[given] is not None:
            table.add(dict(zip(given, found.values(), strict=True)), f"{table.source}:{number}", number)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name comes twice")
    return result


def _read_csv(
    written: str, table: LineTable, columns: Sequence[str] | Mapping[str, str] | None, channels: Sequence[str]
) -> None:
    source = _Uncommented(written)
    reader = csv.reader(source, strict=True, skipinitialspace=True)
    fields: tuple[str, ...] | None = None
    names = columns if isinstance(columns, Mapping) else {}
    assumed = ""
    if columns is not None and not isinstance(columns, Mapping):
        fields = table.columns(tuple(columns))
    elif columns is None and _has_no_header(written):
        if len(channels) != 1:
            _refuse_channels(table, channels)
            return
        fields = (REGION, f"inputs.{channels[0]}.path")
        assumed = "the file has no header: `columns: [...]` in the grid's file says what other cells are"
    if table.problems:
        return
    values: dict[str, object] = {}
    try:
        while True:
            source.comments = fields is None or fields[:1] == (REGION,)
            row = next(reader, None)
            if row is None:
                return
            number = reader.line_num
            cells = [cell.strip() for cell in row]
            if not any(cells):
                if row:
                    table.refuse("line", "has empty cells only", line=number)
                continue
            if fields is None:
                fields = table.columns([names.get(cell, cell) for cell in cells], number)
                if fields is None:
                    return
                continue
            if _too_many(table, number):
                return
            if len(cells) != len(fields):
                message = f"must have {len(fields)} cells: {', '.join(fields)}"
                table.refuse("line", message, line=number, seen=f"{len(cells)} cells", hint=assumed)
                continue
            found = {field: _value(cell, values) for field, cell in zip(fields, cells, strict=True)}
            table.add(found, f"{table.source}:{number}", number)
    except csv.Error as error:
        table.refuse("line", f"is no CSV: {error}", line=reader.line_num)


class _Uncommented:
    """The lines of a file, of which comments are empty: so their numbers stay.

    Attributes:
        comments: the next line may be one. A comment stands before the header, or where a region is expected.
    """

    def __init__(self, text: str) -> None:
        self.comments = False
        self._lines = io.StringIO(text, newline="")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        may_be, self.comments = self.comments, False
        return "\n" if may_be and _COMMENT.match(line) else line


def _has_no_header(text: str) -> bool:
    """Tells whether the first line that is no comment begins with a region, or has a place in it."""
    lines = (line for line in io.StringIO(text) if line.strip() and not _COMMENT.match(line))
    cells = next(lines, "").split(",")
    return is_region(cells[0].strip().strip('"')) or any(_PLACE.match(cell) for cell in cells)


def _refuse_channels(table: LineTable, channels: Sequence[str]) -> None:
    """Notes that nobody knows what the second cell of a file without a header is."""
    if channels:
        there = f"has {len(channels)}: {', '.join(channels)}"
        hint = f"say what the cells are: columns: [{REGION}, inputs.{channels[0]}.path]"
    else:
        there = "has none"
        hint = f"give the job a channel (inputs: {{train: ...}}), or say what the cells are: columns: [{REGION}, ...]"
    message = f"the file has no header; its second cell would be the path of the job's one channel, but the job {there}"
    table.refuse("columns", message, hint=hint)


def _value(cell: str, values: dict[str, object]) -> object:
    """Returns the value of a cell; the same text is read once."""
    if not cell or (cell[0] not in "[{" and any(each in cell for each in "/#\n")):  # never a number, nor a comment
        return cell or None
    if cell not in values:
        try:
            value = read_value(cell)
        except ValueError:
            value = cell
        values[cell] = cell if isinstance(value, (dict, list)) and cell[0] not in "[{" else value
    return values[cell]


def _too_many(table: LineTable, number: int) -> bool:
    if len(table.lines) < MAX_LINES:
        return False
    table.refuse("file", f"must have at most {MAX_LINES} lines", line=number)
    return True
