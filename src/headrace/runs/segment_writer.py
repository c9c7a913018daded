"""Stores the growing record of a run as segments: reads the run's files, and never holds up who writes them.

What is stored already is known from a state file, and from the store itself when that is older or missing: a writer
that takes the place of one that was killed goes on behind the last byte that is there, without a gap. Memory is bounded
by one segment. A segment that could not be written is kept and tried again as it is: an object never changes.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.private_folders import write_atomically
from headrace.runs.record_pieces import Known, NewPieces
from headrace.runs.run_paths import RunPaths
from headrace.runs.segment_reader import read_segments
from headrace.runs.segments import (
    VERSION,
    Bundler,
    ObjectStore,
    SegmentHeader,
    bundles_place,
    decode,
    encode,
    joined,
    segment_name,
    writers_place,
)

_log = logging.getLogger("headrace.runs.segment_writer")


class Stored(Known):
    """What is stored: the state file.

    Attributes:
        number: of the last segment; 0 before the first.
        name: its name.
        last: that was the last one: the run has finished and all of it is stored.
    """

    number: int = 0
    name: str = ""
    last: bool = False

    def add(self, name: str, header: SegmentHeader) -> None:
        """Adds a segment that is stored."""
        self.name = max(self.name, name)
        self.number = max(self.number, header.number)
        self.last = header.last
        self.take(header.pieces)


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
        self._new = NewPieces(paths)
        self._bundler = Bundler()
        self._state_error = ""

    def store(self, last: bool = False) -> int:
        """Stores what is new.

        Args:
            last: the run has finished and nobody writes any more: everything is stored, also a torn last line.

        Returns:
            How many segments that took, bundles not counted; without news there is none.

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
            self._stored.add(segment.name, segment.header)
            self._pending = None
            self._remember(self._stored)
            self._bundle(segment)
            count += 1
            if segment.header.last or not (last or segment.full):
                return count

    def _bundle(self, segment: _Segment) -> None:
        """Stores a bundle when it is full. Nothing depends on it, so it is not tried again."""
        bundle = self._bundler.add(segment.name, segment.data)
        if bundle is None:
            return
        name, data = bundle
        try:
            self._store.write(data, joined(bundles_place(self.place), name))
        except HeadraceError as error:
            _log.warning(
                "the bundle %s is not stored: %s; who reads the record reads its segments", name, error.message
            )

    # --- what is stored --------------------------------------------------------------------------------------------

    def _resume(self) -> Stored:
        """Returns what is stored: what the state file says, and what the store has beyond it."""
        try:
            stored = _DECODER.decode(self._state.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):  # the store knows, and needs more requests to say it
            stored = Stored()
        for segments in read_segments(self._store, self.place, self._store.names(self.place, stored.name), stored.name):
            for name, data in segments:
                stored.add(name, decode(data, joined(self.place, name))[0])
        return stored

    def _remember(self, stored: Stored) -> None:
        try:
            write_atomically(self._state, msgspec.json.encode(stored))
            self._state_error = ""
        except OSError as error:
            if str(error) != self._state_error:
                self._state_error = str(error)
                _log.warning("%s cannot be written: %s; a later writer asks the store", self._state, error.strerror)

    # --- the next segment ------------------------------------------------------------------------------------------

    def _next(self, stored: Stored, last: bool) -> _Segment | None:
        """Returns a segment of what is new, None if nothing is."""
        pieces, full = self._new.next(stored, last)
        ends = last and not full
        if not pieces and (stored.last or not ends):
            return None
        number = stored.number + 1
        header = SegmentHeader(
            VERSION, self._paths.id, self._writer, number, time.time(), tuple(piece for piece, _ in pieces), ends
        )
        data = encode(header, [data for _, data in pieces])
        return _Segment(segment_name(number, self._token), header, data, full)
