"""A small SQLite database with a version, which threads share, one at a time. Standard library only.

A commit is on disk when it returns, unless the owner can make the rows again. Which process has a ledger is told by a
file of `headrace.held_file`, which can be looked at without taking it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import UsageError

BUSY_SECONDS = 30.0


class Ledger:
    """The database. `lock` is held for each statement; who holds it longer has several at once.

    Args:
        path: its file, which is made where there is none.
        made_by: what brings it up to date, by the version that it has; 0 is a new one.
        durable: whether a commit outlives the machine, too, and not only the process.

    Raises:
        UsageError: a newer headrace has written it.
        sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path, made_by: Sequence[str], *, durable: bool = True) -> None:
        self.lock = threading.RLock()
        self.database = connect(str(path))
        try:
            for setting in ("journal_mode=WAL", f"synchronous={'FULL' if durable else 'NORMAL'}", "foreign_keys=ON"):
                self.database.execute(f"PRAGMA {setting}")
            if version_of(self.database) < len(made_by):
                self._bring_up_to_date(made_by)
            check_version(self.database, path, len(made_by))
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        with self.lock:
            self.database.close()

    def execute(self, statement: str, *values: object) -> list[Any]:
        """Runs one statement, and returns its rows: by place, and by the name of a column."""
        with self.lock:
            return self.database.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Begins to write; what was written is there when it ends, or nothing of it if it raises."""
        with self.lock:
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield self.database
                self.database.execute("COMMIT")
            except BaseException:
                if self.database.in_transaction:
                    self.database.execute("ROLLBACK")
                raise

    def _bring_up_to_date(self, made_by: Sequence[str]) -> None:
        """Makes the tables, or what an older headrace had not, unless another process has done it meanwhile."""
        with self.transaction() as database:
            version = version_of(database)
            if version < len(made_by):
                for statement in filter(str.strip, made_by[version].split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version={len(made_by)}")


def connect(name: str) -> sqlite3.Connection:
    """Opens a database as it is. Threads may share the connection, one at a time."""
    database = sqlite3.connect(
        name, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None, uri=name.startswith("file:")
    )
    database.row_factory = sqlite3.Row
    return database


def version_of(database: sqlite3.Connection) -> int:
    """Returns the version that a database says to have."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def check_version(database: sqlite3.Connection, path: Path, version: int) -> None:
    """Raises UsageError for a database that is of a later version."""
    if (theirs := version_of(database)) > version:
        raise UsageError(f"{path} was written by a newer headrace (version {theirs})", "update headrace")
