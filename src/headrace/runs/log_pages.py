"""Pages of the logs of a run: some hundred lines of some streams, merged by time, from a moment or from where the last
page ended. Memory and time of an answer are bounded, whatever the length of the logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from headrace.errors import UsageError
from headrace.runs.log_file import LogFile, LogRecord, ReadBudget
from headrace.runs.log_lines import Selector, stream_of
from headrace.runs.run_paths import RunPaths, Stream
from headrace.runs.tail import Tree

MOST_LINES = 1000
SEARCH_BYTES = 24 << 20
"""What is read for one answer; a search that needs more says where to go on."""

Cursor = dict[str, int]
"""Byte offsets by stream, ``group/host[rank]``."""


class LogPage(msgspec.Struct, frozen=True):
    """Some lines of a run.

    Attributes:
        lines: in the order of time.
        before: where the page before this one ends; its lines precede these.
        after: where the page after this one begins.
        first: nothing precedes these lines.
        last: nothing follows them, so far.
        streams: all streams that have a log, whether selected or not.
        bytes_read: what was read for this answer.
        damage: logs that cannot be read.
    """

    lines: list[LogRecord]
    before: Cursor
    after: Cursor
    first: bool
    last: bool
    streams: list[Stream]
    bytes_read: int
    damage: list[str]


@dataclass(frozen=True)
class LogQuery:
    """Which lines.

    Attributes:
        selector: of which streams.
        text: only lines that hold it, upper and lower case alike.
        limit: so many lines.
    """

    selector: Selector = field(default_factory=Selector)
    text: str = ""
    limit: int = 300

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MOST_LINES:
            raise UsageError(f"limit is {self.limit}, but a page has 1 to {MOST_LINES} lines")


def log_streams(paths: RunPaths) -> list[Stream]:
    """Returns the streams of a run that have a log."""
    return sorted(stream_of(path) for path in Tree(paths.root / "logs", 3, ".log").new())


def page_at(paths: RunPaths, query: LogQuery, t: float | None, back: int = 0) -> LogPage:
    """Returns the page that begins with the first line at or after a time; None: the last lines of all.

    Args:
        paths: the run.
        query: which lines.
        t: seconds since the epoch.
        back: so many lines before that time, too.
    """
    with _opened(paths, query.selector) as logs:
        start = {name: log.size if t is None else log.seek(t) for name, log in logs.files.items()}
        if t is None:
            return logs.page(query, start, forwards=False)
        here = logs.page(query, start, forwards=True)
        if not back:
            return here
        earlier = logs.page(replace(query, limit=back), start, forwards=False)
        return msgspec.structs.replace(
            here,
            lines=earlier.lines + here.lines,
            before=earlier.before,
            first=earlier.first,
            bytes_read=earlier.bytes_read + here.bytes_read,
        )


def page_from(paths: RunPaths, query: LogQuery, cursor: Cursor, forwards: bool) -> LogPage:
    """Returns the page after, or before, a cursor. A stream that the cursor does not name is new: it begins at 0.

    Args:
        paths: the run.
        query: which lines.
        cursor: of another page of the same query.
        forwards: after, or before.
    """
    with _opened(paths, query.selector) as logs:
        start = {name: min(max(0, cursor.get(name, 0)), log.size) for name, log in logs.files.items()}
        return logs.page(query, start, forwards=forwards)


@dataclass
class _Logs:
    files: dict[str, LogFile]
    streams: list[Stream]
    damage: list[str]

    def page(self, query: LogQuery, start: Cursor, *, forwards: bool) -> LogPage:
        """Merges the files from their places on."""
        budget = ReadBudget(SEARCH_BYTES)
        needle = query.text.lower()
        heads = {name: _Head(log, start[name], budget, needle, forwards=forwards) for name, log in self.files.items()}
        found: list[LogRecord] = []
        while len(found) < query.limit:
            if any(head.starved for head in heads.values()):
                break
            ready = [head for head in heads.values() if head.record is not None]
            if not ready:
                break
            # Of lines with one time the first stream's comes first, whichever way the page is read.
            chosen = min(ready, key=lambda h: h.t) if forwards else max(reversed(ready), key=lambda h: h.t)
            found.append(chosen.take())
        reached = {name: head.cursor for name, head in heads.items()}
        at_end = all(head.finished for head in heads.values())
        if not forwards:
            found.reverse()
        return LogPage(
            lines=found,
            before=start if forwards else reached,
            after=reached if forwards else start,
            first=at_end if not forwards else not any(start.values()),
            last=at_end if forwards else all(start[name] >= log.size for name, log in self.files.items()),
            streams=self.streams,
            bytes_read=budget.spent,
            damage=self.damage,
        )


class _Head:
    """The next line of one file that the query selects.

    Attributes:
        record: it; None at the end, or when the budget is spent.
        t: its time; a damaged line has that of the line before it.
    """

    def __init__(self, log: LogFile, at: int, budget: ReadBudget, needle: str, *, forwards: bool) -> None:
        self._log = log
        self._forwards = forwards
        self._needle = needle
        quick = needle.encode() if needle.isascii() else b""
        self._lines = log.lines(at, budget, quick, forwards=forwards)
        self._end = log.size if forwards else 0
        log.position = at
        self.record: LogRecord | None = None
        self.t = float("-inf") if forwards else float("inf")
        self._next()

    def _next(self) -> None:
        self.record = None
        for record in self._lines:
            if not self._needle or self._needle in record.text.lower():
                self.record = record
                self.t = self.t if record.t is None else record.t
                return

    def take(self) -> LogRecord:
        """Returns the line and goes on to the next one."""
        record = self.record
        assert record is not None
        self._next()
        return record

    @property
    def finished(self) -> bool:
        """No further line is there."""
        return self.record is None and self._log.position == self._end

    @property
    def starved(self) -> bool:
        """There may be a further line, but the budget is spent."""
        return self.record is None and self._log.position != self._end

    @property
    def cursor(self) -> int:
        """Where the next page goes on."""
        if self.record is None:
            return self._log.position
        return self.record.at if self._forwards else self.record.at + self.record.size


@contextlib.contextmanager
def _opened(paths: RunPaths, selector: Selector) -> Iterator[_Logs]:
    """Opens the selected logs. One that cannot be read is left out and named in `damage`."""
    streams = log_streams(paths)
    files: dict[str, LogFile] = {}
    damage: list[str] = []
    try:
        for stream in streams:
            if selector.matches(stream):
                path = paths.log(stream)
                try:
                    files[str(stream)] = LogFile(path, stream)
                except OSError as error:
                    damage.append(f"{path}: cannot be read: {error.strerror or error}")
        yield _Logs(files, streams, damage)
    finally:
        for log in files.values():
            log.close()
