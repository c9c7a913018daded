"""A ledger: made and brought up to date once, refused when it is newer, and all of a transaction or nothing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.ledger import Ledger, version_of

FIRST = "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
SECOND = "ALTER TABLE facts ADD COLUMN unit TEXT NOT NULL DEFAULT '';"


def test_an_older_ledger_gets_what_it_lacks_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old = Ledger(path, (FIRST,))
    old.execute("INSERT INTO facts VALUES (?, ?)", "a", 1)
    old.close()
    for _ in range(2):
        new = Ledger(path, (FIRST + SECOND, SECOND))
        assert [tuple(row) for row in new.execute("SELECT * FROM facts")] == [("a", 1, "")]
        assert version_of(new.database) == 2
        new.close()
    with pytest.raises(UsageError, match=r"newer headrace \(version 2\)"):
        Ledger(path, (FIRST,))


def test_many_that_open_a_new_ledger_at_once_make_its_tables_once(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    opened: list[Ledger] = []

    def begin() -> None:
        start.wait(10)
        opened.append(Ledger(tmp_path / "ledger.sqlite", (FIRST,)))  # with tables twice SQLite would raise

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    for ledger in opened:
        ledger.close()


def test_a_transaction_that_raises_writes_nothing_and_others_go_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", (FIRST,), durable=False)

    def write_twice() -> None:
        with ledger.transaction() as database:
            for value in (1, 2):
                database.execute("INSERT INTO facts VALUES ('a', ?)", (value,))

    with pytest.raises(sqlite3.IntegrityError):
        write_twice()
    assert ledger.execute("SELECT * FROM facts") == []
    with ledger.transaction() as database:
        database.execute("INSERT INTO facts VALUES ('a', 3)")
    assert ledger.execute("SELECT value FROM facts")[0]["value"] == 3
    ledger.close()
