"""What is known of objects beside their bytes: a SQLite database in the store.

A row belongs to a file as long as inode, size and time of change are those of the row. So whoever writes into a
bucket's folder without asking S3 is never told what was true of another file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created REAL NOT NULL, region TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, key BLOB NOT NULL, odd TEXT, inode INTEGER NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL, etag TEXT NOT NULL, known TEXT NOT NULL, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS odd_objects ON objects (bucket, key) WHERE odd IS NOT NULL;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, known TEXT NOT NULL, algorithm TEXT NOT NULL,
    kind TEXT NOT NULL, began REAL NOT NULL, part_bytes INTEGER, completed TEXT);
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, md5 TEXT NOT NULL, checksum TEXT NOT NULL,
    file TEXT, changed REAL NOT NULL, PRIMARY KEY (upload, number)) WITHOUT ROWID;
"""
_BATCH = 500


@dataclass(frozen=True)
class Known:
    """What a client said of an object, and what was computed of it.

    Attributes:
        headers: Content-Type and the like, and those of user metadata; names in small letters.
        checksums: algorithm to value, as headers hold it.
        kind: FULL_OBJECT or COMPOSITE: what the checksums are of.
        parts: bytes of each part, if it was uploaded in parts.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    kind: str = "FULL_OBJECT"
    parts: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Returns it as text."""
        return json.dumps([dict(self.headers), dict(self.checksums), self.kind, self.parts])

    @classmethod
    def from_json(cls, text: str) -> Known:
        """Reads what `to_json` has written."""
        headers, checksums, kind, parts = json.loads(text)
        return cls(headers, checksums, kind, tuple(parts))


@dataclass(frozen=True)
class ObjectRow:
    """What is known of one object: `odd` names its file in the store, if it cannot lie at its key's path."""

    odd: str | None
    inode: int
    size: int
    changed: int
    etag: str
    known: str


class ObjectIndex:
    """The database. `lock` guards it, and every change of files that belongs to a row.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute("PRAGMA cache_size=-4000")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Closes the file."""
        with self.lock:
            self._database.close()

    def execute(self, statement: str, *values: object) -> list[Any]:
        """Runs one statement, and returns its rows."""
        with self.lock:
            return self._database.execute(statement, values).fetchall()

    def bucket(self, name: str, region: str) -> tuple[float, str]:
        """Returns when a bucket was created, and its region; a folder that is new here becomes one now."""
        self.execute("INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)", name, time.time(), region)
        created, where = self.execute("SELECT created, region FROM buckets WHERE name = ?", name)[0]
        return float(created), str(where)

    def forget_bucket(self, name: str) -> None:
        """Removes all rows of a bucket."""
        with self.lock:
            self.execute("DELETE FROM objects WHERE bucket = ?", name)
            self.execute("DELETE FROM buckets WHERE name = ?", name)

    def row(self, bucket: str, key: bytes) -> ObjectRow | None:
        """Returns what is known of an object."""
        found = self.execute(
            "SELECT odd, inode, size, changed, etag, known FROM objects WHERE bucket = ? AND key = ?", bucket, key
        )
        return ObjectRow(*found[0]) if found else None

    def rows(self, bucket: str, keys: Iterable[bytes]) -> dict[bytes, ObjectRow]:
        """Returns what is known of several objects."""
        wanted = list(keys)
        found: dict[bytes, ObjectRow] = {}
        for begin in range(0, len(wanted), _BATCH):
            batch = wanted[begin : begin + _BATCH]
            places = ",".join("?" * len(batch))
            statement = (
                "SELECT key, odd, inode, size, changed, etag, known FROM objects"
                f" WHERE bucket = ? AND key IN ({places})"
            )
            found |= {key: ObjectRow(*row) for key, *row in self.execute(statement, bucket, *batch)}
        return found

    def set_row(self, bucket: str, key: bytes, row: ObjectRow) -> None:
        """Keeps what is known of an object."""
        self.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            bucket, key, row.odd, row.inode, row.size, row.changed, row.etag, row.known,
        )  # fmt: skip

    def forget(self, bucket: str, key: bytes) -> None:
        """Removes what is known of an object."""
        self.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", bucket, key)

    def odd_keys(self, bucket: str, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """Yields the keys of objects that do not lie at their key's path, in order.

        Args:
            bucket: its name.
            prefix: that they begin with.
            after: that they come after.
        """
        statement = (
            "SELECT key FROM objects WHERE bucket = ? AND odd IS NOT NULL AND key > ? AND key >= ? ORDER BY key LIMIT ?"
        )
        while rows := self.execute(statement, bucket, after, prefix, _BATCH):
            for (key,) in rows:
                if not key.startswith(prefix):
                    return
                yield key
            after = rows[-1][0]
