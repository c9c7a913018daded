"""Writers of a run's files: events, metrics and logs.

Each file has one writer. A record is one line and one `os.write` on a descriptor opened with O_APPEND, so a reader
never sees two records mixed, and a writer that is killed leaves at most one torn line at the end.

A writer never raises because of the disk: a program must not die because its log cannot be written. A record that
could not be written is counted in `lost`, and the error is given to `on_error` (once until it changes; by default
it goes to standard error). After a torn record the next one starts on a line of its own.

In a process that must go on while its file system stalls, `write_behind` leaves the writing to a thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.runs.events import Event
from headrace.runs.metric_records import Metric

LOG_CAP_BYTES = 256 << 20
"""Default cap of one log stream."""

BEHIND_BYTES = 32 << 20
"""What may wait to be written by `write_behind`; then the callers wait."""

OnError = Callable[[Path, OSError], None]


def report_on_stderr(path: Path, error: OSError) -> None:
    """Says on standard error that a file of the run cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        print(f"headrace: cannot write {path}: {error.strerror or error}", file=sys.stderr, flush=True)


class _Queue:
    """Calls that a thread makes, in order, however many files they are about.

    Attributes:
        active: the one that this process uses.
        error: what a call has raised last, which is no error of the disk; the others are made all the same.
    """

    active: ClassVar[_Queue | None] = None

    def __init__(self) -> None:
        self._calls: deque[tuple[int, Callable[[], object]]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self.error: Exception | None = None

    def put(self, size: int, call: Callable[[], object]) -> bool:
        with self._changed:
            if self._ended:
                self._changed.wait_for(lambda: not self._calls)
                return bool(call())
            self._changed.wait_for(lambda: self._bytes < BEHIND_BYTES)
            self._calls.append((size, call))
            self._bytes += size
            self._changed.notify_all()
        return True

    def work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._ended)
                if not self._calls:
                    return
                size, call = self._calls[0]
            try:
                call()
            except Exception as error:  # noqa: BLE001  (`write_behind` raises it)
                self.error = error
            with self._changed:
                self._calls.popleft()
                self._bytes -= size
                self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextlib.contextmanager
def write_behind() -> Iterator[None]:
    """All writers of this process only queue what they are given, up to `BEHIND_BYTES`: their callers do not wait for
    the file system, and are told that a record is written when it is queued. At the end all is in the files, and what
    a writer has raised, which is no error of the disk, is raised."""
    queue = _Queue.active = _Queue()
    thread = threading.Thread(target=queue.work, name="headrace-record", daemon=True)
    thread.start()
    try:
        yield
    finally:
        queue.end()
        thread.join()
        _Queue.active = None
    if queue.error is not None:
        raise queue.error


def _do(size: int, call: Callable[[], object]) -> bool:
    queue = _Queue.active
    return bool(call()) if queue is None else queue.put(size, call)


class AppendFile:
    """One append-only file: a record is one write.

    The file and its directories are made at the first record. Safe for use by several threads.

    Args:
        path: the file.
        on_error: told of an error, once until it changes or a write succeeds.

    Attributes:
        path: the file.
        size: bytes in the file, as far as this writer knows.
        lost: lines of records that could not be written.
        error: the error of the last record, None if it was written.
    """

    def __init__(self, path: str | os.PathLike[str], on_error: OnError = report_on_stderr) -> None:
        self.path = Path(path)
        self.size = 0
        self.lost = 0
        self.error: OSError | None = None
        self._on_error = on_error
        self._descriptor = -1
        self._torn = False
        self._closed = False
        self._lock = threading.RLock()

    def append(self, record: bytes, note: bytes = b"") -> bool:
        """Appends one record, which ends with a newline, behind a note. Returns whether they are in the file whole."""
        with self._lock:
            rest = memoryview(record)
            try:
                self.open()
                rest = memoryview(b"\n" * self._torn + note + record)
                while rest:
                    # A short write means a full disk or a size limit; the next write says which.
                    written = os.write(self._descriptor, rest)
                    self.size += written
                    self._torn = written > 0 and rest[written - 1] != 0x0A
                    rest = rest[written:]
            except OSError as error:
                self.lost += min(bytes(rest).count(b"\n"), record.count(b"\n"))
                known = self.error is not None and self.error.errno == error.errno
                self.error = error
                if not known:
                    self._on_error(self.path, error)
                return False
            self.error = None
            return True

    def open(self) -> None:
        """Opens the file if it is not open. Raises OSError."""
        if self._closed:
            raise OSError(0, "the writer is closed")
        if self._descriptor >= 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)
        try:
            self.size = os.fstat(descriptor).st_size
            # An earlier writer of this file may have been killed in the middle of a record.
            self._torn = self.size > 0 and os.pread(descriptor, 1, self.size - 1) != b"\n"
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def close(self) -> None:
        """Closes the file. Later records are lost and reported."""
        with self._lock:
            self._closed = True
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                try:
                    os.close(descriptor)
                except OSError as error:
                    self._on_error(self.path, error)


R = TypeVar("R")
W = TypeVar("W", bound="_RecordWriter[Any]")


class _RecordWriter(Generic[R]):
    """Writes msgspec records as JSON lines."""

    def __init__(self, path: str | os.PathLike[str], on_error: OnError = report_on_stderr) -> None:
        self._file = AppendFile(path, on_error)
        self._encoder = msgspec.json.Encoder()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        return self._file.lost

    def write(self, record: R) -> bool:
        """Appends one record. Returns False when it could not be written, which is reported."""
        line = self._encoder.encode(record) + b"\n"
        return _do(len(line), lambda: self._file.append(line))

    def write_after(self, make: Callable[[], R]) -> bool:
        """Appends the record that `make` returns when all is written that writers of this process were given before."""
        return _do(0, lambda: self._file.append(self._encoder.encode(make()) + b"\n"))

    def close(self) -> None:
        """Closes the file."""
        _do(0, self._file.close)

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventWriter(_RecordWriter[Event]):
    """Appends events to one file of a run (`RunPaths.events`)."""


class MetricWriter(_RecordWriter[Metric]):
    """Appends metrics to one file of a run (`RunPaths.metrics`)."""


class _Clock:
    """Formats times as ``2026-11-20T19:01:02.123456Z``, with one `strftime` a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def format(self, t: float) -> bytes:
        microseconds = int(t * 1_000_000)
        second, fraction = divmod(microseconds, 1_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{fraction:06d}Z".encode()


class LogWriter:
    """Appends the output of one program to its log file (`RunPaths.log`).

    A line on disk is ``2026-11-20T19:01:02.123456Z o text``: o is standard output, e standard error, h a note by
    headrace. The bytes of the text are kept as they are. Beyond the cap lines are dropped and counted; the log says
    so when it happens and again, with the count, when it is closed. Lines lost to a disk error are counted, and the
    log says how many as soon as it can be written again.

    Args:
        path: the log file.
        cap_bytes: bytes after which lines are dropped; notes of headrace are still written.
        on_error: told of disk errors.

    Attributes:
        dropped_lines: lines dropped because of the cap.
        dropped_bytes: their bytes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        cap_bytes: int = LOG_CAP_BYTES,
        on_error: OnError = report_on_stderr,
    ) -> None:
        self.cap_bytes = cap_bytes
        self.dropped_lines = 0
        self.dropped_bytes = 0
        self._file = AppendFile(path, on_error)
        self._clock = _Clock()
        self._lock = threading.RLock()
        self._lost_told = 0
        self._last_error = ""
        self._closed = False

    @property
    def path(self) -> Path:
        """The log file."""
        return self._file.path

    @property
    def lost(self) -> int:
        """Lines that could not be written because of a disk error."""
        return self._file.lost

    def write_line(self, stream: str, line: bytes, t: float | None = None) -> bool:
        """Appends one line.

        Args:
            stream: ``o`` for standard output, ``e`` for standard error.
            line: the line, with or without its newline. Newlines inside make several lines.
            t: seconds since the epoch; now, if None.

        Returns:
            Whether the line is in the file. False when it was dropped (cap) or lost (disk error, which is reported).

        Raises:
            ValueError: if `stream` is not ``o`` or ``e``.
        """
        if stream not in {"o", "e"}:
            raise ValueError(f"a log stream is 'o' or 'e', not {stream!r}")
        now = time.time() if t is None else t
        return _do(len(line), lambda: self._write_line(stream, line, now))

    def _write_line(self, stream: str, line: bytes, t: float) -> bool:
        with self._lock:
            record = b"".join(self._records(stream, line, t))
            if self._full(len(record)):
                return False
            return self._append(record)

    def note(self, text: str, t: float | None = None) -> bool:
        """Appends a note by headrace itself; the cap does not hold for it."""
        now = time.time() if t is None else t
        return _do(len(text), lambda: self._note(text, now))

    def _note(self, text: str, t: float) -> bool:
        with self._lock:
            return self._append(b"".join(self._records("h", text.encode(errors="surrogateescape"), t)))

    def _records(self, kind: str, line: bytes, t: float) -> Iterator[bytes]:
        head = self._clock.format(t) + b" " + kind.encode() + b" "
        body = line[:-1] if line.endswith(b"\n") else line
        for part in body.split(b"\n"):
            yield head + part.removesuffix(b"\r") + b"\n"

    def _full(self, size: int) -> bool:
        if not self.dropped_lines:
            # The file may already hold something: its size counts. If it cannot be opened, the append reports it.
            with contextlib.suppress(OSError):
                self._file.open()
            if self._file.size + size <= self.cap_bytes:
                return False
            self._note(f"log cap of {self.cap_bytes} bytes reached: lines from here on are dropped", time.time())
        self.dropped_lines += 1
        self.dropped_bytes += size
        return True

    def _missing(self) -> bytes:
        """Returns the note on the lines lost since the last successful write, empty if there are none."""
        missing = self._file.lost - self._lost_told
        if not missing:
            return b""
        text = f"{missing} line{'s' if missing > 1 else ''} lost here: {self._last_error}"
        return b"".join(self._records("h", text.encode(), time.time()))

    def _append(self, record: bytes) -> bool:
        if self._file.append(record, self._missing()):
            self._lost_told = self._file.lost
            return True
        self._last_error = (self._file.error and self._file.error.strerror) or "write error"
        return False

    def close(self) -> None:
        """Writes how many lines were dropped or lost, if any, and closes the file."""
        _do(0, self._close)

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self.dropped_lines:
                text = f"{self.dropped_lines} lines ({self.dropped_bytes} bytes) dropped: log cap reached"
                self._note(text, time.time())
            elif self._file.lost > self._lost_told:
                self._append(b"")
            self._file.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
