"""What brings the record of a run on a platform home: one process at a time, each thing once.

* Any command may refresh any run at any time: `alone` lets one process do it.
* What the platform knows are events in a file of their own, ``events/platform.jsonl``. `platform_news` lets one process
  at a time compare what the platform says with what was written, and add to it.
* A record that is stored elsewhere is copied here, and what is new of the copy comes into the run's own (`bring_new`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from headrace.record_files import decode_record
from headrace.runs import Cause, Event, EventWriter, RunPaths, Status
from headrace.runs.events import RunFinished, SecondaryStatus, StatusChanged
from headrace.runs.reader import Run
from headrace.runs.record_pieces import NewPieces, known_here, take_piece
from headrace.runs.run_paths import ENGINE
from headrace.runs.segments import EVENTS, Piece
from headrace.runs.state import last_word, run_finished

LOCK = "fetch.lock"  # below the run's engine directory


@contextlib.contextmanager
def alone(paths: RunPaths, wait: bool = False, lock_file: str = LOCK) -> Iterator[bool]:
    """Lets one process at a time fetch the record of a run. Yields whether it is this one.

    Args:
        paths: the run.
        wait: until nobody else does.
        lock_file: below the run's engine directory; another one for what else one process at a time does.

    Raises:
        OSError: the run's directory cannot be written.
    """
    paths.engine.mkdir(exist_ok=True)
    lock = os.open(paths.engine / lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


WRITER = "platform"  # name of the event file
OWN_EVENTS = (f"{EVENTS}/{WRITER}.jsonl",)  # of a record that is brought here: this machine writes one of its own
LEADERS = f"{EVENTS}/{ENGINE}.jsonl"  # what the supervisor of the leader writes
NOTHING: Mapping[str, int] = {}
_END = msgspec.json.Decoder(RunFinished)
NEWS_LOCK = "platform.lock"  # there too


class PlatformNews:
    """What is known of a run while the lock is held; see `platform_news`.

    Args:
        run: the run.
        writer: the file of the platform's events.

    Attributes:
        events: all events of the run, of every writer, in the order of time.
    """

    def __init__(self, run: Run, writer: EventWriter) -> None:
        self.events: list[Event] = run.events()
        self._writer = writer

    @property
    def finished(self) -> bool:
        """Whether the record holds the end of the run."""
        return last_word(self.events) is not None

    @property
    def last_status(self) -> SecondaryStatus | None:
        """In which part of its life the run is, as the record has it."""
        return next((old.status for old in reversed(self.events) if isinstance(old, StatusChanged)), None)

    def add(self, event: Event) -> bool:
        """Writes an event, unless the run has ended or one that differs only in its time was written before.

        Returns:
            Whether it was written.
        """
        if self.finished or any(msgspec.structs.replace(old, t=event.t) == event for old in self.events):
            return False
        self._write(event)
        return True

    def status(self, status: SecondaryStatus, message: str, at: float) -> bool:
        """Writes in which part of its life the run is, unless the record says that already, or something later.

        Args:
            status: which part.
            message: why, in words.
            at: when the platform was asked, seconds since the epoch: what has happened since is newer.

        Returns:
            As `add` does.
        """
        last = next((old for old in reversed(self.events) if isinstance(old, StatusChanged)), None)
        known = last is not None and (last.t > at or (last.status, last.message) == (status, message))
        if self.finished or known:
            return False
        self._write(StatusChanged(t=at, status=status, message=message))
        return True

    def behind_end(self, event: Event) -> None:
        """Writes what has become known after the end of the run, once. It changes nothing about how the run ended."""
        if not any(msgspec.structs.replace(old, t=event.t) == event for old in self.events):
            self._write(event)

    def end(self, status: Status, cause: Cause | None) -> bool:
        """Writes the last word on a run that can write it no more itself. Returns as `add` does."""
        return self.add(run_finished(status, cause))

    def _write(self, event: Event) -> None:
        self._writer.write(event)
        self.events.append(event)


@contextmanager
def platform_news(paths: RunPaths) -> Iterator[PlatformNews]:
    """Lets one process at a time write what the platform of a run knows.

    Args:
        paths: the run.

    Raises:
        OSError: the run's directory cannot be written.
    """
    with alone(paths, wait=True, lock_file=NEWS_LOCK), EventWriter(paths.events(WRITER)) as writer:
        yield PlatformNews(Run(paths), writer)


def end_run(paths: RunPaths, status: Status, cause: Cause | None) -> bool:
    """Writes the last word on a run that can write it no more itself. Returns as `PlatformNews.add`. Raises OSError."""
    with platform_news(paths) as news:
        return news.end(status, cause)


def bring_new(
    copy: RunPaths,
    paths: RunPaths,
    whole: Collection[str],
    last: bool,
    until: int | None = None,
    before: Mapping[str, int] = NOTHING,
) -> None:
    """Brings what is new in a copy of a record, which was fetched from where it is stored, into the record here.

    Args:
        copy: the copy.
        paths: the run.
        whole: files that are brought as a whole.
        last: nobody writes to the copy any more.
        until: place in the leader's events of the copy behind which nothing is brought.
        before: how much the growing files here held when the copy began.

    Raises:
        OSError: the record here cannot be written.
    """
    new, more = NewPieces(copy, whole, OWN_EVENTS), True
    while more:
        batch, more = new.next(known_here(paths, whole, OWN_EVENTS, before), last)
        kept = [each for piece, data in batch if (each := _up_to(piece, data, until)) is not None]
        more = more and bool(kept)
        for piece, data in kept:
            offset = None if piece.offset is None else piece.offset + before.get(piece.path, 0)
            take_piece(paths.root, msgspec.structs.replace(piece, offset=offset), data)


def _up_to(piece: Piece, data: bytes, limit: int | None) -> tuple[Piece, bytes] | None:
    """Returns what of a piece stands before a place in the leader's events; None when nothing does."""
    if limit is None or piece.path != LEADERS or piece.offset is None or piece.offset + piece.size <= limit:
        return piece, data
    kept = data[: max(0, limit - piece.offset)]
    return (msgspec.structs.replace(piece, size=len(kept)), kept) if kept else None


def is_end(line: bytes) -> bool:
    """Tells whether a line of an event file is the end of a run."""
    try:
        decode_record(_END, line)
    except msgspec.DecodeError:
        return False
    return True
