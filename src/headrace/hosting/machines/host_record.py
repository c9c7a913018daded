"""The record of a host, on its way into the leader's: every file there has one writer.

Logs and metrics lie below the host's name already, and so does the event file of its agent. Event files and logs of its
supervisor and helpers get the host's name behind theirs: `events/engine.jsonl` becomes `events/engine-algo-2.jsonl`.

A host whose machine was replaced begins with an empty directory. What it writes stands behind what the leader has of
the one before it: the file `engine/sent.json` remembers from which byte on.

The leader's own record comes back from the record's store when its machine was lost, for the one that takes its place:
only what grows, as the files that are written once came with the machine. What a killed process had not stored is lost.
The other hosts' supervisors send again what the leader lacks of theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.errors import RecordDamaged
from headrace.hosting.helpers.store_record import NAME, order_of
from headrace.instance.storage import Store
from headrace.private_folders import write_atomically
from headrace.runs import Run, RunPaths
from headrace.runs.events import Event, RunFinished, SecondaryStatus, StatusChanged
from headrace.runs.record_pieces import Known, NewPieces, PieceMissing, known_here, take_piece
from headrace.runs.run_paths import ENGINE, component
from headrace.runs.segment_reader import read_segments
from headrace.runs.segments import EVENTS, Piece, decode, is_recorded, joined, writers_place
from headrace.runs.state import last_word

BASES = "sent.json"
_NO_BATCH: tuple[tuple[Piece, bytes], ...] = ()


def name_at_leader(path: str, host: str) -> str:
    """Returns the name that a file of a host has in the leader's record.

    >>> name_at_leader("events/engine.jsonl", "algo-2"), name_at_leader("events/algo-2.jsonl", "algo-2")
    ('events/engine-algo-2.jsonl', 'events/algo-2.jsonl')
    """
    folder, _, name = path.partition("/")
    stem, dot, ending = name.rpartition(".")
    own = component(host)
    if folder not in {EVENTS, ENGINE} or stem == own:
        return path
    return f"{folder}/{stem}-{own}{dot}{ending}"


def is_of_host(path: str, host: str) -> bool:
    """Tells whether a file of the leader's record is one that this host writes, and no other.

    >>> is_of_host("logs/data/algo-2/feed.log", "algo-2"), is_of_host("events/engine.jsonl", "algo-2")
    (True, False)
    """
    if not is_recorded(path, whole=False):
        return False
    folder, *below = path.split("/")
    own = component(host)
    if folder in {EVENTS, ENGINE}:
        stem = below[0].rpartition(".")[0]
        return stem == own or stem.endswith(f"-{own}")
    return below[1] == own


def take(paths: RunPaths, host: str, piece: Piece, data: bytes) -> None:
    """Adds a piece to the leader's record. What is there already is dropped.

    Raises:
        ValueError: the host may not write that file.
        PieceMissing: bytes are missing before it.
        OSError: it cannot be written.
    """
    if piece.offset is None or not is_of_host(piece.path, host) or piece.size != len(data):
        raise ValueError(f"{host} may not send {piece.path!r}")
    take_piece(paths.root, piece, data)


def sizes_of(paths: RunPaths, host: str) -> dict[str, int]:
    """Returns how much of a host's record the leader has, by file."""
    return {name: size for name, size in known_here(paths, ()).sent.items() if is_of_host(name, host)}


def end_lines(paths: RunPaths, host: str) -> None:
    """Ends the lines that a host was writing when its machine was lost, before another one goes on. Raises OSError."""
    for name in sizes_of(paths, host):
        with (paths.root / name).open("r+b") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")


class RecordSender:
    """The host's end.

    Args:
        paths: the run's directory on its machine.
        host: its name.

    Attributes:
        fresh: nothing of this directory was ever sent.
    """

    def __init__(self, paths: RunPaths, host: str) -> None:
        self._paths = paths
        self._host = host
        self._pieces = NewPieces(paths, whole=())
        self._known: Known | None = None
        self._bases: dict[str, int] = {}
        self.fresh = True
        path = paths.engine / BASES
        if path.is_file():
            self._bases = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
            self.fresh = False

    @property
    def asks_sizes(self) -> bool:
        """Whether it must know first how much the leader has."""
        return self._known is None

    def forget(self) -> None:
        """What was sent may not have come: the leader is asked."""
        self._known = None

    def learn(self, sizes: Mapping[str, int]) -> None:
        """Takes how much the leader has. Raises OSError."""
        # A leader in the place of a lost one may lack the end of what the machine before this one wrote: it is gone.
        bases = {name: min(base, sizes.get(name, 0)) for name, base in self._bases.items()}
        if self.fresh or bases != self._bases:
            self._bases = dict(sizes) if self.fresh else bases
            self._paths.engine.mkdir(exist_ok=True)
            write_atomically(self._paths.engine / BASES, msgspec.json.encode(self._bases))
            self.fresh = False
        known = Known()
        for name in known_here(self._paths, ()).sent:
            there = name_at_leader(name, self._host)
            known.sent[name] = max(0, sizes.get(there, 0) - self._bases.get(there, 0))
        self._known = known
        self._pieces = NewPieces(self._paths, whole=())

    def next(self, last: bool) -> tuple[tuple[tuple[Piece, bytes], ...], bool]:
        """Returns the next pieces under the leader's names, and whether there is more. They count as sent.

        Args:
            last: nobody writes any more.
        """
        if self._known is None:
            return _NO_BATCH, True
        batch, more = self._pieces.next(self._known, last)
        self._known.take(piece for piece, _ in batch)
        return tuple((self._renamed(piece), data) for piece, data in batch), more

    def _renamed(self, piece: Piece) -> Piece:
        name = name_at_leader(piece.path, self._host)
        return msgspec.structs.replace(piece, path=name, offset=(piece.offset or 0) + self._bases.get(name, 0))


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
