"""Brings the record of a run on SageMaker to this machine, from the segments that its leader writes in S3.

The segments are copied into a folder below the run's engine directory, as `headrace fetch` does, and what is new of the
copy comes into the run's own record. The end of the run waits: a run is over when the service has stored its model.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil

import msgspec

from headrace.engines.platform_news import WRITER
from headrace.instance.storage import Store
from headrace.runs import Run, RunPaths
from headrace.runs.events import RunFinished
from headrace.runs.record_pieces import Known, NewPieces, digest_of, take_piece
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import EVENTS, GROWING, Piece, joined, writers_place

FOLDER = "stored"  # below the run's engine directory: the copy of what is stored
PLAN = "plan.json"  # the leader knows which hosts the service has assigned to which group
LEADERS = f"{EVENTS}/engine.jsonl"  # what the supervisor of the leader writes
NOT_TAKEN = (f"{EVENTS}/{WRITER}.jsonl",)  # this machine writes one of its own
_END = msgspec.json.Decoder(RunFinished)


def bring_stored(paths: RunPaths, place: str, store: Store, *, end: bool) -> RunFinished | None:
    """Brings what is new. To be called by one process at a time.

    Args:
        paths: the run.
        place: ``s3://`` place below which runs have their records.
        store: where it is.
        end: the end of the run comes, too, if it is there.

    Returns:
        The end of the run, if it is stored.

    Raises:
        StorageError, RecordDamaged: it cannot be read now.
        OSError: the record here cannot be written.
    """
    uri = joined(place.rstrip("/"), paths.id)
    if not store.folders(writers_place(uri)):
        return None
    copy = open_copy(store, paths.id, uri, paths.engine / FOLDER)
    RecordCopy(store, copy).update()
    word = next((event for event in Run(copy).events() if isinstance(event, RunFinished)), None)
    new = NewPieces(copy, (PLAN,), NOT_TAKEN)
    while True:
        known = _known_here(paths)
        batch, more = new.next(known, last=end and word is not None)
        kept = batch if end else [each for piece, data in batch if (each := _without_end(piece, data)) is not None]
        for piece, data in kept:
            take_piece(paths.root, piece, data)
        if not more or not kept:
            return word


def forget_copy(paths: RunPaths) -> None:
    """Removes the copy: everything of it is in the run's record."""
    shutil.rmtree(paths.engine / FOLDER, ignore_errors=True)


def _known_here(paths: RunPaths) -> Known:
    """Returns how much of a run's record is on this machine."""
    known = Known()
    for folder, depth, ending in GROWING:
        for path in (paths.root / folder).glob("/".join(["*"] * depth)):
            if path.name.endswith(ending):
                known.sent[str(path.relative_to(paths.root))] = path.stat().st_size
    with contextlib.suppress(FileNotFoundError):
        known.digests[PLAN] = digest_of(paths.plan.read_bytes())
    return known


def _without_end(piece: Piece, data: bytes) -> tuple[Piece, bytes] | None:
    """Returns a piece without the end of the run; None when nothing is left."""
    if piece.path != LEADERS:
        return piece, data
    lines = itertools.takewhile(_is_no_end, data.splitlines(keepends=True))
    kept = b"".join(lines)
    return (msgspec.structs.replace(piece, size=len(kept)), kept) if kept else None


def _is_no_end(line: bytes) -> bool:
    try:
        _END.decode(line)
    except msgspec.DecodeError:
        return True
    return False
