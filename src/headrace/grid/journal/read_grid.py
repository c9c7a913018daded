"""Reads a grid's journal: while its controller writes it, and later; how a line is stored, and what people call it."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import StorageError, UsageError
from headrace.grid.journal.grid_record import (
    AttemptRecord,
    ControllerProcess,
    CopyRecord,
    GridRecord,
    LineRecord,
    Note,
    Rung,
)
from headrace.grid.journal.journal_file import FILE, grids_dir, journal_path, read_journal
from headrace.record_files import decode_record
from headrace.runs import Cause

_SHOWN = 5
_cause = msgspec.json.Decoder(Cause)
_fields = msgspec.json.Decoder(dict[str, Any])
_columns = [name for name in LineRecord.__struct_fields__ if name not in ("index", "attempts", "rungs")]
_PUT_LINE = (
    f"INSERT INTO lines (position, {', '.join(_columns)}) VALUES (:index, :{', :'.join(_columns)}) "
    f"ON CONFLICT (key) DO UPDATE SET position = :index, {', '.join(f'{name} = :{name}' for name in _columns)}"
)
_places = msgspec.json.Decoder(tuple[tuple[str, str], ...])


def read_grid(name: str) -> GridRecord:
    """Returns a grid as its journal has it now: one state, also while it is written.

    Args:
        name: of the grid.

    Raises:
        UsageError: there is no such grid.
        StorageError: its journal cannot be read.
    """
    known = grid_names()
    if name not in known:
        raise UsageError(f"there is no grid {name!r} in {grids_dir()}", _hint(name, known))
    path = journal_path(name)
    database = read_journal(path)
    try:
        return record_of(database, path)
    finally:
        database.close()


def _hint(name: str, known: Sequence[str]) -> str:
    if name.endswith((".yaml", ".yml")):
        return "give the name of the grid, as its file says it, and not the file"
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"there are {', '.join(known[:_SHOWN])}{more}" if known else "`headrace grid run` starts one"


def read_notes(name: str) -> tuple[Note, ...]:
    """Returns what happened to a grid, in its order. Raises as `read_grid`."""
    path = journal_path(name)
    database = read_journal(path)
    try:
        rows = database.execute("SELECT t, key, text FROM notes ORDER BY rowid").fetchall()
        return tuple(msgspec.convert({**row}, Note) for row in rows)
    except (sqlite3.Error, msgspec.DecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    finally:
        database.close()


def grid_names() -> tuple[str, ...]:
    """Returns the names of all grids that were started on this machine."""
    return tuple(sorted(path.parent.name for path in grids_dir().glob(f"*/{FILE}")))


def record_of(database: sqlite3.Connection, path: Path) -> GridRecord:
    """Returns what a journal has.

    Args:
        database: the journal.
        path: its file, for messages.

    Raises:
        StorageError: it cannot be read, or has no grid yet.
    """
    try:
        database.execute("BEGIN")  # one state of all tables
        try:
            grid = database.execute("SELECT * FROM grid").fetchone()
            lines = database.execute("SELECT * FROM lines ORDER BY in_file DESC, position, key").fetchall()
            attempts = database.execute("SELECT * FROM attempts ORDER BY key, number").fetchall()
            rungs = database.execute("SELECT * FROM rungs ORDER BY key, step").fetchall()
            copies = database.execute("SELECT * FROM copies ORDER BY region, place").fetchall()
        finally:
            database.execute("COMMIT")
        if grid is None:
            raise StorageError(f"{path} has no grid yet", "the process that made it was killed: start it again")
        by_key: dict[str, list[AttemptRecord]] = {}
        for row in attempts:
            by_key.setdefault(row["key"], []).append(_attempt(row))
        judged: dict[str, list[Rung]] = {}
        for row in rungs:
            judged.setdefault(row["key"], []).append(_rung(row))
        controller = None if grid["pid"] is None else msgspec.convert({**grid}, ControllerProcess)
        return msgspec.structs.replace(
            msgspec.convert({**grid}, GridRecord),
            lines=tuple(
                _line(index, row, by_key.get(row["key"], ()), judged.get(row["key"], ()))
                for index, row in enumerate(lines)
            ),
            copies=tuple(_copy(row) for row in copies),
            controller=controller,
        )
    except (sqlite3.Error, msgspec.DecodeError, ValueError, TypeError, IndexError) as error:  # of somebody else: any
        raise StorageError(f"{path} cannot be read: {error}") from error


def line_of(database: sqlite3.Connection, key: str, index: int) -> LineRecord:
    """Returns one line.

    Args:
        database: the journal.
        key: of the line.
        index: its position.

    Raises:
        sqlite3.Error: it cannot be read.
        KeyError: there is none.
    """
    row = database.execute("SELECT * FROM lines WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise KeyError(key)
    attempts = database.execute("SELECT * FROM attempts WHERE key = ? ORDER BY number", (key,)).fetchall()
    rungs = database.execute("SELECT * FROM rungs WHERE key = ? ORDER BY step", (key,)).fetchall()
    return _line(index, row, [*map(_attempt, attempts)], [*map(_rung, rungs)])


def stored_lines(database: sqlite3.Connection, key: str | None = None) -> dict[str, LineRecord]:
    """Returns the lines as they are stored, by key, or the one of a key: without attempts and rungs, and with their
    positions as indices. Raises sqlite3.Error."""
    one = "" if key is None else " WHERE key = :key"
    rows = database.execute(f"SELECT * FROM lines{one}", {"key": key})
    return {row["key"]: _line(row["position"], row, (), ()) for row in rows}


def put_line(database: sqlite3.Connection, line: LineRecord) -> None:
    """Stores a line, without attempts and rungs. Raises sqlite3.Error."""
    values = msgspec.to_builtins(msgspec.structs.replace(line, attempts=(), rungs=()))
    texts = {name: msgspec.json.encode(values[name]).decode() for name in ("fields", "waits_for")}
    database.execute(_PUT_LINE, {**values, **texts})


def copy_of(database: sqlite3.Connection, place: str, region: str) -> CopyRecord:
    """Returns one copy. Raises sqlite3.Error, and KeyError when there is none."""
    row = database.execute("SELECT * FROM copies WHERE place = ? AND region = ?", (place, region)).fetchone()
    if row is None:
        raise KeyError(place, region)
    return _copy(row)


def _attempt(row: sqlite3.Row) -> AttemptRecord:
    cause = None if row["cause"] is None else decode_record(_cause, row["cause"])
    return msgspec.structs.replace(msgspec.convert({**row, "cause": None}, AttemptRecord), cause=cause)


def _rung(row: sqlite3.Row) -> Rung:
    return msgspec.convert({**row, "stopped": bool(row["stopped"])}, Rung)


def _line(index: int, row: sqlite3.Row, attempts: Sequence[AttemptRecord], rungs: Sequence[Rung]) -> LineRecord:
    fields, waits_for = decode_record(_fields, row["fields"]), decode_record(_places, row["waits_for"])
    told = {"index": index, "fields": fields, "waits_for": waits_for, "in_file": bool(row["in_file"])}
    line = msgspec.convert({**row, **told}, LineRecord)
    return msgspec.structs.replace(line, attempts=tuple(attempts), rungs=tuple(rungs))


def _copy(row: sqlite3.Row) -> CopyRecord:
    return msgspec.convert({**row}, CopyRecord)


def lines_named(grid: GridRecord, names: Iterable[str]) -> tuple[LineRecord, ...]:
    """Returns the lines of these names, in the order of the names.

    Args:
        grid: the grid.
        names: each the key of a line, the name of one of its jobs, its place (``array.txt:3``), or that place's
            number; of a line that stands in no file its number among all, from 1. Of lines of one name that counts
            which the grid's file still has.

    Raises:
        UsageError: a name that no line has, or several have.
    """
    found = []
    for name in names:
        mine = [line for line in grid.lines if name in _names(line)]
        mine = mine or [line for line in grid.lines if _number(line) == name]
        mine = [line for line in mine if line.in_file] or mine
        if len(mine) > 1:
            raise UsageError(
                f"{grid.name}: {len(mine)} lines are called {name!r}",
                f"their keys: {', '.join(line.key for line in mine[:_SHOWN])}",
            )
        if not mine:
            known = [each for line in grid.lines for each in (line.place, line.key)]
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`headrace grid status {grid.name}` shows them"
            raise UsageError(f"{grid.name}: no line is called {name!r}", hint)
        found.append(mine[0])
    return tuple({line.key: line for line in found}.values())


def _names(line: LineRecord) -> tuple[str, ...]:
    return (line.key, line.job_name, line.place, *(attempt.job_name for attempt in line.attempts))


def _number(line: LineRecord) -> str:
    _, in_file, number = line.place.rpartition(":")
    return number if in_file else str(line.index + 1)
