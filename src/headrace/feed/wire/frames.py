"""Frames and the chunks of their payloads as values.

Every message travels behind a header:

    magic "HR" | version u8 | descriptors u8 | route u16 | reserved u16 | message length u32 | payload length u64 |
    check u64 of the header's other fields and the message

all little-endian. `route` is used between a client and its receiver process to name a host. The check is a CRC-32, or,
where others may reach the bytes, the stamp of the connection's `Seal`.

A frame's payload travels as chunks, each behind a header of its own:

    length u32 | kind u32 (1 data, 2 abort, 3 data without a sum) | sum u64

A chunk never spans two pieces of the payload, and holds at most `CHUNK` bytes. The sum is XXH3 (64 bits) of the chunk.
It is made `HOT` bytes at a time, as soon as these are written or received, while they are in the core's own cache: then
it costs a fifth of what it costs later. So who writes the bytes makes their sums (`sums_of`), and who sends them passes
the sums on. After an abort nothing more of the payload comes: the sender was told that it is not wanted.

On a sealed connection the chunk's header has the stamp of its fields and the sum in the sum's place: who changes bytes
on the way cannot make a sum for them. XXH3 is made against broken memory, drivers and middle boxes; that somebody on
the way finds other bytes of the same sum is what TLS is for. A MAC of all bytes costs more than TLS does. TLS
authenticates every byte, so behind it chunks have no sum; anywhere else such a chunk is refused.
"""

from __future__ import annotations

import collections
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from headrace.errors import ProtocolError
from headrace.feed.descriptors import Descriptors
from headrace.feed.identifiers import NO_ROUTE, RouteNumber
from headrace.feed.wire.messages import Message

FIELDS = struct.Struct("<2sBBHHIQ")
CHECK = struct.Struct("<Q")
HEADER_BYTES = FIELDS.size + CHECK.size
MAGIC = b"HR"
TLS_RECORD = b"\x16\x03"  # how a TLS handshake begins
WIRE_VERSION = 5


class OtherVersion(ProtocolError):
    """The peer is of another version of headrace; asking again will not help."""


class Seal:
    """Stamps what one end of a connection sends, one thing after the other: a MAC with a running number.

    Nobody without the key can make, change, repeat, leave out or reorder what is stamped.

    Args:
        key: of this direction of this connection.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def stamp(self, *parts: bytes | bytearray) -> int:
        """Returns the next stamp, 64 bits: a peer has one try."""
        mac = hashlib.blake2b(CHECK.pack(self._count), key=self._key, digest_size=CHECK.size)
        for part in parts:
            mac.update(part)
        self._count += 1
        return int.from_bytes(mac.digest(), "little")


@dataclass
class Frame:
    """One received frame. The receiver of the frame owns the descriptors. `aborted`: its payload was stopped."""

    message: Message
    route: RouteNumber = NO_ROUTE
    descriptors: Descriptors = field(default_factory=Descriptors)
    aborted: bool = False

    def take_descriptor(self) -> int:
        """Hands over the only descriptor. Raises ProtocolError if not exactly one came."""
        if len(self.descriptors) != 1:
            raise ProtocolError(
                f"a {type(self.message).__name__} with {len(self.descriptors)} descriptors, it carries one"
            )
        return self.descriptors.pop()

    def discard(self) -> None:
        """Closes the descriptors that were not taken."""
        self.descriptors.close()


class Header(NamedTuple):
    """A frame's header. Lengths in bytes; `fields`: all but the check, as they came."""

    descriptors: int
    route: RouteNumber
    message: int
    payload: int
    fields: bytes
    check: int

    def verify(self, body: bytes | bytearray, seal: Seal | None = None) -> None:
        """Raises ProtocolError if header and message are not as they were sent."""
        if _check(seal, self.fields, body) != self.check:
            raise ProtocolError(
                "a frame that the holder of the secret has not sent, or not now: its seal is wrong"
                if seal is not None
                else "a damaged frame: its check sum is wrong"
            )


def _check(seal: Seal | None, fields: bytes, message: bytes | bytearray) -> int:
    return zlib.crc32(message, zlib.crc32(fields)) if seal is None else seal.stamp(fields, message)


def write_header(
    message: bytes,
    *,
    descriptors: int = 0,
    route: RouteNumber = NO_ROUTE,
    payload: int = 0,
    seal: Seal | None = None,
) -> bytes:
    """Returns the header of a frame for an encoded message."""
    fields = FIELDS.pack(MAGIC, WIRE_VERSION, descriptors, route, 0, len(message), payload)
    return fields + CHECK.pack(_check(seal, fields, message))


def check_begin(raw: bytes | bytearray) -> None:
    """Raises ProtocolError if this is not how a header begins."""
    if raw[:2] == TLS_RECORD[: len(raw)]:
        raise ProtocolError("the peer speaks TLS, this end does not")
    if raw[:2] != MAGIC[: len(raw)]:
        raise ProtocolError(f"not a headrace peer: the frame begins with {bytes(raw[:2])!r}")


def read_header(raw: bytes | bytearray) -> Header:
    """Reads a header. Raises ProtocolError if the peer is no headrace process, or one of another version."""
    fields = bytes(raw[: FIELDS.size])
    check_begin(raw)
    _, version, descriptors, route, _, message, payload = FIELDS.unpack(fields)
    if version != WIRE_VERSION:
        raise OtherVersion(
            f"a peer speaks wire version {version}, this is {WIRE_VERSION}: install the same headrace on both ends"
        )
    (expected,) = CHECK.unpack(raw[FIELDS.size :])
    return Header(descriptors, route, message, payload, fields, expected)


CHUNK = 2048 << 10
HOT = 256 << 10  # divides CHUNK
AT_ONCE = 1 << 20  # bytes of chunks that go into one system call
CHUNK_HEADER = struct.Struct("<IIQ")
DATA, ABORT, UNSUMMED = 1, 2, 3


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
    return b"".join(CHECK.pack(checksum(chunk)) for piece in payload for chunk in cut(piece))


def read_sums(sums: bytes, payload: Iterable[memoryview]) -> list[int]:
    """Returns the sums that came with a payload. Raises ProtocolError if there is not one for every chunk."""
    chunks = sum(-(-piece.nbytes // CHUNK) for piece in payload)
    if len(sums) != CHECK.size * chunks:
        raise ProtocolError(f"{len(sums)} bytes of sums came with a payload of {chunks} chunks")
    return [total for (total,) in CHECK.iter_unpack(sums)]


def _stamped(length: int, kind: int, total: int, seal: Seal | None) -> int:
    return total if seal is None else seal.stamp(CHUNK_HEADER.pack(length, kind, total))


class Payload(NamedTuple):
    """Bytes that are sent behind a message, from where they lie, and the sums of their chunks, if they are known."""

    pieces: Sequence[memoryview] = ()
    sums: Sequence[int] = ()


NO_PAYLOAD = Payload()


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
            self._begin(ChunkHeader(*CHUNK_HEADER.unpack(self._header)))
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
        if chunk.kind == ABORT and chunk.length == 0:
            if chunk.total != _stamped(0, ABORT, 0, self._seal):
                raise ProtocolError("a payload that its sender has not stopped: the seal is wrong")
            self.aborted = True
            self._targets.clear()
        elif chunk.kind != (DATA if self._summed else UNSUMMED) or not 0 < chunk.length <= CHUNK:
            raise ProtocolError(f"a chunk of kind {chunk.kind} with {chunk.length} bytes is not allowed")
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
