"""Pages of the logs of a run: some hundred lines of some streams, merged by time, from a moment or from where the last
page ended. Memory and time of an answer are bounded, whatever the length of the logs.

The lines of a file are in the order of time (one writer, and its clock), so a moment is found by bisection over bytes.
A line is cut at `LINE_BYTES`, and its record has the number of bytes left out. Terminal control sequences are removed.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.errors import UsageError
from headrace.record_files import LINE_BYTES as LONGEST
from headrace.record_files import open_record
from headrace.runs.log_lines import KINDS, Selector, parse_line, stream_of
from headrace.runs.run_paths import RunPaths, Stream
from headrace.runs.tail import Tree

LINE_BYTES = 4096
"""A line longer than this is cut."""
CHUNK = 64 << 10

_STAMP_BYTES = len("2026-11-20T19:01:02.123456Z o ")
_KEPT = LINE_BYTES + _STAMP_BYTES
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC: titles, links
    r"|\x1b[@-Z\\-_=>78]"  # two characters
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # control characters but tab and newline
    r"|[\u202a-\u202e\u2066-\u2069]"  # what turns the direction of a text around
)


class LogRecord(msgspec.Struct, frozen=True):
    """One line of a log, as `headrace logs --output json` has it, and where it lies.

    Attributes:
        t: seconds since the epoch; None for a damaged line.
        group, host, stream: whose line it is.
        kind: ``stdout``, ``stderr``, ``headrace``, or ``damaged`` for what has not the form of a log line.
        text: the line, without control sequences, at most `LINE_BYTES` bytes of it.
        cut: bytes of it that were left out.
        at: byte offset of the line in its file.
        size: bytes of the line in its file, with its newline.
    """

    t: float | None
    group: str
    host: str
    stream: str
    kind: str
    text: str
    cut: int
    at: int
    size: int


def clean(text: str) -> str:
    """Takes terminal control sequences out of a text.

    >>> clean("\\x1b[31mred\\x1b[0m, \\x1b]0;title\\x07plain")
    'red, plain'
    """
    return _CONTROL.sub("", text)


class LogFile:
    """The log of one program.

    Args:
        path: the file.
        stream: whose it is.

    Attributes:
        size: bytes of complete lines; what comes later is not read.
        position: how far `lines` has come: the end, or the beginning, of the last line that it looked at.
    """

    def __init__(self, path: Path, stream: Stream) -> None:
        self.stream = stream
        self._file: BinaryIO = os.fdopen(open_record(path), "rb", buffering=0)
        end = os.fstat(self._file.fileno()).st_size
        self.size = self._line_start(end)
        self.position = 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def lines(self, at: int, budget: ReadBudget, needle: bytes = b"", *, forwards: bool) -> Iterator[LogRecord]:
        """Yields the lines from a byte offset on, or those before it, the nearest first.

        Args:
            at: the beginning of a line, or `size`.
            budget: how much may be read. One piece is read in any case.
            needle: lower-case ASCII; lines without it are passed over.
            forwards: from the offset on, or before it.
        """
        at = self.position = min(at, self.size)
        end = self.size if forwards else 0
        while self.position != end and (budget.left or self.position == at):
            begin, stop, data = self._whole_lines(self.position, forwards=forwards)
            budget.spend(stop - begin)
            found = data.split(b"\n")
            for line in found if forwards else reversed(found):
                size = len(line) + 1 if len(found) > 1 else stop - begin
                self.position += size if forwards else -size
                if not needle or needle in line.lower():
                    yield self._record(line, self.position - size if forwards else self.position, size)

    def _whole_lines(self, at: int, *, forwards: bool) -> tuple[int, int, bytes]:
        """Reads a piece of whole lines that begins, or ends, at an offset.

        Returns:
            Where the piece begins and ends, and its bytes without the last newline. A line that is longer than a piece
            stands alone, with its first bytes only.
        """
        begin, end = (at, min(at + CHUNK, self.size)) if forwards else (max(0, at - CHUNK), at)
        data = self._read(begin, end - begin)
        if forwards:
            kept = data.rfind(b"\n") + 1
            if kept:
                return begin, begin + kept, data[: kept - 1]
            end = self._line_end(at)
        else:
            first = data.find(b"\n", 0, -1) + 1 if begin else 0
            if first or not begin:
                return begin + first, end, data[first:-1]
            begin = self._line_start(begin)
        return begin, end, self._read(begin, min(_KEPT, end - begin - 1))

    def seek(self, t: float) -> int:
        """Returns the byte offset of the first line at or after a time, or `size`; damaged lines may precede it."""
        return bisect.bisect_left(range(self.size), t, key=self._time_at)

    def _time_at(self, at: int) -> float:
        """Returns the time of the line that holds a byte, or of the next line that has one."""
        at = self._line_start(at)
        while at < self.size:
            try:
                return parse_line(self.stream, self._read(at, _STAMP_BYTES).partition(b"\n")[0]).t
            except ValueError:
                at = self._line_end(at)
        return math.inf

    def _line_start(self, at: int) -> int:
        """Returns the beginning of the line that holds a byte: what follows the last newline before it.

        A line that is longer than any of a record begins where it is as long.
        """
        piece, first = 4096, max(0, at - LONGEST)
        while at > first:
            begin, piece = max(0, at - piece), CHUNK
            newline = self._read(begin, at - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            at = begin
        return at

    def _line_end(self, at: int) -> int:
        """Returns the end of a line. One that is longer than any of a record ends where the file does."""
        last = min(self.size, at + LONGEST)
        while at < last:
            chunk = self._read(at, min(CHUNK, self.size - at))
            newline = chunk.find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at += len(chunk)
        return self.size

    def _read(self, at: int, count: int) -> bytes:
        return os.pread(self._file.fileno(), count, at)

    def _record(self, head: bytes, at: int, size: int) -> LogRecord:
        where = self.stream
        try:
            line = parse_line(where, head)
        except ValueError:
            text, t, kind = head.decode("utf-8", "replace"), None, "damaged"
            long = size - 1 - LINE_BYTES
        else:
            text, t, kind = line.text, line.t, KINDS[line.kind]
            long = size - 1 - _STAMP_BYTES - LINE_BYTES
        if long > 0:
            text = text.encode(errors="replace")[:LINE_BYTES].decode("utf-8", "ignore")
        return LogRecord(t, where.group, where.host, where.name, kind, clean(text), max(0, long), at, size)


class ReadBudget:
    """How many bytes may still be read for one answer.

    Attributes:
        left: whether any.
        spent: bytes read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.spent = 0

    @property
    def left(self) -> bool:
        """Whether there is any left."""
        return self.spent < self._limit

    def spend(self, count: int) -> None:
        """Says that so many bytes were read."""
        self.spent += count


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
