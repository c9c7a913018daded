"""Copies the record of a run from its segments into a run's directory, which every command reads; again and again.

    run.json, events/, metrics/, logs/ ...     as in the directory of the run itself
    copied.json                                `Copied`: where the record is, and how far the copy has come

Only what is new is asked for: one request for the writers, one for the new segments of each, and one for each of those;
where many are new, one for each bundle of them.
Files are only appended to, and the offsets of the pieces say what is there already. So a copy that breaks off at any
instant goes on, and several processes may keep one copy up to date, one after the other (`flock`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from headrace.errors import RecordDamaged, StorageError, UsageError
from headrace.held_file import alone_in
from headrace.own_runs import enter_run, require_started_here
from headrace.private_folders import make_folders, write_atomically
from headrace.record_files import read_json
from headrace.runs.record_pieces import PieceMissing, take_piece
from headrace.runs.run_paths import RunPaths
from headrace.runs.segments import (
    COUNT,
    ObjectStore,
    bundles_place,
    decode,
    in_bundles,
    joined,
    number_of,
    segment_name,
    segments_of,
    writers_place,
)
from headrace.runs.store import COPIED, read_header

HEADER = "run.json"
ELSEWHERE = "choose another folder of runs: --into DIR"
AT_ONCE = 8  # segments or bundles that are read at the same time, and kept in memory


class WriterCursor(msgspec.Struct):
    """How far the segments of one writer are copied.

    Attributes:
        name: of the last segment; empty before the first.
        t: when that was made, seconds since the epoch.
        last: it was the writer's last one.
    """

    name: str = ""
    t: float = 0.0
    last: bool = False


class Copied(msgspec.Struct):
    """copied.json.

    Attributes:
        place: of the run's record.
        writers: by name.
        leader: the writer that has the run's header, and the last word.
        sizes: file to how many bytes of it are copied; none of a copy that an older headrace has begun.
    """

    place: str
    leader: str
    writers: dict[str, WriterCursor] = {}
    sizes: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the run has finished and everything of it is copied."""
        return self.leader in self.writers and self.writers[self.leader].last

    @property
    def t(self) -> float:
        """When the newest copied segment was made, seconds since the epoch; 0 before the first."""
        return max((cursor.t for cursor in self.writers.values()), default=0.0)


_DECODER = msgspec.json.Decoder(Copied)


def read_copied(paths: RunPaths) -> Copied | None:
    """Returns where a copy comes from; None when the directory is no copy.

    Raises:
        UsageError: that cannot be read.
    """
    try:
        return read_json(paths.root / COPIED, _DECODER)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{paths.root / COPIED} cannot be read: {error}", "remove the copy and fetch it again"
        ) from error


def open_copy(store: ObjectStore, run_id: str, place: str, runs: Path, entered: bool = False) -> RunPaths:
    """Returns the directory of a run's copy. A new one appears in one step, with the run's header in it.

    Args:
        store: where the record is.
        run_id, place: of the run (`find_record`).
        runs: directory of runs.
        entered: a new copy is entered among this user's runs, one that is there must be; see `own_runs`.

    Raises:
        UsageError: the directory is there and is no copy of that record or somebody else's, or cannot be made.
        StorageError: the record cannot be read, or has no header yet.
    """
    paths = RunPaths(runs.absolute() / run_id)
    if not paths.root.exists():
        _make(store, paths, place, entered)
    copied = read_copied(paths)
    if copied is None:
        what = (
            "the record itself, and no copy" if _is_record(paths) else "there already, and is neither a copy nor a run"
        )
        raise UsageError(f"{paths.root} is {what}", ELSEWHERE)
    if copied.place != place:
        raise UsageError(f"{paths.root} is a copy of {copied.place}", ELSEWHERE)
    if entered:
        require_started_here(paths.root, "nothing is added to a copy of somebody else's")
    return paths


def _is_record(paths: RunPaths) -> bool:
    try:
        return read_header(paths).run_id == paths.id
    except (OSError, msgspec.DecodeError):  # something else has that name
        return False


def _make(store: ObjectStore, paths: RunPaths, place: str, entered: bool) -> None:
    for writer in store.folders(writers_place(place)):
        folder = writers_place(place, writer)
        for name in store.names(folder)[:1]:
            header, pieces = decode(store.read(joined(folder, name)), joined(folder, name))
            for piece, data in zip(header.pieces, pieces, strict=True):
                if piece.path == HEADER:
                    _appear(paths, Copied(place, writer), bytes(data), entered)
                    return
    raise StorageError(f"{place} has no header of a run yet", "try again in some seconds")


def _appear(paths: RunPaths, copied: Copied, header: bytes, entered: bool) -> None:
    runs = paths.root.parent
    staging = runs / f".{paths.id}.{os.getpid()}"
    try:
        make_folders(runs)
        staging.mkdir(mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{runs} is not a folder", ELSEWHERE) from error
    except OSError as error:
        raise UsageError(f"{runs} cannot be written: {error.strerror}", ELSEWHERE) from error
    try:
        (staging / COPIED).write_bytes(msgspec.json.encode(copied))
        (staging / HEADER).write_bytes(header)
        if entered:
            enter_run(staging)
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            staging.rename(paths.root)
    except OSError:
        if not paths.root.exists():  # else another process has made it meanwhile
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class RecordCopy:
    """A copy that is brought up to date.

    Args:
        store: where the record is; used by several threads.
        paths: the copy (`open_copy`).

    Attributes:
        paths: as given.
        segments: how many this object has copied.
        bytes: of the files' bytes that it has added.
    """

    def __init__(self, store: ObjectStore, paths: RunPaths) -> None:
        self._store = store
        self.paths = paths
        self.segments = 0
        self.bytes = 0

    def update(self) -> Copied:
        """Copies what is new. Returns how far the copy has come.

        Raises:
            StorageError: the record cannot be read now.
            RecordDamaged: a segment is missing, or is none; everything before it is copied.
            OSError: the copy cannot be written.
        """
        with alone_in(self.paths.root):
            copied = read_copied(self.paths)
            if copied is None:
                raise UsageError(f"{self.paths.root} is no copy of a record")
            if self._lost(copied):
                copied.writers.clear()
            try:
                self._update_all(copied)
            except PieceMissing:
                copied.writers.clear()  # all segments are read once more; what is there is dropped
                try:
                    self._update_all(copied)
                except PieceMissing as behind:
                    raise RecordDamaged(
                        f"{behind} of {copied.place} is missing", "what was stored before it is copied"
                    ) from None
            return copied

    def _lost(self, copied: Copied) -> bool:
        """Returns whether somebody removed a file of the copy, or a part of it."""
        for name, copied_size in copied.sizes.items():
            try:
                if (self.paths.root / name).stat().st_size < copied_size:
                    return True
            except FileNotFoundError:
                return True
        return False

    def _update_all(self, copied: Copied) -> None:
        for writer in self._store.folders(writers_place(copied.place)):
            self._update(copied, writer)

    def _update(self, copied: Copied, writer: str) -> None:
        cursor = copied.writers.setdefault(writer, WriterCursor())
        folder = writers_place(copied.place, writer)
        names = self._store.names(folder, cursor.name)
        there, missing = _without_gap(number_of(cursor.name), names)
        if missing:  # a listing may have begun before that segment was there, and ended after the next one was
            there, missing = _without_gap(number_of(cursor.name), self._store.names(folder, cursor.name))
        for segments in read_segments(self._store, folder, there, cursor.name):
            for name, data in segments:
                self._take(copied, cursor, name, data, joined(folder, name))
            write_atomically(self.paths.root / COPIED, msgspec.json.encode(copied))
        if missing:
            raise RecordDamaged(
                f"{joined(folder, segment_name(missing, '*'))} is missing: what was stored after it is not copied",
                "somebody removed it, or a rule of the bucket did; see `headrace logs` for what is before it",
            )

    def _take(self, copied: Copied, cursor: WriterCursor, name: str, data: bytes, uri: str) -> None:
        """Adds a segment to the copy."""
        header, pieces = decode(data, uri)
        for piece, content in zip(header.pieces, pieces, strict=True):
            self.bytes += take_piece(self.paths.root, piece, content)
            end = (piece.offset or 0) + piece.size
            copied.sizes[piece.path] = end if piece.offset is None else max(end, copied.sizes.get(piece.path, 0))
        cursor.name, cursor.t, cursor.last = name, header.t, header.last
        self.segments += 1


def read_segments(
    store: ObjectStore, folder: str, names: Sequence[str], after: str = ""
) -> Iterator[list[tuple[str, bytes]]]:
    """Yields segments of a writer in order, names and bytes: some at a time, which are read side by side.

    Args:
        store: where they are; used by several threads.
        folder: of the writer.
        names: of the segments, sorted, their numbers without a gap.
        after: name of the segment before them; empty when they are the first.

    Raises:
        StorageError: one cannot be read now.
        RecordDamaged: a bundle is none.
    """
    bundles = store.names(bundles_place(folder), after) if len(names) >= COUNT else ()
    chosen = in_bundles(names, bundles)
    with ThreadPoolExecutor(AT_ONCE, "headrace-copy") as pool:
        for begin in range(0, len(chosen), AT_ONCE):
            read = pool.map(partial(_read, store, folder), chosen[begin : begin + AT_ONCE])
            yield [segment for segments in read for segment in segments]


def _read(store: ObjectStore, folder: str, chosen: tuple[str, bool]) -> list[tuple[str, bytes]]:
    """Returns the names and the bytes of one segment, or of those of a bundle."""
    name, bundle = chosen
    if not bundle:
        return [(name, store.read(joined(folder, name)))]
    uri = joined(bundles_place(folder), name)
    return segments_of(store.read(uri), uri)


def _without_gap(number: int, names: Sequence[str]) -> tuple[Sequence[str], int]:
    """Returns the names up to the first gap, and the number that is missing there; 0 when none is.

    Args:
        number: of the segment before the first name.
        names: sorted; a number that stands twice is no gap.

    >>> _without_gap(2, ["0000000003-aa", "0000000003-bb", "0000000005-aa"])
    (['0000000003-aa', '0000000003-bb'], 4)
    """
    for index, name in enumerate(names):
        if number_of(name) > number + 1:
            return names[:index], number + 1
        number = max(number, number_of(name))
    return names, 0
