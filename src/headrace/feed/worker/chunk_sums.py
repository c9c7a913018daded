"""Sums of a slice's chunks, made by the executor that writes it, while the bytes are in its cache.

The feed server passes them on with the payload and reads no byte of it but to send it (see `wire.chunks`). They cover
the way from the executor's slab to the receiver's.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from headrace.feed.batch.pytree import Bytes
from headrace.feed.wire.chunks import CHUNK, HOT, SUM, sums_of


class ChunkSums:
    """Writes leaves to the beginning of a slab, and sums what is complete of it, some `HOT` bytes at a time."""

    def __init__(self) -> None:
        self._sums = bytearray()  # of the chunks that are complete
        self._sum = xxhash.xxh3_64()  # of the next one, up to `_end`
        self._end = 0

    def write_leaves(self, leaves: Sequence[tuple[int, Bytes]], block: Bytes, start: int) -> None:
        """Copies leaves to their places in a block, piece by piece.

        Args:
            leaves: as of `pytree.describe`.
            block: the slab, from its first byte. It may be another one each time, with the same bytes before `start`.
            start: where the leaves' block begins in it.
        """
        memory = block.data
        for offset, raw in leaves:
            begin = start + offset
            self._back_to(begin)
            written = 0
            while written < raw.size:
                at = begin + written
                end = min(raw.size, written + HOT - at % HOT)
                block[at : begin + end] = raw[written:end]
                written = end
                if (begin + written) % HOT == 0:
                    self._add(memory, begin + written)

    def _back_to(self, begin: int) -> None:
        """Forgets the sums of what is written to from here on."""
        if begin < self._end:
            self._end = begin - begin % CHUNK
            self._sum.reset()
            del self._sums[self._end // CHUNK * SUM.size :]

    def _add(self, memory: memoryview, end: int) -> None:
        """Sums what lies in memory up to here."""
        while self._end < end:
            begin, self._end = self._end, min(end, self._end - self._end % CHUNK + CHUNK)
            self._sum.update(memory[begin : self._end])
            if self._end % CHUNK == 0:
                self._sums += SUM.pack(self._sum.intdigest())
                self._sum.reset()

    def complete(self, payload: Sequence[memoryview]) -> bytes:
        """Returns the sums of a payload, whose first piece begins where leaves were written, if any were."""
        if not payload:
            return b""
        first, *others = payload
        self._back_to(first.nbytes)
        self._add(first, first.nbytes)
        rest = SUM.pack(self._sum.intdigest()) if self._end % CHUNK else b""
        return bytes(self._sums) + rest + sums_of(others)
