"""The record of a run whose leader's machine was lost, for the one that takes its place: from the record's store.

Only what grows is brought back; the files that are written once came with the machine. What a killed process had not
stored is lost. The other hosts' supervisors send again what the leader lacks of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import RecordDamaged
from headrace.hosting.helpers.store_record import NAME, order_of
from headrace.instance.storage import Store
from headrace.runs import Run, RunPaths
from headrace.runs.events import Event, RunFinished, SecondaryStatus, StatusChanged
from headrace.runs.record_pieces import PieceMissing, take_piece
from headrace.runs.segment_reader import read_segments
from headrace.runs.segments import Piece, decode, joined, writers_place
from headrace.runs.state import last_word

_OF_ATTEMPTS = frozenset({SecondaryStatus.TRAINING, SecondaryStatus.RESTARTING})


@dataclass(frozen=True)
class Earlier:
    """What happened before this process.

    Attributes:
        begun: an attempt has begun, or was given up while its hosts were prepared: the next one has another number.
        end: how the run ended; None when it did not.
    """

    begun: bool = False
    end: RunFinished | None = None


def bring_record(paths: RunPaths) -> None:
    """Brings what the store has of the run's record, if the job stores it and nothing of it is here.

    Raises:
        StorageError: the store cannot be read.
        RecordDamaged: a part is missing there.
        OSError: it cannot be written here.
    """
    if not (paths.engine / f"{NAME}.json").is_file() or any((paths.root / "events").glob("*.jsonl")):
        return
    order = order_of(paths)
    folder = writers_place(joined(order.place, paths.id), order.writer)
    with Store() as store:
        for segments in read_segments(store, folder, store.names(folder)):
            for name, data in segments:
                header, contents = decode(data, joined(folder, name))
                for piece, content in zip(header.pieces, contents, strict=True):
                    if piece.offset is not None:
                        _take(paths, folder, piece, content)


def _take(paths: RunPaths, folder: str, piece: Piece, content: memoryview) -> None:
    try:
        take_piece(paths.root, piece, content)
    except PieceMissing as error:
        raise RecordDamaged(f"{error} of {folder} is missing", "was a part of it removed?") from error


def what_happened(paths: RunPaths) -> Earlier:
    """Returns what the record says of the time before this process."""
    events: list[Event] = Run(paths).events()
    begun = any(isinstance(each, StatusChanged) and each.status in _OF_ATTEMPTS for each in events)
    return Earlier(begun, last_word(events))
