"""The file of a grid's journal, read while its controller writes it, and later; how a line is stored, and what people
call it.

One process at a time controls a grid, the one that holds the lease beside the journal; the kernel takes the lease from
a process that ends, however it does. A commit is on disk when it returns.

A journal in a folder that this user has not entered (see `headrace.own_runs`) is somebody else's: it is opened for
reading only, it is a regular file with nothing but tables, and nobody acts by what it says.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import StorageError, UsageError
from headrace.grid.grid_record import (
    AttemptRecord,
    ControllerProcess,
    CopyRecord,
    GridRecord,
    LineRecord,
    Note,
    Rung,
)
from headrace.held_file import hold, is_held
from headrace.home import GRIDS, home_dir
from headrace.ledger import Ledger, check_version, connect, version_of
from headrace.own_runs import enter_run, require_started_here, started_here
from headrace.private_folders import make_folders
from headrace.record_files import check_kind, decode_record
from headrace.runs import Cause

FILE = "journal.sqlite"
_SCHEMA = """
CREATE TABLE grid (
    id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, file TEXT NOT NULL, digest TEXT NOT NULL,
    job_digest TEXT NOT NULL, created REAL NOT NULL, ended REAL, budget REAL, deadline REAL, stop_asked REAL,
    pid INTEGER, node TEXT NOT NULL DEFAULT '', since REAL);
CREATE TABLE lines (
    key TEXT PRIMARY KEY, position INTEGER NOT NULL, place TEXT NOT NULL, fields TEXT NOT NULL, job_name TEXT NOT NULL,
    engine TEXT NOT NULL, region TEXT NOT NULL, planned_cost REAL, planned_seconds REAL, state TEXT NOT NULL,
    in_file INTEGER NOT NULL DEFAULT 1, waits_for TEXT NOT NULL DEFAULT '[]', not_before REAL NOT NULL DEFAULT 0,
    extra_attempts INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', stop_asked REAL);
CREATE TABLE attempts (
    key TEXT NOT NULL REFERENCES lines (key), number INTEGER NOT NULL, job_name TEXT UNIQUE NOT NULL,
    engine TEXT NOT NULL, region TEXT NOT NULL, request TEXT NOT NULL, state TEXT NOT NULL, intended REAL NOT NULL,
    run_id TEXT NOT NULL DEFAULT '', started REAL, ended REAL, status TEXT, cause TEXT, cost REAL,
    billable_seconds REAL, PRIMARY KEY (key, number));
CREATE TABLE copies (
    place TEXT NOT NULL, region TEXT NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL, state TEXT NOT NULL,
    planned_cost REAL NOT NULL DEFAULT 0, bytes_done INTEGER NOT NULL DEFAULT 0, bytes_total INTEGER, started REAL,
    ended REAL, cost REAL, reason TEXT NOT NULL DEFAULT '', PRIMARY KEY (place, region));
CREATE TABLE notes (t REAL NOT NULL, key TEXT NOT NULL, text TEXT NOT NULL);
"""
_RUNGS = """
CREATE TABLE rungs (
    key TEXT NOT NULL REFERENCES lines (key), step INTEGER NOT NULL, value REAL NOT NULL, rank INTEGER NOT NULL,
    of INTEGER NOT NULL, stopped INTEGER NOT NULL, PRIMARY KEY (key, step));
"""
_MADE_BY = (_SCHEMA + _RUNGS, "ALTER TABLE lines ADD COLUMN stop_asked REAL;" + _RUNGS, _RUNGS)
"""What brings a journal up to date, by the version that it has; 0 is a new one."""


def grids_dir() -> Path:
    """Returns the directory of all grids: $HEADRACE_HOME/grids, by default ~/.headrace/grids."""
    return home_dir() / GRIDS


def journal_path(name: str) -> Path:
    """Returns the journal of a grid."""
    return grids_dir() / name / FILE


def read_journal(path: Path) -> sqlite3.Connection:
    """Opens a journal to read it, whoever has written it. Raises UsageError and StorageError, as `open_journal`."""
    _check_there(path)
    if started_here(path.parent):
        return open_journal(path).database
    try:
        for file in path.parent.glob(f"{glob.escape(path.name)}*"):  # its log and index, too, which SQLite opens
            check_kind(file, file.lstat())
        database = connect(f"{path.absolute().as_uri()}?mode=ro")
        try:
            database.execute("PRAGMA trusted_schema=OFF")
            kinds = "SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR rootpage = 0"
            if (row := database.execute(kinds).fetchone()) is not None:
                raise sqlite3.DatabaseError(f"{row['name']!r} is no table of a journal")
            if (version := version_of(database)) < len(_MADE_BY):
                raise sqlite3.DatabaseError(f"an older headrace has written it (version {version})")
        except sqlite3.Error:
            database.close()
            raise
        check_version(database, path, len(_MADE_BY))
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"{path} cannot be read: {error}", "it was not started here, so it is only read") from error
    return database


def require_own(path: Path) -> None:
    """Raises EngineRefused for a journal that this user has not begun here: nobody acts by what it says."""
    require_started_here(
        path.parent,
        "a grid of somebody else is neither run nor stopped",
        f"move {path.parent} away if the grid is yours, begun by an older headrace or elsewhere: `headrace grid run` "
        "makes a new journal and finds the runs that you started here by their names",
    )


def open_journal(path: Path, *, create: bool = False) -> Ledger:
    """Opens a journal of this user's to write it.

    Args:
        path: its file.
        create: make it, with its folder, where there is none.

    Raises:
        EngineRefused: it is not this user's own.
        UsageError: there is none; or a newer headrace has written it.
        StorageError: it cannot be read or written.
    """
    if not create:
        _check_there(path)
    try:
        if create and not path.exists() and not started_here(path.parent):
            make_folders(path.parent)
            enter_run(path.parent)
        require_own(path)
        return Ledger(path, _MADE_BY)
    except (sqlite3.Error, OSError) as error:
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        hint = (
            f"it is damaged: move {path.parent} away; then `headrace grid run` finds its runs again by their names"
            if damaged
            else "is there room on the disk, and may you write there?"
        )
        raise StorageError(f"{path} cannot be used: {error}", hint) from error


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise UsageError(
            f"there is no grid {path.parent.name!r}: {path} does not exist", "`headrace grid run` starts one"
        )


LEASE = "lease"


class GridInUse(UsageError):
    """Another process controls the grid."""


@contextlib.contextmanager
def grid_lease(folder: Path) -> Iterator[None]:
    """Holds a grid for this process.

    Args:
        folder: of the grid.

    Raises:
        GridInUse: another process has it.
        StorageError: the folder cannot be made or written.
    """
    try:
        make_folders(folder)
        lease = hold(folder / LEASE)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from error
    if lease is None:
        hint = f"`headrace grid status {folder.name}` shows it, `headrace grid stop {folder.name}` stops it"
        raise GridInUse(f"another process controls the grid {folder.name}", hint)
    try:
        yield
    finally:
        os.close(lease)


def has_controller(folder: Path) -> bool:
    """Tells whether a process controls a grid now."""
    return is_held(folder / LEASE)


_SHOWN = 5
_cause = msgspec.json.Decoder(Cause)
_fields = msgspec.json.Decoder(dict[str, Any])
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
            lines, copies = lines_of(database), copies_of(database)
        finally:
            database.execute("COMMIT")
        if grid is None:
            raise StorageError(f"{path} has no grid yet", "the process that made it was killed: start it again")
        return msgspec.structs.replace(
            msgspec.convert({**grid}, GridRecord),
            lines=tuple(msgspec.structs.replace(line, index=index) for index, line in enumerate(lines)),
            copies=tuple(copies.values()),
            controller=None if grid["pid"] is None else msgspec.convert({**grid}, ControllerProcess),
        )
    except (sqlite3.Error, msgspec.DecodeError, ValueError, TypeError, IndexError) as error:  # of somebody else: any
        raise StorageError(f"{path} cannot be read: {error}") from error


def lines_of(database: sqlite3.Connection, key: str | None = None) -> list[LineRecord]:
    """Returns the lines, or that of a key, each with the place that its file gives it. Raises sqlite3.Error."""
    where = "" if key is None else " WHERE key = :key"

    def rows(table: str, order: str) -> Iterator[dict[str, Any]]:
        found = database.execute(f"SELECT * FROM {table}{where} ORDER BY {order}", {"key": key})
        return ({**row} for row in found)

    attempts: dict[str, list[AttemptRecord]] = {}
    rungs: dict[str, list[Rung]] = {}
    for row in rows("attempts", "key, number"):
        row["cause"] = None if row["cause"] is None else decode_record(_cause, row["cause"])
        attempts.setdefault(row["key"], []).append(msgspec.convert(row, AttemptRecord))
    for row in rows("rungs", "key, step"):
        rungs.setdefault(row["key"], []).append(msgspec.convert({**row, "stopped": bool(row["stopped"])}, Rung))
    return [
        msgspec.convert(
            {
                **row,
                "index": row["position"],
                "fields": decode_record(_fields, row["fields"]),
                "waits_for": decode_record(_places, row["waits_for"]),
                "in_file": bool(row["in_file"]),
                "attempts": tuple(attempts.get(row["key"], ())),
                "rungs": tuple(rungs.get(row["key"], ())),
            },
            LineRecord,
        )
        for row in rows("lines", "in_file DESC, position, key")
    ]


def copies_of(database: sqlite3.Connection) -> dict[tuple[str, str], CopyRecord]:
    """Returns the copies, by place and region. Raises sqlite3.Error."""
    rows = database.execute("SELECT * FROM copies ORDER BY region, place")
    return {(row["place"], row["region"]): msgspec.convert({**row}, CopyRecord) for row in rows}


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
