"""Staging: where a feed server keeps results on their way to clients behind TCP.

Executors write into staging slabs, and results are sent from there as they lie. The slabs are recycled and bounded in
bytes; one that is needed is always had when nothing else is in use.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.errors import ProtocolError
from headrace.feed.batch.row_layout import decode_layout
from headrace.feed.batch.slab import Slab, SlabPool
from headrace.feed.wire import messages
from headrace.feed.wire.channel import MAX_PAYLOAD

MAX_PIECES = 4096


def check_ask(ask: messages.Ask) -> None:
    """Raises ProtocolError if what a client asks for is not sound."""
    if not 0 < len(ask.pieces) <= MAX_PIECES:
        raise ProtocolError(f"an ask for {len(ask.pieces)} pieces")
    for piece in ask.pieces:
        part = piece.last - piece.first < piece.rows
        if not (0 <= piece.first <= piece.last <= piece.rows) or (part and len(ask.pieces) > 1):
            raise ProtocolError(f"an ask for rows {piece.first}..{piece.last} of {piece.rows}")
    layout = decode_layout(ask.layout) if ask.layout else None
    if layout is not None and sum(layout.size(piece.rows) for piece in ask.pieces) > MAX_PAYLOAD:
        raise ProtocolError(f"an ask for batches of more than {MAX_PAYLOAD} bytes")


def staged(ask: messages.Ask) -> messages.Ask:
    """Returns an ask whose rows are a block of their own, not a part of their batch's."""
    if not ask.layout:
        return ask
    pieces = []
    for piece in ask.pieces:
        rows, position = piece.last - piece.first, piece.position + piece.first
        pieces.append(msgspec.structs.replace(piece, rows=rows, first=0, last=rows, position=position))
    return msgspec.structs.replace(ask, pieces=tuple(pieces))


class Staging:
    """See the module. Slabs are numbered from 1.

    Args:
        memory: limit, bytes.
        dropped: called with the number of a slab that is gone.
    """

    def __init__(self, memory: int, dropped: Callable[[int], None]) -> None:
        self._pool = SlabPool(memory)
        self._dropped = dropped
        self._batch_bytes: dict[int, int] = {}  # of a pipeline: the largest batch that was made whole

    def __getitem__(self, number: int) -> Slab:
        return self._pool[number]

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the slabs that hold results."""
        return self._pool.total_bytes - self._pool.free_bytes

    def reserve(self, ask: messages.Ask, pipeline: int) -> int | None:
        """Sets a slab aside for a result.

        Returns:
            Its number; 0 when its size is not known yet, or nothing will come; None when there is no memory now.
        """
        size = self._batch_bytes.get(pipeline, 0) * len(ask.pieces)
        if ask.layout:
            layout = decode_layout(ask.layout)
            size = max(1, sum(layout.size(piece.last - piece.first) for piece in ask.pieces))
        if not size or ask.check == messages.SUM:
            return 0
        return self._pool.acquire(size, force=self.bytes_in_use <= 0)

    def adopt(self, slab: Slab) -> int:
        """Takes over a slab that an executor made. Returns its number."""
        return self._pool.adopt(slab)

    def payload(self, number: int, ask: messages.Ask, pipeline: int, done: messages.Done) -> list[memoryview]:
        """Returns what is sent of a result, and learns how large batches that are made whole are."""
        slab = self._pool[number]
        if done.layout and len(ask.pieces) == 1:
            rows = ask.pieces[0].last - ask.pieces[0].first
            regions = decode_layout(done.layout).regions(rows, 0, rows)
        elif done.layout:
            regions = [(0, sum(decode_layout(done.layout).size(piece.rows) for piece in ask.pieces))]
        else:
            size = min(done.size, slab.size)
            each = -(-size // len(ask.pieces))
            self._batch_bytes[pipeline] = max(self._batch_bytes.get(pipeline, 0), each)
            regions = [(0, size)]
        return [slab.memory(offset, length) for offset, length in regions]

    def release(self, number: int) -> None:
        """Gives a slab back."""
        self._pool.release(number)
        for dropped in self._pool.dropped:
            self._dropped(dropped)
        self._pool.dropped.clear()
