"""Payloads in chunks: how bulk bytes are cut, summed and stopped.

A frame's payload travels as chunks, each behind a header of its own:

    length u32 | kind u32 (1 data, 2 abort, 3 data without a sum) | sum u64

all little-endian. A chunk never spans two pieces of the payload, and holds at most `CHUNK` bytes. The sum is XXH3 (64
bits) of the chunk. It is made `HOT` bytes at a time, as soon as these are written or received, while they are in the
core's own cache: then it costs a fifth of what it costs later. So who writes the bytes makes their sums (`sums_of`),
and who sends them passes the sums on. After an abort nothing more of the payload comes: the sender was told that it is
not wanted.

On a sealed connection (see `frames.Seal`) the header has the stamp of its fields and the sum in the sum's place: who
changes bytes on the way cannot make a sum for them. XXH3 is made against broken memory, drivers and middle boxes; that
somebody on the way finds other bytes of the same sum is what TLS is for. A MAC of all bytes costs more than TLS does.
TLS authenticates every byte, so behind it chunks have no sum; anywhere else such a chunk is refused.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from headrace.errors import ProtocolError
from headrace.feed.wire.frames import Seal

CHUNK = 2048 << 10
HOT = 256 << 10  # divides CHUNK
AT_ONCE = 1 << 20  # bytes of chunks that go into one system call
CHUNK_HEADER = struct.Struct("<IIQ")
DATA, ABORT, UNSUMMED = 1, 2, 3
SUM = struct.Struct("<Q")


class ChunkHeader(NamedTuple):
    """What is announced: bytes that follow, their kind, and their sum."""

    length: int
    kind: int
    total: int


def checksum(data: memoryview) -> int:
    """Returns the sum of a chunk, 64 bits."""
    return xxhash.xxh3_64_intdigest(data)


def cut(piece: memoryview) -> Iterator[memoryview]:
    """Cuts a piece of a payload into chunks."""
    return (piece[start : start + CHUNK] for start in range(0, piece.nbytes, CHUNK))


def sums_of(payload: Iterable[memoryview]) -> bytes:
    """Returns the sums of the chunks of a payload, one after the other, for who sends it."""
    return b"".join(SUM.pack(checksum(chunk)) for piece in payload for chunk in cut(piece))


def read_sums(sums: bytes, payload: Iterable[memoryview]) -> list[int]:
    """Returns the sums that came with a payload. Raises ProtocolError if there is not one for every chunk."""
    chunks = sum(-(-piece.nbytes // CHUNK) for piece in payload)
    if len(sums) != SUM.size * chunks:
        raise ProtocolError(f"{len(sums)} bytes of sums came with a payload of {chunks} chunks")
    return [total for (total,) in SUM.iter_unpack(sums)]


def _stamped(length: int, kind: int, total: int, seal: Seal | None) -> int:
    return total if seal is None else seal.stamp(CHUNK_HEADER.pack(length, kind, total))


def read_header(raw: memoryview, *, summed: bool = True) -> ChunkHeader:
    """Reads a chunk header of a peer. Raises ProtocolError if it is not sound, or has no sum where one is due."""
    header = ChunkHeader(*CHUNK_HEADER.unpack(raw))
    if header.kind == ABORT and header.length == 0:
        return header
    known = header.kind == DATA or (header.kind == UNSUMMED and not summed)
    if not known or not 0 < header.length <= CHUNK:
        raise ProtocolError(f"a chunk of kind {header.kind} with {header.length} bytes is not allowed")
    return header


class Payload(NamedTuple):
    """Bytes that are sent behind a message, from where they lie, and the sums of their chunks, if they are known."""

    pieces: Sequence[memoryview] = ()
    sums: Sequence[int] = ()


class ChunkWriter:
    """Cuts a payload into chunks, when they are about to be sent.

    Args:
        pieces: the payload, as byte memory.
        sums: of its chunks, if they are known.
        summed: whether chunks have sums.
        seal: of the connection, if it has one.
    """

    def __init__(
        self,
        pieces: Iterable[memoryview],
        sums: Iterable[int] = (),
        *,
        summed: bool = True,
        seal: Seal | None = None,
    ) -> None:
        self._pieces = collections.deque(pieces)
        self._sums = collections.deque(sums)
        self._summed, self._seal = summed, seal
        self.bytes = sum(piece.nbytes for piece in self._pieces)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def cut(self) -> list[memoryview]:
        """Returns the next chunks, some `AT_ONCE` bytes, each behind its header."""
        parts, size = [], 0
        while self._pieces and size < AT_ONCE:
            piece = self._pieces.popleft()
            if piece.nbytes > CHUNK:
                self._pieces.appendleft(piece[CHUNK:])
                piece = piece[:CHUNK]
            parts += [memoryview(self._header(piece)), piece]
            size += piece.nbytes
        return parts

    def _header(self, chunk: memoryview) -> bytes:
        if not self._summed:
            return CHUNK_HEADER.pack(chunk.nbytes, UNSUMMED, 0)
        total = self._sums.popleft() if self._sums else checksum(chunk)
        return CHUNK_HEADER.pack(chunk.nbytes, DATA, _stamped(chunk.nbytes, DATA, total, self._seal))

    def abort(self) -> memoryview:
        """Drops what has not been cut. Returns the chunk that ends the payload for the peer."""
        self._pieces.clear()
        return memoryview(CHUNK_HEADER.pack(0, ABORT, _stamped(0, ABORT, 0, self._seal)))


class ChunkReader:
    """Receives a payload into its places.

    Args:
        targets: memory to receive into, in the order and the sizes of the sender's pieces.
        summed: whether every chunk must have a sum.
        seal: of the connection, if it has one.
    """

    def __init__(self, targets: Iterable[memoryview], *, summed: bool = True, seal: Seal | None = None) -> None:
        self._targets = collections.deque(targets)
        self._summed, self._seal = summed, seal
        self._header = memoryview(bytearray(CHUNK_HEADER.size))
        self._header_filled = 0
        self._chunk: ChunkHeader | None = None
        self._filled = 0
        self._sum = xxhash.xxh3_64()
        self.aborted = False

    @property
    def complete(self) -> bool:
        """Whether all has come, or the sender has aborted."""
        return not self._targets

    @property
    def missing(self) -> int:
        """Bytes of the chunk at hand that have not come, 0 between two chunks."""
        return self._chunk.length - self._filled if self._chunk is not None else 0

    def advance(self, receive_into: Callable[[memoryview], int]) -> None:
        """Receives some more.

        Args:
            receive_into: fills a part of the memory it is given, returns how much, raises if nothing can be had.

        Raises:
            ProtocolError: the chunks do not fit, or one is damaged.
        """
        if self._chunk is None:
            self._header_filled += receive_into(self._header[self._header_filled :])
            if self._header_filled < CHUNK_HEADER.size:
                return
            self._begin(read_header(self._header, summed=self._summed))
            if self._chunk is None:
                return
        target, chunk = self._targets[0], self._chunk
        begin, end = self._filled, chunk.length
        if chunk.kind == DATA:
            end = min(end, begin + HOT)
        self._filled += receive_into(target[begin:end])
        if chunk.kind == DATA:
            self._sum.update(target[begin : self._filled])
        if self._filled == chunk.length:
            self._finish(target, chunk)

    def _begin(self, chunk: ChunkHeader) -> None:
        self._header_filled = self._filled = 0
        if chunk.kind == ABORT:
            if chunk.total != _stamped(0, ABORT, 0, self._seal):
                raise ProtocolError("a payload that its sender has not stopped: the seal is wrong")
            self.aborted = True
            self._targets.clear()
        elif chunk.length > self._targets[0].nbytes:
            raise ProtocolError(f"a chunk of {chunk.length} bytes for a place of {self._targets[0].nbytes}")
        else:
            self._chunk = chunk

    def _finish(self, target: memoryview, chunk: ChunkHeader) -> None:
        if chunk.kind == DATA and chunk.total != _stamped(*chunk[:2], self._sum.intdigest(), self._seal):
            raise ProtocolError(f"a damaged chunk of {chunk.length} bytes")
        self._chunk = None
        self._sum.reset()
        if chunk.length == target.nbytes:
            self._targets.popleft()
        else:
            self._targets[0] = target[chunk.length :]
