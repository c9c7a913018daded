"""Lines from a file: CSV with a header, CSV without one (``region,s3``), or JSON lines. Pure.

A cell of CSV is a number where it is a finite number of JSON's grammar, and ``true``, ``false``, an object or a list of
JSON where it is one of these; all else is text, as it stands. What a program is given is never written anew: a
hyperparameter such as ``1e-4`` or ``1.10``, which Python writes otherwise, stays text, and so does every variable of
the environment. An empty cell says nothing about its field. A quoted cell keeps its spaces. Cells are divided by
commas, or by semicolons, tabs or bars where the first line has these and no comma.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from headrace.catalog.prices import is_region
from headrace.grid.line import MAX_LINES, REGION, LineTable
from headrace.runs.event_text import counted

MAX_BYTES = 64 << 20
"""A larger file is not read."""

_COMMENT = re.compile(r"\s*#")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_OTHER_DELIMITERS = (";", "\t", "|")
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
    for number, line in enumerate(text.split("\n"), start=1):  # JSON's strings may hold what else ends a line
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
        if known.get(given) is None:
            known[given] = table.columns(given, number)
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
    delimiter = _delimiter(written)
    source = _Uncommented(written)
    reader = csv.reader(source, strict=True, skipinitialspace=delimiter != "\t", delimiter=delimiter)
    fields: tuple[str, ...] | None = None
    names = columns if isinstance(columns, Mapping) else {}
    assumed = ""
    if columns is not None and not isinstance(columns, Mapping):
        fields = table.columns(tuple(columns))
    elif columns is None and _has_no_header(written, delimiter):
        if len(channels) != 1:
            _refuse_channels(table, channels)
            return
        fields = (REGION, f"inputs.{channels[0]}.path")
        assumed = "the file has no header: `columns: [...]` in the grid's file says what other cells are"
    if table.problems:
        return
    try:
        while True:
            source.begin_record(fields is None or fields[:1] == (REGION,))
            row = next(reader, None)
            if row is None:
                return
            number = reader.line_num
            quoted = _quoted(source.record, delimiter) if '"' in source.record else ()
            cells = [cell if place < len(quoted) and quoted[place] else cell.strip() for place, cell in enumerate(row)]
            if not any(cells):
                if row:
                    table.refuse("line", "has empty cells only", line=number)
                continue
            if fields is None:
                fields = table.columns([names.get(cell.strip(), cell.strip()) for cell in cells], number)
                if fields is None:
                    return
                continue
            if _too_many(table, number):
                return
            if len(cells) != len(fields):
                message = f"must have {counted(len(fields), 'cell')}: {', '.join(fields)}"
                table.refuse("line", message, line=number, seen=counted(len(cells), "cell"), hint=assumed)
                continue
            values = {field: _value(cell, field) for field, cell in zip(fields, cells, strict=True)}
            table.add(values, f"{table.source}:{number}", number)
    except csv.Error as error:
        table.refuse("line", f"is no CSV: {error}", line=reader.line_num)


class _Uncommented:
    """The lines of a file, of which comments are empty: so their numbers stay.

    Attributes:
        record: what was read since the record began: a quoted cell may hold ends of lines.
    """

    def __init__(self, text: str) -> None:
        self.record = ""
        self._comments = False
        self._lines = io.StringIO(text, newline="")

    def begin_record(self, comments: bool) -> None:
        """A record begins, which may be a comment: before the header, or where a region is expected."""
        self.record, self._comments = "", comments

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        may_be, self._comments = self._comments, False
        if may_be and _COMMENT.match(line):
            return "\n"
        self.record += line
        return line


def _first_line(text: str) -> str:
    """Returns the first line that is no comment; empty when there is none."""
    return next((line for line in io.StringIO(text) if line.strip() and not _COMMENT.match(line)), "")


def _delimiter(text: str) -> str:
    """Returns what divides the cells: a comma, unless the first line has none and one of the others."""
    line = _QUOTED.sub("", _first_line(text))
    return "," if "," in line else next((mark for mark in _OTHER_DELIMITERS if mark in line.strip(" \r\n")), ",")


def _has_no_header(text: str, delimiter: str) -> bool:
    """Tells whether the first line that is no comment begins with a region, or has a place in it."""
    cells = _first_line(text).split(delimiter)
    return is_region(cells[0].strip().strip('"')) or any(_PLACE.match(cell) for cell in cells)


def _quoted(record: str, delimiter: str) -> list[bool]:
    """Tells of each cell of a record whether it is quoted, which Python's reader does not tell."""
    result: list[bool] = []
    position = 0
    while True:
        while record[position : position + 1] == " " != delimiter:
            position += 1
        match = _QUOTED.match(record, position)
        result.append(match is not None)
        end = record.find(delimiter, match.end() if match else position)
        if end < 0:
            return result
        position = end + 1


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


def _value(cell: str, field: str) -> object:
    """Returns the value of a cell, of the column that names this field."""
    if not cell or field.startswith("environment."):
        return cell or None
    if cell[0] not in "-0123456789tf[{":
        return cell
    try:
        value: object = json.loads(cell, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return cell
    if isinstance(value, float) and not math.isfinite(value):
        return cell
    for_program = "hyperparameters." in field
    return cell if for_program and isinstance(value, (int, float)) and json.dumps(value) != cell else value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _too_many(table: LineTable, number: int) -> bool:
    if len(table.lines) < MAX_LINES:
        return False
    table.refuse("file", f"must have at most {MAX_LINES} lines", line=number)
    return True
