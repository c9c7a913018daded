"""Reads one log file in pieces, from any place in it, forwards or backwards, without reading the whole.

The lines of a file are in the order of time (one writer, and its clock), so a moment is found by bisection over bytes.
A line is cut at `LINE_BYTES`, and its record has the number of bytes left out. Terminal control sequences are removed.
"""

from __future__ import annotations

import bisect
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.record_files import LINE_BYTES as LONGEST
from headrace.record_files import open_record
from headrace.runs.log_lines import KINDS, parse_line
from headrace.runs.run_paths import Stream

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
