"""The jobs of an endpoint, in SQLite: what was asked for, how far it has come, how it ended.

One process at a time has a store (`lock_store`). Every change is on disk when its method returns, so whatever kills the
endpoint, the next one knows each job that a client was told of.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.errors import UsageError
from headrace.held_file import hold
from headrace.ledger import Ledger
from headrace.private_folders import make_closed

FILE = "jobs.sqlite"
LOCK = "lock"
_SIGNATURE_SECONDS = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    name TEXT PRIMARY KEY, uid TEXT UNIQUE NOT NULL, created REAL NOT NULL, modified REAL NOT NULL,
    request TEXT NOT NULL, tags TEXT NOT NULL, phase TEXT NOT NULL, run_id TEXT NOT NULL DEFAULT '',
    stop_asked REAL, attempt TEXT NOT NULL, note TEXT NOT NULL DEFAULT '', final TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS by_time ON jobs (created, name);
CREATE INDEX IF NOT EXISTS by_phase ON jobs (phase);
CREATE TABLE IF NOT EXISTS metrics (uid TEXT NOT NULL, name TEXT NOT NULL, t REAL NOT NULL, step INTEGER, value REAL);
CREATE INDEX IF NOT EXISTS by_metric ON metrics (uid, name, t);
CREATE TABLE IF NOT EXISTS signatures (signature TEXT PRIMARY KEY, used REAL NOT NULL);
"""
_MADE_BY = (_SCHEMA, _SCHEMA)


class Phase(str, Enum):
    """How far a job has come here."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class StoredJob:
    """One job.

    Attributes:
        name: TrainingJobName.
        uid: which no other job has, also not a later one of that name.
        created, modified: seconds since the epoch.
        request: what was asked for, as it was sent, without Tags.
        tags: keys and values.
        phase: how far it has come.
        run_id: its run; empty before it has one, or when it never got one.
        stop_asked: when a client asked to stop it, seconds since the epoch.
        attempt: the id that its client gave the request, which is the same when the client sends it again.
        note: what its logs and its description say of the image and the Python.
        final: how it was described last, once it has ended.
    """

    name: str
    uid: str
    created: float
    modified: float
    request: dict[str, object]
    tags: dict[str, str]
    phase: Phase
    run_id: str = ""
    stop_asked: float | None = None
    attempt: str = ""
    note: str = ""
    final: dict[str, object] | None = None


class PutMetric(NamedTuple):
    """A value that a program has put.

    Attributes:
        name: of the metric.
        t: when, seconds since the epoch.
        step: of the training; None if the program does not say.
        value: of the metric.
    """

    name: str
    t: float
    step: int | None
    value: float


class StoreInUse(UsageError):
    """Another process has the store."""


class NameTaken(Exception):
    """A job of that name is there."""


@contextlib.contextmanager
def lock_store(folder: Path) -> Iterator[None]:
    """Holds a store for this process.

    Raises:
        StoreInUse: another process has it.
        UsageError: it cannot be made.
    """
    try:
        make_closed(folder)
        descriptor = hold(folder / LOCK)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}", "name another folder with --store") from error
    if descriptor is None:
        hint = (
            "give this one a folder of its own, `headrace serve --store FOLDER`, end the other one, or use it: "
            '`eval "$(headrace serve --print-env)"`'
        )
        raise StoreInUse(f"another `headrace serve` uses {folder}", hint)
    try:
        yield
    finally:
        os.close(descriptor)


class JobStore:
    """The jobs. Safe for use by several threads.

    Args:
        folder: of the store.

    Raises:
        UsageError: the file is damaged, of a later version, or cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        try:
            self._ledger = Ledger(path, _MADE_BY)
            path.chmod(0o600)
        except (sqlite3.Error, OSError) as error:
            raise UsageError(f"{path} cannot be used: {error}", "name another folder with --store") from error

    def close(self) -> None:
        """Closes the file."""
        self._ledger.close()

    def add(self, job: StoredJob, signature: str) -> None:
        """Adds a job that is queued, and remembers the signature of its request.

        Raises:
            NameTaken: its name is.
        """
        with self._ledger.transaction() as database:
            try:
                database.execute(
                    "INSERT INTO jobs (name, uid, created, modified, request, tags, phase, attempt, note) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(job.name, job.uid, job.created, job.modified, json.dumps(job.request)),
                        *(json.dumps(job.tags), job.phase.value, job.attempt, job.note),
                    ),
                )
            except sqlite3.IntegrityError as error:
                raise NameTaken(job.name) from error
            now = time.time()
            database.execute("DELETE FROM signatures WHERE used < ?", (now - _SIGNATURE_SECONDS,))
            database.execute("INSERT OR REPLACE INTO signatures VALUES (?, ?)", (signature, now))

    def signature_used(self, signature: str) -> bool:
        """Tells whether a request with that signature has created a job lately."""
        return bool(self._ledger.execute("SELECT 1 FROM signatures WHERE signature = ?", signature))

    def of_uid(self, uid: str) -> StoredJob | None:
        """Returns the job of that uid."""
        found = self._rows("SELECT * FROM jobs WHERE uid = ?", uid)
        return found[0] if found else None

    def find(self, name: str) -> StoredJob | None:
        """Returns the job of that name."""
        found = self._rows("SELECT * FROM jobs WHERE name = ?", name)
        return found[0] if found else None

    def all(self) -> list[StoredJob]:
        """Returns all jobs, the newest first."""
        return self._rows("SELECT * FROM jobs ORDER BY created DESC, name DESC")

    def names(self) -> list[str]:
        """Returns the names of all jobs that have a run, or had one."""
        return [row[0] for row in self._ledger.execute("SELECT name FROM jobs WHERE run_id != '' ORDER BY name")]

    def in_phase(self, phase: Phase) -> list[StoredJob]:
        """Returns the jobs in a phase, the oldest first."""
        return self._rows("SELECT * FROM jobs WHERE phase = ? ORDER BY created, name", phase.value)

    def change(
        self,
        job: StoredJob,
        *,
        phase: Phase | None = None,
        run_id: str | None = None,
        final: dict[str, object] | None = None,
        stop_asked: float | None = None,
    ) -> None:
        """Changes what is given of a job, unless it is gone."""
        given = {
            "phase": None if phase is None else phase.value,
            "run_id": run_id,
            "final": None if final is None else json.dumps(final),
            "stop_asked": stop_asked,
            "modified": time.time(),
        }
        values = {name: value for name, value in given.items() if value is not None}
        parts = ", ".join(f"{name} = ?" for name in values)
        self._ledger.execute(f"UPDATE jobs SET {parts} WHERE uid = ?", *values.values(), job.uid)

    def remove(self, job: StoredJob) -> None:
        """Removes a job."""
        with self._ledger.transaction() as database:
            database.execute("DELETE FROM jobs WHERE uid = ?", (job.uid,))
            database.execute("DELETE FROM metrics WHERE uid = ?", (job.uid,))

    def add_metrics(self, job: StoredJob, values: Iterable[PutMetric]) -> None:
        """Keeps values that programs have put."""
        rows = [(job.uid, each.name, each.t, each.step, each.value) for each in values]
        with self._ledger.transaction() as database:
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)

    def metrics(self, job: StoredJob, name: str) -> list[PutMetric]:
        """Returns the values of a metric that programs have put, in the order of time."""
        query = "SELECT name, t, step, value FROM metrics WHERE uid = ? AND name = ? ORDER BY t, rowid"
        return [PutMetric(*row) for row in self._ledger.execute(query, job.uid, name)]

    def metric_count(self, job: StoredJob) -> int:
        """Returns how many values programs have put."""
        return int(self._ledger.execute("SELECT count(*) FROM metrics WHERE uid = ?", job.uid)[0][0])

    def _rows(self, query: str, *values: object) -> list[StoredJob]:
        return [_read(row) for row in self._ledger.execute(query, *values)]


def _read(row: Mapping[str, Any]) -> StoredJob:
    texts = {name: json.loads(row[name]) if row[name] else None for name in ("request", "tags", "final")}
    return msgspec.convert({**row, **texts}, StoredJob)
