"""Writes a grid's journal: every change is one transaction, on disk when its method returns.

A change that does not fit what the journal has is refused: a line that runs cannot be started, an attempt that has
ended cannot end. So two processes that disagree are found out, and nothing is started twice.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import HeadraceError, StorageError
from headrace.grid.grid_record import (
    AttemptRecord,
    AttemptState,
    ControllerProcess,
    CopyRecord,
    GridRecord,
    LineRecord,
    LineState,
    Rung,
)
from headrace.grid.read_grid import copies_of, lines_of, open_journal, record_of

Instant = Callable[[str], None]
"""Is told the name of each instant at which the process might be killed; tests kill it there."""


GONE = "the grid's file has it no more"


class JournalConflict(HeadraceError):
    """A change that does not fit what the journal has: another process has changed it, or there is a defect."""


def nothing_happens(_name: str) -> None:
    """The `Instant` of every process that no test kills."""


class Journal:
    """The journal of one grid. Safe for use by several threads.

    Args:
        path: its file.
        create: make it where there is none.
        instant: told before and after every write.

    Raises:
        UsageError: there is none, or a newer headrace wrote it.
        StorageError: it cannot be read or written. Every method raises it too; then nothing was written.
    """

    def __init__(self, path: Path, *, create: bool = False, instant: Instant = nothing_happens) -> None:
        self.path = path
        self._instant = instant
        self._ledger = open_journal(path, create=create)
        self._version = -1

    def close(self) -> None:
        """Closes the file."""
        self._ledger.close()

    def read(self) -> GridRecord | None:
        """Returns what it has; None before `begin`."""
        with self._ledger.lock:
            if self._one("SELECT 1 FROM grid") is None:
                return None
            return record_of(self._ledger.database, self.path)

    def line(self, key: str, index: int) -> LineRecord:
        """Returns one line; `index` is its position. Raises KeyError when there is none."""
        with self._reading() as database:
            for line in lines_of(database, key):
                return msgspec.structs.replace(line, index=index)
        raise KeyError(key)

    def copies(self) -> dict[tuple[str, str], CopyRecord]:
        """Returns the copies, by place and region."""
        with self._reading() as database:
            return copies_of(database)

    def changed_elsewhere(self) -> bool:
        """Tells whether another connection has written since the last call; True the first time."""
        with self._ledger.lock:
            row = self._one("PRAGMA data_version")
            version, self._version = self._version, int(row[0]) if row else -1
            return version != self._version

    def begin(self, grid: GridRecord) -> None:
        """Writes down a new grid with its lines and copies, before anything of it is done.

        Raises:
            JournalConflict: there is one already.
        """
        with self._write("begin") as database:
            if database.execute("SELECT 1 FROM grid").fetchone() is not None:
                raise JournalConflict(f"{self.path} has a grid already")
            _insert(database, "grid", [{"id": 1, "name": grid.name, "created": grid.created, **_file_columns(grid)}])
            self._put(database, grid)

    def revise(self, grid: GridRecord) -> None:
        """Takes over what a grid's file says now. States and attempts of lines that are here already are kept, their
        engine and region too once they have an attempt; lines that it has no more are marked; those of them that have
        not begun are stopped, and wait again when they come back.
        """
        with self._write("revise") as database:
            self._change_grid(database, ended=None, stop_asked=None, **_file_columns(grid))
            self._put(database, grid)
            stay = {line.key for line in grid.lines}
            for line in lines_of(database):
                if line.key not in stay:
                    begun = line.state not in (LineState.WAITING, LineState.UNPLACED)
                    ended = {} if begun else {"state": LineState.STOPPED, "reason": GONE}
                    self._change(database, line.key, (line.state,), in_file=False, **ended)

    def take(self, controller: ControllerProcess) -> None:
        """Writes down which process has the grid now; it holds the lease."""
        with self._write("take") as database:
            self._change_grid(database, **msgspec.structs.asdict(controller))

    def intend(self, key: str, attempt: AttemptRecord) -> None:
        """Writes down that an attempt is about to be started.

        Raises:
            JournalConflict: the line does not wait, or has an attempt of that number, or another one has its job name.
        """
        with self._write("intend") as database:
            self._change(database, key, (LineState.WAITING,), state=LineState.STARTING, reason="", not_before=0.0)
            _insert(database, "attempts", [{"key": key, **_row(attempt), "state": AttemptState.INTENDED.value}])

    def started(self, key: str, number: int, run_id: str, t: float) -> None:
        """Writes down that an attempt has a run.

        Raises:
            JournalConflict: nobody intended it, or it has one.
        """
        with self._write("started") as database:
            now = {"state": AttemptState.RUNNING, "run_id": run_id, "started": t}
            self._change_attempt(database, key, number, (AttemptState.INTENDED,), now)
            self._change(database, key, (LineState.STARTING,), state=LineState.RUNNING)

    def ended(
        self,
        key: str,
        attempt: AttemptRecord,
        state: LineState,
        *,
        not_before: float = 0.0,
        region: str | None = None,
        copies: Sequence[CopyRecord] = (),
        reason: str = "",
    ) -> None:
        """Writes down how an attempt ended, and with it what becomes of its line.

        Args:
            key: of the line.
            attempt: with its end; its run, when it is known only now.
            state: of the line from now on: completed, failed, stopped, or waiting for another attempt.
            not_before: when that may begin, seconds since the epoch.
            region: where that runs; None for the same region.
            copies: that it needs in another region; those that the journal has already are kept as they are.
            reason: why the grid stopped it; empty when it ended of itself.

        Raises:
            JournalConflict: it has ended already.
        """
        with self._write("ended") as database:
            going, now = (AttemptState.INTENDED, AttemptState.RUNNING), {"state": AttemptState.ENDED}
            self._change_attempt(database, key, attempt.number, going, _row(attempt) | now)
            begun = (LineState.STARTING, LineState.RUNNING)
            moved: dict[str, object] = {}
            if region is not None:
                _put_copies(database, copies)
                moved = {"region": region, "waits_for": tuple((copy.place, copy.region) for copy in copies)}
            self._change(database, key, begun, state=state, not_before=not_before, reason=reason, **moved)

    def reached(self, key: str, step: int, judge: Callable[[Sequence[float]], Rung]) -> Rung | None:
        """Writes down how a line stands at a rung, and returns it; None when it was there before.

        Args:
            key: of the line.
            step: the rung.
            judge: is given the values of the lines that were there before.
        """
        with self._write("reached") as database:
            rows = database.execute("SELECT key, value FROM rungs WHERE step = ?", (step,)).fetchall()
            if any(row["key"] == key for row in rows):
                return None
            rung = judge([row["value"] for row in rows])
            _insert(database, "rungs", [{"key": key, **_row(rung)}])
            return rung

    def close_lines(self, closed: Mapping[str, tuple[LineState, str]]) -> None:
        """Writes down that lines which wait will not be started: of each its state from now on, and why.

        Raises:
            JournalConflict: one of them does not wait; then nothing was written.
        """
        with self._write("close_lines") as database:
            for key, (state, reason) in closed.items():
                self._change(database, key, (LineState.WAITING,), state=state, reason=reason)

    def copied(self, copy: CopyRecord) -> None:
        """Writes down how far a copy has come.

        Raises:
            JournalConflict: there is no such copy.
        """
        with self._write("copied") as database:
            if not _update(database, "copies", _row(copy), {"place": copy.place, "region": copy.region}):
                raise JournalConflict(f"{self.path} has no copy of {copy.place} to {copy.region}")

    def ask_stop(self, t: float, keys: Iterable[str] | None = None) -> None:
        """Writes down that somebody wants the grid to stop, or of its lines those with these keys."""
        with self._write("ask_stop") as database:
            if keys is None:
                self._change_grid(database, stop_asked=t)
            else:
                for key in keys:
                    self._change(database, key, tuple(LineState), stop_asked=t)

    def retry(self, keys: Iterable[str], *, also_completed: bool = False) -> int:
        """Lets lines that failed or were stopped (or have completed) wait again, with one attempt more: it goes on
        beyond the rung at which it was stopped (or is judged anew). Returns how many there were."""
        states = [LineState.FAILED, LineState.STOPPED, LineState.STOPPED_EARLY, *[LineState.COMPLETED] * also_completed]
        rungs = "DELETE FROM rungs" if also_completed else "UPDATE rungs SET stopped = 0"
        with self._write("retry") as database:
            lines, count = {line.key: line for line in lines_of(database)}, 0
            for key in keys:
                line = lines.get(key)
                if line is not None and line.in_file and line.state in states:
                    self._change(
                        database, key, (line.state,), state=LineState.WAITING, not_before=0.0, reason="",
                        extra_attempts=line.extra_attempts + 1, stop_asked=None,
                    )  # fmt: skip
                    count += 1
                    database.execute(f"{rungs} WHERE key = ?", (key,))
            if count:
                database.execute("UPDATE copies SET state = 'waiting', reason = '' WHERE state = 'failed'")
                self._change_grid(database, ended=None, stop_asked=None)
            return count

    def note(self, t: float, key: str, text: str) -> None:
        """Writes down what happened, for people.

        Args:
            t: when, seconds since the epoch.
            key: of the line that it is about; empty for the whole grid.
            text: what happened.
        """
        with self._write("note") as database:
            _insert(database, "notes", [{"t": t, "key": key, "text": text}])

    def finish(self, t: float) -> None:
        """Writes down that the grid is over.

        Raises:
            JournalConflict: a line is not.
        """
        with self._write("finish") as database:
            if any(not LineState(state).over for (state,) in database.execute("SELECT DISTINCT state FROM lines")):
                raise JournalConflict(f"{self.path} has lines that are not over")
            self._change_grid(database, ended=t)

    def _put(self, database: sqlite3.Connection, grid: GridRecord) -> None:
        """Adds or updates lines and copies."""
        stored = {line.key: line for line in lines_of(database)}
        lines = (revised(stored[line.key], line) if line.key in stored else line for line in grid.lines)
        _put_lines(database, lines)
        _put_copies(database, grid.copies)

    def _change_grid(self, database: sqlite3.Connection, **changes: object) -> None:
        if not _update(database, "grid", changes, {"id": 1}):
            raise JournalConflict(f"{self.path} has no grid yet")

    def _change(self, database: sqlite3.Connection, key: str, states: tuple[LineState, ...], **changes: object) -> None:
        """Changes a line that is in one of some states: the one place where a line becomes another."""
        if not _update(database, "lines", changes, {"key": key}, states):
            raise JournalConflict(f"the line {key} is not {_either(states)} in {self.path}")

    def _change_attempt(
        self,
        database: sqlite3.Connection,
        key: str,
        number: int,
        states: tuple[AttemptState, ...],
        changes: Mapping[str, object],
    ) -> None:
        if not _update(database, "attempts", changes, {"key": key, "number": number}, states):
            raise JournalConflict(f"attempt {number} of the line {key} is not {_either(states)} in {self.path}")

    @contextlib.contextmanager
    def _write(self, name: str) -> Iterator[sqlite3.Connection]:
        """One transaction. An error leaves the journal as it was."""
        self._instant(f"before {name}")
        try:
            with self._ledger.transaction() as database:
                yield database
        except sqlite3.IntegrityError as error:
            raise JournalConflict(f"{self.path}: {name}: {error}") from error
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} cannot be written: {error}", "is there room on the disk?") from error
        self._instant(f"after {name}")

    def _one(self, statement: str) -> sqlite3.Row | None:
        with self._reading() as database:
            row: sqlite3.Row | None = database.execute(statement).fetchone()
            return row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._ledger.lock:
                yield self._ledger.database
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} cannot be read: {error}") from error


def _file_columns(grid: GridRecord) -> dict[str, object]:
    """Returns the columns of a grid that its file says."""
    return {name: getattr(grid, name) for name in ("file", "digest", "job_digest", "budget", "deadline")}


def _either(states: Iterable[LineState | AttemptState]) -> str:
    return " or ".join(state.value for state in states)


def _row(record: object) -> dict[str, Any]:
    """Returns a record, or some fields of one, as columns: what is no plain value is JSON."""
    values: dict[str, Any] = msgspec.to_builtins(record)
    return {name: _json(each) if isinstance(each, dict | list | tuple) else each for name, each in values.items()}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _settings(row: Iterable[str]) -> str:
    return ", ".join(f"{name} = :{name}" for name in row)


def _insert(database: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, object]], conflict: str = "") -> None:
    """Adds rows, all with the same columns."""
    if rows:
        columns = f"({', '.join(rows[0])}) VALUES (:{', :'.join(rows[0])})"
        database.executemany(f"INSERT INTO {table} {columns} {conflict}", rows)


def _update(
    database: sqlite3.Connection,
    table: str,
    changes: Mapping[str, object],
    keys: Mapping[str, object],
    states: Iterable[LineState | AttemptState] = (),
) -> bool:
    """Changes the row with some keys, if it is in one of some states; without any, in whichever. Returns whether."""
    row = _row(changes)
    where = " AND ".join(f"{name} = :its_{name}" for name in keys)
    values = {**row, **{f"its_{name}": value for name, value in keys.items()}}
    if states:
        where += " AND state IN (SELECT value FROM json_each(:states))"
        values["states"] = _json(list(states))
    return database.execute(f"UPDATE {table} SET {_settings(row)} WHERE {where}", values).rowcount == 1


def _put_copies(database: sqlite3.Connection, copies: Iterable[CopyRecord]) -> None:
    _insert(database, "copies", [*map(_row, copies)], "ON CONFLICT (place, region) DO NOTHING")


def _put_lines(database: sqlite3.Connection, lines: Iterable[LineRecord]) -> None:
    """Stores lines; their attempts and rungs have tables of their own."""
    rows = []
    for line in lines:
        row = _row(msgspec.structs.replace(line, attempts=(), rungs=()))
        del row["attempts"], row["rungs"]
        rows.append({"position": row.pop("index"), **row})
    if rows:
        _insert(database, "lines", rows, f"ON CONFLICT (key) DO UPDATE SET {_settings(rows[0])}")


def revised(old: LineRecord, new: LineRecord) -> LineRecord:
    """Returns a line whose file says it anew: what has begun of it stays where it is.

    Args:
        old: as the journal has it.
        new: as it is planned now.
    """
    line = msgspec.structs.replace(old, in_file=True, index=new.index, place=new.place)
    if old.state not in (LineState.STARTING, LineState.RUNNING, LineState.COMPLETED):
        planned = ("engine", "region", "planned_cost", "planned_seconds", "waits_for")
        line = msgspec.structs.replace(line, **{name: getattr(new, name) for name in planned})
    came_back = old.state is LineState.STOPPED and not old.in_file
    if came_back or old.state in (LineState.WAITING, LineState.UNPLACED):
        line = msgspec.structs.replace(line, state=new.state, reason=new.reason)
    return line
