"""The limits: a memcpy, and a loop over a bare TCP socket with reused buffers."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterator
from typing import Any

from bench.feed.measure import Contender
from bench.feed.servers import Program

from headrace.measuring.windows import memcpy, received

SLOTS = 4


class Memcpy(Contender):
    """Copies a batch into one of some reused buffers, in the trainer itself: no process, no hand-over."""

    name = "memcpy"

    def __init__(self, size: int) -> None:
        super().__init__(slots=SLOTS)
        self._size = size

    def open(self) -> Iterator[Any]:
        return self.resources.enter_context(memcpy(self._size, SLOTS))


class RawSocket(Contender):
    """One process sends, the trainer receives into reused shared memory (`recv_into`).

    Args:
        size: bytes of a batch.
        source: what the sender sends: ``fresh`` batches of the row's dataset, which is the work of the row;
            ``in place``, some buffers of its own that it fills by a memcpy; or ``send only``, the same bytes again and
            again, the limit of the socket itself.
    """

    def __init__(self, size: int, source: str = "fresh") -> None:
        super().__init__(slots=SLOTS, source=source)
        self.name = "raw socket" if source == "fresh" else f"raw socket, {source}"
        self._size, self._source = size, source

    def open(self) -> Iterator[Any]:
        self._program = Program("raw_sender", str(self._size), str(SLOTS), self._source)
        self._connection = socket.create_connection(("127.0.0.1", self._program.port))
        slots = [memoryview(mmap.mmap(-1, self._size)) for _ in range(SLOTS)]
        return received(self._connection, slots)

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        if hasattr(self, "_program"):
            self._program.stop()
