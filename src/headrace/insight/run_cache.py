"""What the page knows of the runs: read once, then only what is new. Several requests may ask at the same time.

A `RunIndex` follows the files of one run; a `RunCache` holds those that were asked for last. Nothing is written.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace import insight
from headrace.errors import RunNotFound, UsageError
from headrace.insight import charts
from headrace.insight.charts import Grid, Metrics
from headrace.insight.figures.columns import Columns
from headrace.insight.figures.run_files import absent, why_unread
from headrace.insight.timeline import Timeline, timeline
from headrace.runs import (
    Damage,
    EventFollower,
    MetricFollower,
    Run,
    RunPaths,
    RunState,
    read_header,
    runs_dir,
    state_of,
)
from headrace.runs.describe import RunLine, planned_groups, run_line
from headrace.runs.events import JobStarted, JobStopping
from headrace.runs.reader import Alive
from headrace.runs.state import last_word
from headrace.runs.store import find_run, unreadable_headers
from headrace.runs.tail import Tree

HELD_RUNS = 4096
"""Runs whose events are held for their pages: more than people go through, else each would be read again every time.

The metrics of the last `HELD_METRICS` of them are held."""
HELD_METRICS = 6
ENDED_SECONDS = 120.0
"""Between two looks of the list at the files of a run that has ended."""
MOST_SECONDS = 1e15
SINCE = "times are seconds since the epoch"
_PATIENCE = 5.0  # a report of a run that grows is used again for so many times what it took to make


class Version(NamedTuple):
    """How far a run's files were read. Equal versions look alike.

    Attributes:
        events, metrics: records.
        logs: bytes of all logs.
        finished: nothing more will happen.
    """

    events: int
    metrics: int
    logs: int
    finished: bool

    def __str__(self) -> str:
        return f"{self.events}-{self.metrics}-{self.logs}-{int(self.finished)}"


class RunIndex:
    """One run, read as far as its files go.

    Args:
        paths: the run's directory.
        alive: see `headrace.runs.Run`.

    Attributes:
        paths: the run's directory.
        run: the run.
        keeps_metrics: charts and report read the metrics once for both, until they are forgotten.
    """

    def __init__(self, paths: RunPaths, alive: Alive | None = None) -> None:
        self.paths = paths
        self.run = Run(paths, alive)
        self._alive = alive
        self._lock = threading.RLock()
        self._events = EventFollower(paths, self.run.on_damage)
        self._metrics = MetricFollower(paths, self.run.on_damage)
        self._columns = Columns()
        self.keeps_metrics = False
        self._word = False
        self._state: tuple[tuple[int, bool], RunState] | None = None
        self._report_lock = threading.Lock()
        self._report: tuple[object, float, float, insight.Report] | None = None

    def forget_metrics(self) -> None:
        """Gives back the memory of the metrics; they are read again when they are asked for."""
        with self._lock:
            self._metrics = MetricFollower(self.paths, self.run.on_damage)
            self._columns = Columns()
            self.keeps_metrics = False

    def state(self) -> RunState:
        """Returns what its events say by now."""
        with self._lock:
            # With a last word it does not matter who lives; else ask before the events are read, see `state_of`.
            supervised = True if self._word else self.run.supervised
            if self._events.poll():
                self._word = last_word(self._events.events) is not None
            seen = (len(self._events.events), supervised)
            if self._state is None or self._state[0] != seen:
                self._state = (seen, state_of(self._events.events, supervised))
            return self._state[1]

    def line(self, now: float) -> RunLine:
        """Returns its line in a list. Raises OSError or msgspec.DecodeError when its header cannot be read."""
        with self._lock:
            return run_line(self.run, now, self.state())

    def timeline(self, now: float) -> Timeline:
        """Returns its lanes and events; a run with a damaged header has them, too."""
        with self._lock:
            state = self.state()
            events = self._events.events
            return timeline(
                self.paths.id,
                self._created(),
                events,
                state,
                planned_groups(self.paths),
                self.run.present(now),
                self.damage(),
            )

    def metrics(self, start: float | None, end: float | None, points: int) -> Metrics:
        """Returns its charts over a stretch of time; None for its beginning and its end.

        Args:
            start, end: seconds since the epoch.
            points: buckets, at most.

        Raises:
            UsageError: if that is no stretch of time.
        """
        for name, value in (("start", start), ("end", end)):
            if value is not None and not abs(value) < MOST_SECONDS:  # NaN, too
                raise UsageError(f"{name} is {value:g}, which is not a time", hint=SINCE)
        if start is not None and end is not None and start > end:
            raise UsageError(f"start ({start:.10g}) is after end ({end:.10g})", hint=SINCE)
        with self._lock:
            state = self.state()
            self._columns.take(self._metrics.poll())
            columns = self._columns
            first = min(self._created(), columns.first) if columns.records else self._created()
            last = state.ended if state.ended is not None else max(first, columns.last if columns.records else first)
            begin = first if start is None else start
            stop = max(begin, last if end is None else end)
            found = charts.metrics(self.paths.id, columns, Grid.over(begin, stop, points), stop)
            ends = [event for event in self._events.events if isinstance(event, JobStarted | JobStopping)]
            until = ends[-1].t if ends and isinstance(ends[-1], JobStopping) else None
            return msgspec.structs.replace(found, damage=tuple(self.damage()), until=until)

    def report(self) -> insight.Report:
        """Returns its report, made anew when its files have changed, but a growing run's not all the time.

        Raises:
            OSError, msgspec.DecodeError: its header cannot be read.
        """
        with self._report_lock:
            stamp = fingerprint(self.paths, "events", "metrics")
            now = time.monotonic()
            if self._report is not None:
                known, made, took, found = self._report
                if known == stamp or (found.status is self.state().status and now - made < _PATIENCE * took):
                    return found
            found = self._judged()
            self._report = (stamp, time.monotonic(), time.monotonic() - now, found)
            return found

    def _judged(self) -> insight.Report:
        with self._lock:
            if self.keeps_metrics:
                self._columns.take(self._metrics.poll())
                return insight.report(self.run, self._columns)
        return insight.report(Run(self.paths, self._alive))

    def damage(self) -> list[Damage]:
        """Returns what of its files cannot be read or is not there, the header included."""
        lost = [*self.run.damage, *absent(self.paths, self.state())]
        try:
            read_header(self.paths)
        except (OSError, msgspec.DecodeError) as error:
            return [Damage(str(self.paths.header), 0, f"cannot be read: {why_unread(error)}"), *lost]
        return lost

    def version(self) -> Version:
        """Returns how far its files go by now."""
        with self._lock:
            state = self.state()
            self._columns.take(self._metrics.poll())
            return Version(len(self._events.events), self._columns.records, log_bytes(self.paths), state.finished)

    def _created(self) -> float:
        try:
            return read_header(self.paths).created
        except (OSError, msgspec.DecodeError):
            events = self._events.events
            if events:
                return events[0].t
            return self._columns.first if not math.isnan(self._columns.first) else self.paths.root.stat().st_mtime


class _Listed(NamedTuple):
    """A run in the list.

    Attributes:
        line: None when its header cannot be read.
        follower: follows it while it goes on; None of one that has ended.
        stamp: of the files of which the line is made.
        due: when it is looked at again, by `time.monotonic`.
    """

    line: RunLine | None
    follower: RunIndex | None
    stamp: object
    due: float


class RunCache:
    """The runs of this machine.

    Args:
        runs: their directory; that of the user if None.
        alive: see `headrace.runs.Run`.
    """

    def __init__(self, runs: Path | None = None, alive: Alive | None = None) -> None:
        self._runs = runs
        self._alive = alive
        self._lock = threading.Lock()
        self._held: OrderedDict[str, RunIndex] = OrderedDict()
        self._with_metrics: OrderedDict[str, RunIndex] = OrderedDict()
        self._list_lock = threading.Lock()
        self._tree = Tree(self._parent, 1, "")
        self._directories: list[Path] = []
        self._listed: dict[Path, _Listed | None] = {}
        self._lines: list[RunLine] | None = None

    def open(self, name_or_id: str, metrics: bool = False) -> RunIndex:
        """Returns the run of that id, or the newest run of the job of that name.

        Args:
            name_or_id: which.
            metrics: its metrics will be asked for; those of the runs asked for longest ago are forgotten.

        Raises:
            RunNotFound: if there is none.
        """
        try:
            return self._index(find_run(name_or_id, self._runs), metrics)
        except RunNotFound:
            # Without its header a directory is no run for the commands; the page shows what can be read of it.
            if Path(name_or_id).name != name_or_id or name_or_id[0] == "." or not (self._parent / name_or_id).is_dir():
                raise
            return self._index(RunPaths(self._parent / name_or_id), metrics)

    @property
    def _parent(self) -> Path:
        return runs_dir() if self._runs is None else self._runs

    def _index(self, paths: RunPaths, metrics: bool = False) -> RunIndex:
        with self._lock:
            index = self._held.get(paths.id)
            if index is None:
                index = self._held[paths.id] = RunIndex(paths, self._alive)
            self._held.move_to_end(paths.id)
            while len(self._held) > HELD_RUNS:
                self._held.popitem(last=False)
            if metrics:
                index.keeps_metrics = True
                self._with_metrics[paths.id] = index
                self._with_metrics.move_to_end(paths.id)
            old = []
            while len(self._with_metrics) > HELD_METRICS:
                old.append(self._with_metrics.popitem(last=False)[1])
        for each in old:
            each.forget_metrics()
        return index

    def lines(self, now: float) -> list[RunLine]:
        """Returns all runs, oldest first, as `headrace ps --all` does; those without a readable header are left out.

        A run that goes on is followed. The record of one that has ended is read once, and again when its files have
        changed, which is looked at every `ENDED_SECONDS`. The same list comes again where no run was looked at.
        """
        with self._list_lock:
            directories, clock = self._tree.children(self._parent), time.monotonic()
            if directories is not self._directories:
                names = [each for each in directories if not each.name.startswith(".")]
                self._directories, self._listed = directories, {each: self._listed.get(each) for each in names}
                self._lines = None
            due = [(each, run) for each, run in self._listed.items() if run is None or run.due <= clock]
            for directory, run in due:
                self._listed[directory] = self._look(RunPaths(directory), run, now)
            if due or self._lines is None:
                lines = [run.line for run in self._listed.values() if run is not None and run.line is not None]
                self._lines = sorted(lines, key=lambda line: (line.created, line.run_id))
            return self._lines

    def _look(self, paths: RunPaths, listed: _Listed | None, now: float) -> _Listed:
        stamp = fingerprint(paths, "events")  # before it is read
        due = time.monotonic() + ENDED_SECONDS
        if listed is not None and listed.follower is None and listed.stamp == stamp:
            return listed._replace(due=due if listed.line is not None else 0.0)
        index = (listed.follower if listed is not None else None) or RunIndex(paths, self._alive)
        try:
            line = index.line(now)
        except (OSError, msgspec.DecodeError):  # it was removed, or is damaged; see `unreadable`
            return _Listed(None, None, stamp, 0.0)
        if line.exit_code is None or line.silent_seconds is not None:
            return _Listed(line, index, stamp, 0.0)
        return _Listed(line, None, stamp, due)

    def unreadable(self) -> list[Damage]:
        """Returns the directories among the runs whose header is missing or damaged."""
        return unreadable_headers(self._parent)


def fingerprint(paths: RunPaths, *folders: str) -> tuple[tuple[object, ...], ...]:
    """Returns what is another when a file of these folders of a run, its header or its plan has changed."""
    files = [pair for folder in folders for pair in _files(paths.root / folder)]
    stamps = ((entry.path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for entry, stat in files)
    return (*stamps, _stamp(paths.header), _stamp(paths.plan))


def log_bytes(paths: RunPaths) -> int:
    """Returns the bytes of all logs of a run."""
    return sum(stat.st_size for _, stat in _files(paths.root / "logs"))


def _files(folder: Path) -> list[tuple[os.DirEntry[str], os.stat_result]]:
    """Lists the files of a tree; what goes away or cannot be looked at is left out: who reads it says so."""
    found: list[tuple[os.DirEntry[str], os.stat_result]] = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                found += _files(Path(entry.path))
            else:
                found.append((entry, entry.stat(follow_symlinks=False)))
    except OSError:
        pass
    return found


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (-1, 0, 0)
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)
