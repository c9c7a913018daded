"""The file of a grid's journal: where it is, its tables, how it is opened. A commit is on disk when it returns.

One process at a time controls a grid, the one that holds the lease beside the journal; the kernel takes the lease from
a process that ends, however it does.

A journal in a folder that this user has not entered (see `headrace.own_runs`) is somebody else's: it is opened for
reading only, it is a regular file with nothing but tables, and nobody acts by what it says.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import StorageError, UsageError
from headrace.held_file import hold, is_held
from headrace.home import GRIDS, home_dir
from headrace.ledger import Ledger, check_version, connect, version_of
from headrace.own_runs import enter_run, require_started_here, started_here
from headrace.private_folders import make_folders
from headrace.record_files import check_kind

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
