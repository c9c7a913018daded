"""Sums of a slice's chunks, made by the executor that writes it, while the bytes are in its cache.

The feed server passes them on with the payload and reads no byte of it but to send it (see `wire.chunks`). They cover
the way from the executor's slab to the receiver's.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.feed.batch.pytree import Bytes
from headrace.feed.wire.chunks import CHUNK, SUM, sums_of


class ChunkSums:
    """Writes leaves to the beginning of a slab, and sums each chunk that is complete."""

    def __init__(self) -> None:
        self._sums = bytearray()

    def write_leaves(self, leaves: Sequence[tuple[int, Bytes]], block: Bytes, start: int) -> None:
        """Copies leaves to their places in a block, chunk by chunk.

        Args:
            leaves: as of `pytree.describe`.
            block: the slab, from its first byte. It may be another one each time, with the same bytes before `start`.
            start: where the leaves' block begins in it.
        """
        for offset, raw in leaves:
            begin = start + offset
            del self._sums[begin // CHUNK * SUM.size :]  # of a chunk that is written to
            written = 0
            while written < raw.size:
                at = begin + written
                end = min(raw.size, written + CHUNK - at % CHUNK)
                block[at : begin + end] = raw[written:end]
                written = end
                if (begin + written) % CHUNK == 0:
                    self._sum_to(block, begin + written)

    def _sum_to(self, block: Bytes, end: int) -> None:
        begin = len(self._sums) // SUM.size * CHUNK
        self._sums += sums_of([block[begin:end].data])

    def complete(self, payload: Sequence[memoryview]) -> bytes:
        """Returns the sums of a payload, whose first piece begins where leaves were written, if any were."""
        sums = bytes(self._sums)
        known = len(sums) // SUM.size * CHUNK
        return sums + sums_of([payload[0][known:], *payload[1:]]) if payload else b""
