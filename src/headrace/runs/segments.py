"""The record of a run in an object store, as numbered segments: objects that are written once and never changed.

    <place>/<run id>/segments/<writer>/<number>-<token>

A writer has a sequence of its own, from 1; two writers never store the same file. A segment holds pieces of all files
of the run's directory that have grown: one line of JSON (`SegmentHeader`), then the bytes of the pieces. So there is
one request an interval, however many files there are. A piece is a part of an append-only file, with its offset, or the
whole of a small file that is replaced (`run.json`).

An object is there as a whole or not at all, so nobody reads half a segment. A number is written after the one before it
is there, so a missing number is a loss. A writer that was killed may have stored more than its successor knows, or may
still be storing it: its successor has another token, and may store the same bytes once more. The offsets tell: what a
reader has already is dropped, and an offset behind what it has is a gap.

Bundles of segments: many small segments once more in one object, so that a long record is read with few requests.

    <place>/<run id>/bundles/<writer>/<last segment's name>-<how many>     `BundleHeader` in one line, then the segments

A bundle is a shortcut and never the only place of anything: the segments stay, who knows no bundles reads those, and a
bundle that is missing changes nothing. It holds segments that one process stored one after the other, so it is as whole
as they are, and replaces in a reader's list whatever has their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from headrace.errors import RecordDamaged, RunNotFound
from headrace.record_files import decode_record
from headrace.runs.run_paths import ENGINE
from headrace.runs.store import job_name_of

SEGMENTS = "segments"
ATTEMPTS = "attempts"
WHOLE = ("job.yaml", "job.json", "request.json", "plan.json", "run.json")
"""The small files of a record that are replaced as a whole; run.json last, which makes a directory a run."""
EVENTS = "events"
GROWING = (("logs", 3, ".log"), ("metrics", 3, ".jsonl"), (ENGINE, 1, ".log"), (EVENTS, 1, ".jsonl"))
"""The append-only files: folder, path components below it, ending. Events last: they say that the rest is complete."""
VERSION = 1
_DIGITS = 10


class ObjectStore(Protocol):
    """As much of `headrace.instance.storage.Store` as segments need."""

    def names(self, uri: str, after: str = "") -> Sequence[str]:
        """Returns the names of the objects directly in a folder behind a name, sorted."""

    def folders(self, uri: str, beginning: str = "") -> Sequence[str]:
        """Returns the names of the folders directly in a folder that begin so, sorted."""

    def read(self, uri: str) -> bytes:
        """Returns a whole object."""

    def write(self, data: bytes, uri: str) -> None:
        """Writes an object, which is there as a whole or not at all."""


class _Header(msgspec.Struct, frozen=True):
    """The first line of an object of a record. `version`: `VERSION` of the writer."""

    version: int


Header = TypeVar("Header", bound=_Header)


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of one file.

    Attributes:
        path: the file, relative to the run's directory.
        size: bytes.
        offset: where in the file they stand; None when they are the whole of a file that is replaced.
        digest: of the bytes of a whole file.
    """

    path: str
    size: int
    offset: int | None = None
    digest: str = ""


class SegmentHeader(_Header, frozen=True, omit_defaults=True):
    """The first line of a segment.

    Attributes:
        run_id, writer, number: which segment of whom.
        t: when it was made, seconds since the epoch by the clock of the writer.
        pieces: what it holds, in the order of the bytes, and in the order in which a reader takes them.
        last: the run has finished, and with this segment everything of the writer is stored.
    """

    run_id: str
    writer: str
    number: int
    t: float
    pieces: tuple[Piece, ...]
    last: bool = False


_DECODER = msgspec.json.Decoder(SegmentHeader)


def segment_name(number: int, token: str) -> str:
    """Returns the name of a segment: names sort as numbers do.

    >>> segment_name(42, "1f2e3d")
    '0000000042-1f2e3d'
    """
    return f"{number:0{_DIGITS}d}-{token}"


def number_of(name: str) -> int:
    """Returns the number in a segment's name; 0 for the empty name, which stands before all.

    Raises:
        RecordDamaged: it is no such name.
    """
    digits = name[:_DIGITS]
    if name and not (len(digits) == _DIGITS and digits.isdecimal() and name[_DIGITS : _DIGITS + 1] == "-"):
        raise RecordDamaged(f"{name!r} is no name of a segment of a record", "is the place right?")
    return int(digits or 0)


def encode(header: SegmentHeader, pieces: Sequence[bytes]) -> bytes:
    """Returns a segment: its header and the bytes of its pieces."""
    return b"".join([msgspec.json.encode(header), b"\n", *pieces])


def header_and_rest(
    data: bytes, decoder: msgspec.json.Decoder[Header], uri: str, what: str
) -> tuple[Header, memoryview]:
    """Returns the first line of an object of a record, and the bytes behind it.

    Args:
        data: the whole object.
        decoder: of its first line.
        uri, what: where it was, and what it should be, for messages.

    Raises:
        RecordDamaged: it is something else, or one of a newer headrace.
    """
    line, _, _ = data.partition(b"\n")
    try:
        header = decode_record(decoder, bytes(line))
    except msgspec.DecodeError as error:
        raise RecordDamaged(f"{uri} is no {what}: {error}", "is the place right?") from error
    if header.version > VERSION:
        raise RecordDamaged(f"{uri} was written by a newer headrace", "install that version here, too")
    return header, memoryview(data)[len(line) + 1 :]


def decode(data: bytes, uri: str) -> tuple[SegmentHeader, list[memoryview]]:
    """Returns the header of a segment and the bytes of its pieces.

    Args:
        data: the whole object.
        uri: where it was, for messages.

    Raises:
        RecordDamaged: it is no segment, one of a newer headrace, or names a file that no record has.
    """
    header, rest = header_and_rest(data, _DECODER, uri, "segment of a record")
    if sum(piece.size for piece in header.pieces) != len(rest):
        raise RecordDamaged(f"{uri} holds {len(rest)} bytes of files, and not those that its first line names")
    found = []
    for piece in header.pieces:
        if not is_recorded(piece.path, whole=piece.offset is None) or piece.size < 0:
            raise RecordDamaged(f"{uri} names a file that no record has: {piece.path!r}")
        found.append(rest[: piece.size])
        rest = rest[piece.size :]
    return header, found


def is_recorded(path: str, whole: bool) -> bool:
    """Returns whether a relative path is one of a record's files. No other is ever written by a reader.

    >>> is_recorded("logs/dnn/algo-1/0.log", whole=False), is_recorded("logs/../../x/0.log", whole=False)
    (True, False)
    """
    if whole:
        return path in WHOLE
    folder, *below = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in below):
        return False
    return any((folder, len(below)) == (name, depth) and path.endswith(ending) for name, depth, ending in GROWING)


def joined(place: str, *names: str) -> str:
    """Returns a place below another."""
    return "/".join([place.rstrip("/"), *names])


def writers_place(run_place: str, writer: str = "") -> str:
    """Returns the folder of all writers of a run, or of one."""
    return joined(run_place, SEGMENTS, writer) if writer else joined(run_place, SEGMENTS)


def attempt_place(place: str, attempt: int) -> str:
    """Returns the place below which an attempt that has a record of its own stores it; the first is 1."""
    return place.rstrip("/") if attempt == 1 else joined(place, ATTEMPTS, str(attempt))


def find_record(store: ObjectStore, uri: str) -> tuple[str, str]:
    """Returns (run id, place) of a run's record: of that place, or of the newest run of the job that it names.

    Of a run whose attempts have records of their own it is the latest one.

    Args:
        store: where to look; four requests at most, and one for each further attempt that there is.
        uri: ``<place>/<run id>`` or ``<place>/<job name>``.

    Raises:
        RunNotFound: there is none.
        StorageError, UsageError: it cannot be listed.
    """
    parent, _, name = uri.rstrip("/").rpartition("/")
    lonely = parent.endswith(":/")  # a bucket has nothing beside it
    numbers = [] if lonely else [int(each) for each in store.folders(joined(parent, ATTEMPTS)) if each.isdecimal()]
    places = [attempt_place(parent, number) for number in sorted({1, *numbers}, reverse=True)]
    for place in places:
        if store.folders(writers_place(joined(place, name))):
            return name, joined(place, name)
    beside = [] if lonely else [(run, place) for place in places for run in store.folders(place, f"{name}-")]
    of_job = [(run, place) for run, place in beside if job_name_of(run) == name]
    if of_job:
        newest, place = max(of_job, key=lambda found: found[0][-20:])  # of equal ones the first: the latest attempt
        return newest, joined(place, newest)
    for folder in (uri.rstrip("/"), *([] if lonely else [parent])):
        runs = [run for run in store.folders(folder) if job_name_of(run) != run]
        if runs:
            break
    newest_first = sorted(runs, key=lambda run: run[-20:], reverse=True)
    known = (
        f"name one of the runs in {folder}: {', '.join(newest_first[:5])}" if runs else "write s3://BUCKET/PREFIX/RUN"
    )
    raise RunNotFound(f"{uri}: there is no record of a run", known)


BUNDLES = "bundles"
COUNT = 100  # segments of a bundle
MOST_BYTES = 8 << 20  # of a bundle, and kept in memory by the writer; larger segments are read as they are


class BundledSegment(msgspec.Struct, frozen=True):
    """One segment of a bundle.

    Attributes:
        name: of the segment.
        size: bytes.
    """

    name: str
    size: int


class BundleHeader(_Header, frozen=True):
    """The first line of a bundle.

    Attributes:
        segments: what it holds, in the order of the bytes; their numbers have no gap.
    """

    segments: tuple[BundledSegment, ...]


_BUNDLE_DECODER = msgspec.json.Decoder(BundleHeader)


def bundles_place(segments_place: str) -> str:
    """Returns the folder of the bundles of a writer, whose segments are in that folder.

    >>> bundles_place("s3://bucket/runs/j-1/segments/engine")
    's3://bucket/runs/j-1/bundles/engine'
    """
    run, _, writer = segments_place.rpartition(f"/{SEGMENTS}/")
    return f"{run}/{BUNDLES}/{writer}"


class Bundler:
    """Collects the segments that a writer has stored, until they are a bundle."""

    def __init__(self) -> None:
        self._segments: list[tuple[str, bytes]] = []
        self._bytes = 0

    def add(self, name: str, data: bytes) -> tuple[str, bytes] | None:
        """Takes a segment that is stored. Returns the name and the bytes of a bundle when it is time to store one."""
        self._segments.append((name, data))
        self._bytes += len(data)
        if self._bytes <= MOST_BYTES and len(self._segments) < COUNT:
            return None
        segments, few = self._segments, self._bytes <= MOST_BYTES
        self._segments, self._bytes = [], 0
        if not few:
            return None
        header = BundleHeader(VERSION, tuple(BundledSegment(each, len(content)) for each, content in segments))
        return f"{name}-{len(segments)}", b"".join(
            [msgspec.json.encode(header), b"\n", *(content for _, content in segments)]
        )


def segments_of(data: bytes, uri: str) -> list[tuple[str, bytes]]:
    """Returns the names and the bytes of the segments of a bundle.

    Args:
        data: the whole object.
        uri: where it was, for messages.

    Raises:
        RecordDamaged: it is no bundle, or one of a newer headrace.
    """
    header, rest = header_and_rest(data, _BUNDLE_DECODER, uri, "bundle of segments")
    numbers = [number_of(each.name) for each in header.segments]
    whole = sum(each.size for each in header.segments) == len(rest) and all(each.size >= 0 for each in header.segments)
    if not numbers or not whole or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise RecordDamaged(f"{uri} does not hold the segments that its first line names")
    found, begin = [], 0
    for each in header.segments:
        found.append((each.name, bytes(rest[begin : begin + each.size])))
        begin += each.size
    return found


def in_bundles(names: Sequence[str], bundles: Sequence[str]) -> list[tuple[str, bool]]:
    """Chooses what to read of a record: bundles where all that they hold is wanted, segments elsewhere.

    Args:
        names: of the segments that are wanted, sorted, their numbers without a gap.
        bundles: names of bundles, sorted.

    Returns:
        Names in the order in which they are read, and whether each is a bundle.

    >>> in_bundles(["0000000004-a", "0000000005-a", "0000000006-a", "0000000007-a"], ["0000000006-a-2"])
    [('0000000004-a', False), ('0000000006-a-2', True), ('0000000007-a', False)]
    """
    chosen: list[tuple[str, bool]] = []
    wanted = deque(names)
    for bundle in bundles:
        last, count = number_of(bundle), _count_of(bundle)
        first = last - count + 1
        if not count or not wanted or number_of(wanted[0]) > first or number_of(wanted[-1]) < last:
            continue
        while number_of(wanted[0]) < first:
            chosen.append((wanted.popleft(), False))
        while wanted and number_of(wanted[0]) <= last:
            wanted.popleft()
        chosen.append((bundle, True))
    return chosen + [(name, False) for name in wanted]


def _count_of(bundle: str) -> int:
    """How many segments a bundle has by its name; 0 when that is none of a bundle."""
    count = bundle.rpartition("-")[2]
    return int(count) if count.isdecimal() and bundle.count("-") == 2 else 0
