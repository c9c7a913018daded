"""The pieces in which a record travels: what a copy of it does not have yet, and adding that to the copy.

A copy may be a sequence of segments in an object store, or a run's directory on another machine. How much of each file
it has is all that its other end must know: the files of a record only grow, or are replaced as a whole. Memory is
bounded by one batch of pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from headrace.private_folders import write_atomically
from headrace.record_files import open_record, read_record
from headrace.runs.run_paths import RunPaths
from headrace.runs.segments import EVENTS, GROWING, WHOLE, Piece
from headrace.runs.tail import Tree

BATCH_BYTES = 8 << 20
PIECE_BYTES = 1 << 20  # of one file in a batch, so that no file keeps the others waiting


class PieceMissing(Exception):
    """Bytes are missing before a piece: the copy has lost some since somebody looked how much it has."""


class Known(msgspec.Struct, omit_defaults=True):
    """How much of a record a copy has.

    Attributes:
        sent: append-only file to how many bytes of it are there.
        digests: whole file to the digest of what is there.
    """

    sent: dict[str, int] = {}
    digests: dict[str, str] = {}

    def take(self, pieces: Iterable[Piece]) -> None:
        """Adds pieces that are there now."""
        for piece in pieces:
            if piece.offset is None:
                self.digests[piece.path] = piece.digest
            else:
                self.sent[piece.path] = max(self.sent.get(piece.path, 0), piece.offset + piece.size)


def known_here(
    paths: RunPaths, whole: Collection[str] = WHOLE, left_out: Collection[str] = (), before: Mapping[str, int] = {}
) -> Known:
    """Returns how much of a record is in a run's directory, for one who sends what is new (`NewPieces`).

    Args:
        paths: the run's directory.
        whole: the files that are sent as a whole.
        left_out: append-only files that are not sent.
        before: bytes of append-only files that are no part of the record that is sent.
    """
    known = Known()
    for folder, depth, ending in GROWING:
        for path in Tree(paths.root / folder, depth, ending).new():
            name = str(path.relative_to(paths.root))
            if name not in left_out:
                known.sent[name] = path.stat().st_size - before.get(name, 0)
    for name in whole:
        with contextlib.suppress(FileNotFoundError):
            known.digests[name] = digest_of((paths.root / name).read_bytes())
    return known


class NewPieces:
    """Finds what of a run's record a copy does not have. Not for several threads.

    Args:
        paths: the run's directory, which may grow.
        whole: the files that are sent as a whole.
        left_out: append-only files that are not sent.
    """

    def __init__(self, paths: RunPaths, whole: Collection[str] = WHOLE, left_out: Collection[str] = ()) -> None:
        self._paths = paths
        self._whole = whole
        self._left_out = left_out
        self._looked: dict[str, tuple[int, int, int]] = {}  # whole file to what it was when it was last read
        self._trees = [(folder, Tree(paths.root / folder, depth, ending)) for folder, depth, ending in GROWING]
        self._files: dict[str, deque[Path]] = {folder: deque() for folder, _ in self._trees}

    def next(self, known: Known, last: bool) -> tuple[list[tuple[Piece, bytes]], bool]:
        """Returns a batch of what is new, at most BATCH_BYTES of the append-only files, and whether there is more.

        The events stand behind everything else. At the end they wait until all else is there: who reads
        `run_finished` has all that was written before.

        Args:
            known: what the copy has.
            last: the run has finished and nobody writes any more: torn last lines are sent too.
        """
        grown: list[tuple[Piece, bytes]] = []
        left = BATCH_BYTES
        full = False
        # Events are looked at first, so that logs never keep them waiting, but at the end last.
        for folder, tree in self._trees if last else reversed(self._trees):
            files = self._files[folder]
            files.extend(tree.new())
            if last and full and folder == EVENTS:
                break
            for _ in range(len(files)):
                path = files[0]
                files.rotate(-1)  # who found no room is first in the next batch
                found, more = self._grown(known, path, left, last)
                full = full or more
                if found is not None:
                    grown.append(found)
                    left -= found[0].size
        return [*self._changed(known), *(grown if last else reversed(grown))], full

    def _changed(self, known: Known) -> list[tuple[Piece, bytes]]:
        """Returns the whole files that the copy does not have as they are now."""
        found = []
        for name in self._whole:
            path = self._paths.root / name
            try:
                status = path.lstat()
                version = status.st_mtime_ns, status.st_size, status.st_ino
                if self._looked.get(name) == version or not stat.S_ISREG(status.st_mode):
                    continue
                data = read_record(path)
            except FileNotFoundError:  # not written yet
                continue
            self._looked[name] = version
            digest = digest_of(data)
            if known.digests.get(name) != digest:
                found.append((Piece(name, len(data), None, digest), data))
        return found

    def _grown(self, known: Known, path: Path, room: int, last: bool) -> tuple[tuple[Piece, bytes] | None, bool]:
        """Returns the next piece of an append-only file, whole lines if it can be, and whether there is more of it."""
        name = str(path.relative_to(self._paths.root))
        if name in self._left_out:
            return None, False
        sent = known.sent.get(name, 0)
        try:
            status = path.lstat()
        except FileNotFoundError:  # somebody removed it: what the copy has stays
            return None, False
        left = status.st_size - sent
        if left <= 0 or not stat.S_ISREG(status.st_mode):  # a link that a program has put there leads elsewhere
            return None, False
        size = min(left, PIECE_BYTES, room)
        if not size:
            return None, True
        descriptor = open_record(path)
        try:
            data = os.pread(descriptor, size, sent)
        finally:
            os.close(descriptor)
        cut = data.rfind(b"\n") + 1
        if cut and not (last and size == left):
            data = data[:cut]
        elif not cut and size < min(left, PIECE_BYTES):
            return None, True  # the line has room in the next batch
        elif not cut and size < PIECE_BYTES and not last:
            return None, False  # the line is still being written
        return (Piece(name, len(data), sent), data), size < left


def take_piece(root: Path, piece: Piece, content: bytes | memoryview) -> int:
    """Adds a piece to a copy. What the copy has already is dropped.

    Args:
        root: the copy's directory.
        piece: which part of which file; its path must be a record's (`headrace.runs.segments.is_recorded`).
        content: its bytes.

    Returns:
        How many bytes it has added to an append-only file.

    Raises:
        PieceMissing: the copy does not reach to where the piece begins.
        OSError: the copy cannot be written.
    """
    path = root / piece.path
    if piece.offset is None:
        write_atomically(path, content)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if piece.offset > size:
            raise PieceMissing(f"{piece.path} from byte {size} to {piece.offset}")
        new = memoryview(content)[size - piece.offset :]
        added = len(new)
        while new:
            new = new[os.write(descriptor, new) :]
        return added
    finally:
        os.close(descriptor)


def digest_of(data: bytes) -> str:
    """Returns the digest of a whole file, as pieces have it."""
    return hashlib.sha256(data).hexdigest()[:16]
