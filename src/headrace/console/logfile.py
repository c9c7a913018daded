"""One log file, read in pieces from any place in it, forwards or backwards, without reading the whole.

The lines of a file are in the order of time (one writer, and its clock), so a moment is found by bisection over bytes.
A line is cut at `LINE_BYTES`; how much was left out is said. Terminal control sequences are taken out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.runs import Stream
from headrace.runs.log_lines import parse_line

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
_KINDS = {"o": "stdout", "e": "stderr", "h": "headrace"}


class Record(msgspec.Struct, frozen=True):
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
        position: how far `forwards` or `backwards` has come: the end, or the beginning, of the last line looked at.
    """

    def __init__(self, path: Path, stream: Stream) -> None:
        self.stream = stream
        self._file: BinaryIO = path.open("rb", buffering=0)
        end = os.fstat(self._file.fileno()).st_size
        self.size = self._line_start(end)
        self.position = 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def forwards(self, at: int, budget: Budget, needle: bytes = b"") -> Iterator[Record]:
        """Yields the lines from a byte offset on, which is the beginning of a line.

        Args:
            at: where to begin.
            budget: is asked before every piece that is read.
            needle: lower-case ASCII; lines without it are passed over.
        """
        head, size = b"", 0  # of the line being read: its first bytes, and all its bytes so far
        position = self.position = at
        while position < self.size and (budget.left or self.position == at):  # one line at least
            chunk = self._read(position, min(CHUNK, self.size - position))
            budget.spend(len(chunk))
            begin = 0
            while (newline := chunk.find(b"\n", begin)) >= 0:
                size += newline + 1 - begin
                start = position + newline + 1 - size
                self.position = start + size
                line = _joined(head, chunk[begin:newline])
                if not needle or needle in line.lower():
                    yield self._record(line, start, size)
                head, size, begin = b"", 0, newline + 1
            head = _joined(head, chunk[begin:])
            size += len(chunk) - begin
            position += len(chunk)

    def backwards(self, at: int, budget: Budget, needle: bytes = b"") -> Iterator[Record]:
        """Yields the lines before a byte offset, which is the beginning of a line, the nearest first.

        Args:
            at: before where.
            budget: is asked before every piece that is read.
            needle: lower-case ASCII; lines without it are passed over.
        """
        end = self.position = min(at, self.size)
        while end > 0 and budget.left:
            begin = max(0, end - CHUNK)
            chunk = self._read(begin, end - begin)
            first = chunk.find(b"\n", 0, len(chunk) - 1) + 1 if begin else 0
            if begin and not first:  # one line that is longer than a piece
                begin = self._line_start(begin)
                chunk = self._read(begin, _KEPT) + b"\n"
                self.position = begin
                if not needle or needle in chunk.lower():
                    yield self._record(chunk[:-1], begin, end - begin)
                budget.spend(end - begin)
                end = begin
                continue
            budget.spend(len(chunk))
            stop = len(chunk)
            while stop > first:
                start = max(first, chunk.rfind(b"\n", first, stop - 1) + 1)
                self.position = begin + start
                line = chunk[start : stop - 1]
                if not needle or needle in line.lower():
                    yield self._record(line[:_KEPT], begin + start, stop - start)
                stop = start
            end = begin + first

    def seek(self, t: float) -> int:
        """Returns the byte offset of the first line at or after a time, or `size`; damaged lines may precede it."""
        low, high = 0, self.size  # lines that begin before low are earlier; the line at high is not
        while low < high:
            middle = self._line_start((low + high) // 2)
            after, when = self._time_from(middle, high)
            if when is not None and when < t:
                low = after
            else:
                high = middle
        return high

    def _time_from(self, at: int, end: int) -> tuple[int, float | None]:
        """Returns end and time of the first line with a time between two offsets; None if all are damaged."""
        while at < end:
            head = self._read(at, _STAMP_BYTES)
            at = self._line_end(at)
            try:
                return at, parse_line(self.stream, head.partition(b"\n")[0]).t
            except ValueError:
                continue
        return at, None

    def _line_start(self, at: int) -> int:
        """Returns the beginning of the line that holds a byte: what follows the last newline before it."""
        piece = 4096
        while at > 0:
            begin, piece = max(0, at - piece), CHUNK
            newline = self._read(begin, at - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            at = begin
        return 0

    def _line_end(self, at: int) -> int:
        while at < self.size:
            chunk = self._read(at, min(CHUNK, self.size - at))
            newline = chunk.find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at += len(chunk)
        return self.size

    def _read(self, at: int, count: int) -> bytes:
        return os.pread(self._file.fileno(), count, at)

    def _record(self, head: bytes, at: int, size: int) -> Record:
        where = self.stream
        try:
            line = parse_line(where, head)
        except ValueError:
            text, t, kind = head.decode("utf-8", "replace"), None, "damaged"
            long = size - 1 - LINE_BYTES
        else:
            text, t, kind = line.text, line.t, _KINDS[line.kind]
            long = size - 1 - _STAMP_BYTES - LINE_BYTES
        if long > 0:
            text = text.encode(errors="replace")[:LINE_BYTES].decode("utf-8", "ignore")
        return Record(t, where.group, where.host, where.name, kind, clean(text), max(0, long), at, size)


def _joined(head: bytes, more: bytes) -> bytes:
    """Returns what is kept of a line: its first bytes."""
    return head + more[: max(0, _KEPT - len(head))]


class Budget:
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
