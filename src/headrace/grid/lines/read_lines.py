"""Reads the lines of a grid from wherever its file says."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.errors import JobInvalid, StorageError, UsageError
from headrace.grid.grid_file import LineSource
from headrace.grid.lines.line import Line, keyed
from headrace.grid.lines.line_file import MAX_BYTES, read_lines_of_file
from headrace.grid.lines.line_matrix import Matrix, check_matrix, multiplied
from headrace.grid.lines.line_query import read_rows
from headrace.grid.lines.line_table import LineTable, first_of

_JSON = (".jsonl", ".ndjson")


def read_lines(
    source: LineSource,
    *,
    grid_file: str,
    base: Path,
    known: Collection[str],
    channels: Collection[str],
    variables: Mapping[str, str] = os.environ,
) -> tuple[Line, ...]:
    """Returns the lines, in their order.

    Args:
        source: of the grid.
        grid_file: its name, for messages.
        base: what paths are relative to.
        known: keys of a job file.
        channels: of the grid's job; a file without header and columns needs that there is one.
        variables: of the environment.

    Raises:
        JobInvalid: with all lines that are wrong, and where each was written.
        UsageError: a file or database that is not there, a query that is refused.
        StorageError: a database that does not answer or went away; a file that cannot be read.
    """
    table = LineTable(_shown(source, grid_file), frozenset(known))
    if source.file:
        path = base / source.file
        read_lines_of_file(_bytes(path, grid_file), table, source.columns, tuple(channels), path.suffix in _JSON)
    elif source.query:
        named = source.columns if isinstance(source.columns, Mapping) else {}
        read_rows(
            source.database or "", source.query, source.parameters, table,
            columns=named, base=base, variables=variables, timeout=source.timeout,
        )  # fmt: skip
    draw = source.random
    matrix = Matrix(source.product, source.zip, draw.count if draw else 0, draw.seed if draw else 0)
    if matrix:
        whole = LineTable(grid_file, table.known)
        check_matrix(matrix, whole)
        if not (whole.problems or table.problems):
            multiplied(table.lines, matrix, whole)
        table = LineTable(grid_file, table.known, whole.lines, [*table.problems, *whole.problems])
    if table.problems:
        raise JobInvalid(first_of(table.problems))
    return keyed(table.lines)


def _shown(source: LineSource, grid_file: str) -> str:
    return os.fspath(Path(grid_file).parent / source.file) if source.file else grid_file


def _bytes(path: Path, grid_file: str) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        hint = f"{grid_file} names it: lines: {{file: ...}}, from its own folder"
        raise UsageError(f"lines: {path} is no file", hint) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"lines: {path} must have at most {MAX_BYTES >> 20} MiB")
    return raw
