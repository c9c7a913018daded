"""Brings the record of a run on SageMaker to this machine, from the segments that its leader writes in S3.

Every attempt that is submitted has a record of its own there. Here they are one: what an attempt writes stands behind
what the attempts before it have written.

The segments are copied into a folder below the run's engine directory, as `headrace fetch` does, and what is new of the
copy comes into the run's own record. The end of the run waits: a run is over when the service has stored its model.
"""

from __future__ import annotations

import contextlib
import shutil

import msgspec

from headrace.engines.platform_news import WRITER
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.instance.storage import Store
from headrace.record_files import decode_record
from headrace.runs import Run, RunPaths
from headrace.runs.events import RunFinished
from headrace.runs.lifecycle import last_word
from headrace.runs.record_pieces import NewPieces, known_here, take_piece
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import EVENTS, Piece, joined, writers_place

FOLDER = "stored"  # below the run's engine directory: the copy of what is stored
PLAN = "plan.json"  # the leader knows which hosts the service has assigned to which group
LEADERS = f"{EVENTS}/engine.jsonl"  # what the supervisor of the leader writes
NOT_TAKEN = (f"{EVENTS}/{WRITER}.jsonl",)  # this machine writes one of its own
_LINE = msgspec.json.Decoder(RunFinished)


def bring_stored(paths: RunPaths, ticket: ServiceTicket, store: Store, *, end: bool) -> RunFinished | None:
    """Brings what is new. To be called by one process at a time.

    Args:
        paths: the run.
        ticket: of the latest attempt.
        store: where its record is.
        end: the end of the run comes, too, if it is there.

    Returns:
        The end of the run, if it is stored.

    Raises:
        StorageError, RecordDamaged: it cannot be read now.
        OSError: the record here cannot be written.
    """
    uri = joined(ticket.record.rstrip("/"), paths.id)
    if not store.folders(writers_place(uri)):
        return None
    copy = open_copy(store, paths.id, uri, paths.engine / FOLDER)
    RecordCopy(store, copy).update()
    word = last_word(Run(copy).events())
    limit = None if end or word is None else _place_of_end(copy)
    new = NewPieces(copy, (PLAN,), NOT_TAKEN)
    while True:
        known = known_here(paths, (PLAN,), NOT_TAKEN, ticket.before)
        batch, more = new.next(known, last=end and word is not None)
        kept = [each for piece, data in batch if (each := _up_to(piece, data, limit)) is not None]
        for piece, data in kept:
            offset = None if piece.offset is None else piece.offset + ticket.before.get(piece.path, 0)
            take_piece(paths.root, msgspec.structs.replace(piece, offset=offset), data)
        if not more or not kept:
            return word


def forget_copy(paths: RunPaths) -> None:
    """Removes the copy: everything of it is in the run's record."""
    shutil.rmtree(paths.engine / FOLDER, ignore_errors=True)


def _up_to(piece: Piece, data: bytes, limit: int | None) -> tuple[Piece, bytes] | None:
    """Returns what of a piece stands before a place in the leader's events; None when nothing does."""
    if limit is None or piece.path != LEADERS or piece.offset is None or piece.offset + piece.size <= limit:
        return piece, data
    kept = data[: max(0, limit - piece.offset)]
    return (msgspec.structs.replace(piece, size=len(kept)), kept) if kept else None


def _place_of_end(copy: RunPaths) -> int | None:
    """Returns where in the leader's events of a copy the end of the run stands; None when it is elsewhere."""
    place, found = 0, None
    with (copy.root / LEADERS).open("rb") as lines:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # another event
                decode_record(_LINE, line)
                found = place
            place += len(line)
    return found
