"""Reads the lines of a grid from wherever its file says.

A matrix makes lines of every combination of values, of values side by side, or of some combinations drawn at random.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import JobInvalid, StorageError, UsageError
from headrace.grid.grid_file import LineSource
from headrace.grid.line import MAX_LINES, Line, LineTable, first_of, keyed
from headrace.grid.line_file import MAX_BYTES, read_lines_of_file
from headrace.grid.line_query import read_rows

MAX_DRAWN = 10**18
"""Combinations of which some may be drawn."""


def size_of(matrix: LineSource) -> int:
    """Returns the number of combinations of a matrix."""
    rows = min((len(values) for values in matrix.zip.values()), default=1)
    return rows * math.prod(len(values) for values in matrix.product.values())


def combinations(matrix: LineSource) -> Iterator[dict[str, object]]:
    """Returns the fields of every combination that was asked for, in the matrix's order: its last field is fastest.

    What is drawn is a pure function of matrix, count and seed; no combination comes twice.
    """
    size, draw = size_of(matrix), matrix.random
    numbers: Sequence[int] = range(size)
    if draw is not None and draw.count < size:
        numbers = sorted(random.Random(draw.seed).sample(numbers, draw.count))
    return (_combination(matrix, number) for number in numbers)


def _combination(matrix: LineSource, number: int) -> dict[str, object]:
    chosen: list[tuple[str, object]] = []
    for name, values in reversed(list(matrix.product.items())):
        number, position = divmod(number, len(values))
        chosen.append((name, values[position]))
    side_by_side = {name: values[number] for name, values in matrix.zip.items()}
    return {**side_by_side, **dict(reversed(chosen))}


def check_matrix(matrix: LineSource, table: LineTable) -> None:
    """Refuses unknown fields, a field that comes twice, and lengths that differ."""
    table.columns((*matrix.product, *matrix.zip))
    lengths = {name: len(values) for name, values in matrix.zip.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        table.refuse("zip", "all fields must have as many values", seen=shown)
    size = size_of(matrix)
    if size > MAX_DRAWN:
        table.refuse("product", f"must have at most {MAX_DRAWN} combinations to draw from", seen=f"{size:.2g}")
    elif size > MAX_LINES and not (matrix.random and matrix.random.count <= MAX_LINES):
        table.refuse("product", f"must have at most {MAX_LINES} combinations", seen=str(size))


def multiplied(lines: Sequence[Line], matrix: LineSource, table: LineTable) -> None:
    """Puts every line with every combination into the table; without lines the combinations alone.

    A field of a line that the matrix has too is refused.
    """
    drawn = list(combinations(matrix))
    if len(drawn) * max(1, len(lines)) > MAX_LINES:
        seen = f"{len(lines)} lines x {len(drawn)} combinations"
        table.refuse("lines", f"must be at most {MAX_LINES}", seen=seen)
        return
    twice = sorted({*matrix.product, *matrix.zip} & {name for line in lines for name in line.fields})
    for name in twice:
        table.refuse(name, "comes from the lines and from the matrix", hint="keep one of the two")
    if twice:
        return
    for line, (number, combination) in itertools.product(lines or (None,), enumerate(drawn, start=1)):
        place = f"{line.place} with combination {number}" if line else f"combination {number} of the matrix"
        table.add({**(line.fields if line else {}), **combination}, place)


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
    if source.product or source.zip:
        whole = LineTable(grid_file, table.known)
        check_matrix(source, whole)
        if not (whole.problems or table.problems):
            multiplied(table.lines, source, whole)
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
