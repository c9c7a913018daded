"""Stores the growing record of a run as segments: reads the run's files, and never holds up who writes them.

What is stored already is known from a state file, and from the store itself when that is older or missing: a writer
that takes the place of one that was killed goes on behind the last byte that is there, without a gap. Memory is bounded
by one segment. A segment that could not be written is kept and tried again as it is: an object never changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.runs.run_paths import RunPaths
from headrace.runs.segments import (
    EVENTS,
    GROWING,
    VERSION,
    WHOLE,
    ObjectStore,
    Piece,
    SegmentHeader,
    decode,
    encode,
    joined,
    segment_name,
    writers_place,
)
from headrace.runs.tail import Tree

SEGMENT_BYTES = 8 << 20
PIECE_BYTES = 1 << 20  # of one file in a segment, so that no file keeps the others waiting

_log = logging.getLogger("headrace.runs.segment_writer")


class Stored(msgspec.Struct):
    """What is stored: the state file.

    Attributes:
        number: of the last segment; 0 before the first.
        name: its name.
        sent: append-only file to the bytes of it that are stored.
        digests: whole file to the digest of what is stored.
        last: that was the last one: the run has finished and all of it is stored.
    """

    number: int = 0
    name: str = ""
    sent: dict[str, int] = {}
    digests: dict[str, str] = {}
    last: bool = False

    def take(self, name: str, header: SegmentHeader) -> None:
        """Adds a segment that is stored."""
        self.name = max(self.name, name)
        self.number = max(self.number, header.number)
        self.last = header.last
        for piece in header.pieces:
            if piece.offset is None:
                self.digests[piece.path] = piece.digest
            else:
                self.sent[piece.path] = max(self.sent.get(piece.path, 0), piece.offset + piece.size)


_DECODER = msgspec.json.Decoder(Stored)


def stored_to_end(state: Path) -> bool:
    """Returns whether a state file says that the run has finished and all of it is stored. Raises OSError."""
    try:
        return _DECODER.decode(state.read_bytes()).last
    except (FileNotFoundError, msgspec.DecodeError):  # the store knows
        return False


@dataclass(frozen=True)
class _Segment:
    name: str
    header: SegmentHeader
    data: bytes
    full: bool  # there was more than it could hold


class SegmentWriter:
    """The sequence of one writer. Not for several threads; there must be one at a time for a run and writer.

    Args:
        paths: the run's directory.
        store: where segments go.
        place: below which runs have their records.
        writer: name of the sequence.
        state: file that remembers what is stored.

    Attributes:
        place: where the segments are.
    """

    def __init__(self, paths: RunPaths, store: ObjectStore, place: str, writer: str, state: Path) -> None:
        self.place = writers_place(joined(place, paths.id), writer)
        self._paths = paths
        self._store = store
        self._writer = writer
        self._state = state
        self._token = secrets.token_hex(3)
        self._stored: Stored | None = None
        self._pending: _Segment | None = None
        self._looked: dict[str, tuple[int, int, int]] = {}  # whole file to what it was when it was last read
        self._trees = [(folder, Tree(paths.root / folder, depth, ending)) for folder, depth, ending in GROWING]
        self._files: dict[str, deque[Path]] = {folder: deque() for folder, _ in self._trees}
        self._state_error = ""

    def store(self, last: bool = False) -> int:
        """Stores what is new.

        Args:
            last: the run has finished and nobody writes any more: everything is stored, also a torn last line.

        Returns:
            How many segments that took; without news there is none.

        Raises:
            HeadraceError: a request failed. The next call goes on.
        """
        count = 0
        if self._stored is None:
            self._stored = self._resume()
        while True:
            segment = self._pending or self._next(self._stored, last)
            if segment is None:
                return count
            self._pending = segment
            self._store.write(segment.data, joined(self.place, segment.name))
            self._stored.take(segment.name, segment.header)
            self._pending = None
            self._remember(self._stored)
            count += 1
            if segment.header.last or not (last or segment.full):
                return count

    # --- what is stored --------------------------------------------------------------------------------------------

    def _resume(self) -> Stored:
        """Returns what is stored: what the state file says, and what the store has beyond it."""
        try:
            stored = _DECODER.decode(self._state.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):  # the store knows, and needs more requests to say it
            stored = Stored()
        for name in self._store.names(self.place, stored.name):
            uri = joined(self.place, name)
            stored.take(name, decode(self._store.read(uri), uri)[0])
        return stored

    def _remember(self, stored: Stored) -> None:
        temporary = self._state.with_name(f".{self._state.name}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.encode(stored))
            temporary.replace(self._state)
            self._state_error = ""
        except OSError as error:
            if str(error) != self._state_error:
                self._state_error = str(error)
                _log.warning("%s cannot be written: %s; a later writer asks the store", self._state, error.strerror)

    # --- the next segment ------------------------------------------------------------------------------------------

    def _next(self, stored: Stored, last: bool) -> _Segment | None:
        """Returns a segment of what is new, None if nothing is.

        The events stand behind everything else. At the end they wait until all else is stored: who reads
        `run_finished` has all that was written before.
        """
        grown: list[tuple[Piece, bytes]] = []
        left = SEGMENT_BYTES
        full = False
        # Events are looked at first, so that logs never keep them waiting, but at the end last.
        for folder, tree in self._trees if last else reversed(self._trees):
            files = self._files[folder]
            files.extend(tree.new())
            if last and full and folder == EVENTS:
                break
            for _ in range(len(files)):
                path = files[0]
                files.rotate(-1)  # who found no room is first in the next segment
                found, more = self._grown(stored, path, left, last)
                full = full or more
                if found is not None:
                    grown.append(found)
                    left -= found[0].size
        pieces = [*self._changed(stored), *(grown if last else reversed(grown))]
        ends = last and not full
        if not pieces and (stored.last or not ends):
            return None
        number = stored.number + 1
        header = SegmentHeader(
            VERSION, self._paths.id, self._writer, number, time.time(), tuple(piece for piece, _ in pieces), ends
        )
        data = encode(header, [data for _, data in pieces])
        return _Segment(segment_name(number, self._token), header, data, full)

    def _changed(self, stored: Stored) -> list[tuple[Piece, bytes]]:
        """Returns the whole files that are not stored as they are now."""
        found = []
        for name in WHOLE:
            path = self._paths.root / name
            try:
                status = path.stat()
                version = status.st_mtime_ns, status.st_size, status.st_ino
                if self._looked.get(name) == version:
                    continue
                data = path.read_bytes()
            except FileNotFoundError:  # not written yet
                continue
            self._looked[name] = version
            digest = hashlib.sha256(data).hexdigest()[:16]
            if stored.digests.get(name) != digest:
                found.append((Piece(name, len(data), None, digest), data))
        return found

    def _grown(self, stored: Stored, path: Path, room: int, last: bool) -> tuple[tuple[Piece, bytes] | None, bool]:
        """Returns the next piece of an append-only file, whole lines if it can be, and whether there is more of it."""
        name = str(path.relative_to(self._paths.root))
        sent = stored.sent.get(name, 0)
        try:
            left = path.stat().st_size - sent
        except FileNotFoundError:  # somebody removed it: what is stored stays
            return None, False
        if left <= 0:
            return None, False
        size = min(left, PIECE_BYTES, room)
        if not size:
            return None, True
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, sent)
        cut = data.rfind(b"\n") + 1
        if cut and not (last and size == left):
            data = data[:cut]
        elif not cut and size < min(left, PIECE_BYTES):
            return None, True  # the line has room in the next segment
        elif not cut and size < PIECE_BYTES and not last:
            return None, False  # the line is still being written
        return (Piece(name, len(data), sent), data), size < left
