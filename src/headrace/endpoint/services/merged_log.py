"""The log of one host as one stream of events whose order never changes, in a file that only grows.

The programs of a host write a log each. Here their lines are merged by time once, as they come, and kept: a client that
goes on from a token, or from the time of its last event, must never find a line before it that was not there. Times
never fall within the file. A line of the file is ``<time> <taken> <program> <offset> <text>``, times in milliseconds;
the offset is where the program's own log goes on, so that a new process goes on where this one ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from headrace.runs import RunPaths
from headrace.runs.log_file import LogRecord
from headrace.runs.log_lines import Selector
from headrace.runs.log_pages import MOST_LINES, Cursor, LogQuery, page_from
from headrace.runs.run_paths import AGENT, Stream

HOLD_SECONDS = 0.1
"""A line is taken when it is older: by then the other programs' lines of its time are on disk too."""
EVENT_BYTES = 256 << 10
_CHUNK = 1 << 16
_NOTE = "-"


class LogEvent(NamedTuple):
    """One event.

    Attributes:
        at: byte offset in the stream: its place, for ever.
        end: where the next one begins.
        timestamp: of the line, milliseconds since the epoch.
        ingested: when it was taken.
        message: the line.
    """

    at: int
    end: int
    timestamp: int
    ingested: int
    message: str


class MergedLog:
    """The stream of one host.

    Args:
        path: the file; it is made, with its folder.
        note: the stream's first line.
        begun: when the stream begins, seconds since the epoch.
    """

    def __init__(self, path: Path, note: str, begun: float) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._append([_line(int(begun * 1000), _NOTE, 0, note)])
        self._cursor, self._newest = self._read_cursor()

    def take(self, paths: RunPaths, host: str, final: bool) -> None:
        """Takes what is new in the logs of a host.

        Args:
            paths: the run.
            host: its name.
            final: nothing more will be written; else the newest lines are left for the next time.

        Raises:
            OSError: something cannot be read or written.
        """
        with self._lock:
            query = LogQuery(Selector(host=host), limit=MOST_LINES)
            more = True
            while more:
                limit = float("inf") if final else time.time() - HOLD_SECONDS
                page = page_from(paths, query, self._cursor, forwards=True)
                more = not page.last
                lines = []
                for record in page.lines:
                    if (record.t or 0.0) > limit:
                        more = False
                        break
                    stream = str(Stream(record.group, record.host, record.stream))
                    self._cursor[stream] = record.at + record.size
                    if record.stream != AGENT:
                        self._newest = max(self._newest, int((record.t or 0.0) * 1000))
                        lines.append(_line(self._newest, stream, record.at + record.size, _text(paths, record)))
                self._append(lines)
                more = more and bool(page.lines)

    def _append(self, lines: list[bytes]) -> None:
        if lines:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                with os.fdopen(descriptor, "ab") as file:
                    file.write(b"".join(lines))
            except OSError:
                self._cursor, self._newest = self._read_cursor()  # as far as it came
                raise

    def _cut(self) -> None:
        """Takes away the part of a line that a full disk, or the death of an earlier process, left at the end."""
        with self._path.open("r+b") as file:
            file.truncate(_line_start(file.fileno(), os.fstat(file.fileno()).st_size))

    def _read_cursor(self) -> tuple[Cursor, int]:
        self._cut()
        cursor: Cursor = {}
        newest = 0
        with self._path.open("rb") as file:
            for line in file:
                stamp, _, stream, offset, _ = line.split(b" ", 4)
                newest = int(stamp)
                if stream != _NOTE.encode():
                    cursor[unquote(stream.decode())] = int(offset)
        return cursor, newest

    @property
    def size(self) -> int:
        """Bytes of the stream so far; the token of its end."""
        return self._path.stat().st_size

    def times(self) -> tuple[int, int, int]:
        """Returns the times of the first and the last event, and when the last one was taken, in milliseconds."""
        first = next(self.events(0))
        last = next(self.events_before(self.size))
        return first.timestamp, last.timestamp, last.ingested

    def events(self, at: int) -> Iterator[LogEvent]:
        """Yields the events from an offset on, which is the beginning of one, to the end of now."""
        with self._path.open("rb") as file:
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                yield _event(at, line)
                at += len(line)

    def events_before(self, at: int) -> Iterator[LogEvent]:
        """Yields the events before an offset, the nearest first."""
        with self._path.open("rb") as file:
            while at > 0:
                begin = _line_start(file.fileno(), at - 1)
                yield _event(begin, os.pread(file.fileno(), at - begin, begin))
                at = begin

    def seek(self, timestamp: int) -> int:
        """Returns the offset of the first event at or after a time in milliseconds; the size, if there is none."""
        with self._path.open("rb") as file:
            number = file.fileno()
            low, high = 0, os.fstat(number).st_size
            while low < high:
                begin = _line_start(number, (low + high) // 2)
                end = _line_end(number, begin, high)
                if int(os.pread(number, 32, begin).split(b" ", 1)[0]) < timestamp:
                    low = end
                else:
                    high = begin
            return low

    def is_start(self, at: int) -> bool:
        """Tells whether an offset is the beginning of an event, or the end."""
        if not 0 <= at <= self.size:
            return False
        with self._path.open("rb") as file:
            return at == 0 or os.pread(file.fileno(), 1, at - 1) == b"\n"


def _line(stamp: int, stream: str, offset: int, text: str) -> bytes:
    where = quote(stream, safe="-[]/")
    kept = text.replace("\n", " ").encode(errors="replace")[:EVENT_BYTES]
    return f"{stamp} {int(time.time() * 1000)} {where} {offset} ".encode() + kept + b"\n"


def _event(at: int, line: bytes) -> LogEvent:
    stamp, taken, _, _, text = line.split(b" ", 4)
    return LogEvent(at, at + len(line), int(stamp), int(taken), text[:-1].decode("utf-8", "replace"))


def _text(paths: RunPaths, record: LogRecord) -> str:
    """Returns the whole of a line; a page has its first bytes only."""
    if not record.cut:
        return record.text
    path = paths.log(Stream(record.group, record.host, record.stream))
    with path.open("rb") as file:
        line = os.pread(file.fileno(), min(record.size, EVENT_BYTES + _CHUNK), record.at)
    return line.rstrip(b"\n").split(b" ", 2)[-1].decode("utf-8", "replace")


def _line_start(number: int, at: int) -> int:
    """Returns the beginning of the line that holds a byte."""
    while at > 0:
        begin = max(0, at - _CHUNK)
        newline = os.pread(number, at - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return 0


def _line_end(number: int, at: int, size: int) -> int:
    while at < size:
        chunk = os.pread(number, min(_CHUNK, size - at), at)
        newline = chunk.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(chunk)
    return size
