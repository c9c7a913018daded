"""Frames as values: the header that every message travels behind, and what has come of one.

    magic "HR" | version u8 | descriptors u8 | route u16 | reserved u16 | message length u32 | payload length u64 |
    CRC-32 u32 of the header's other fields and the message

all little-endian. `route` is used between a client and its receiver process to name a host.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import ProtocolError
from headrace.feed.descriptors import Descriptors
from headrace.feed.identifiers import NO_ROUTE, RouteNumber
from headrace.feed.wire.messages import Message

FIELDS = struct.Struct("<2sBBHHIQ")
CHECK = struct.Struct("<I")
HEADER_BYTES = FIELDS.size + CHECK.size
MAGIC = b"HR"
TLS_RECORD = b"\x16\x03"  # how a TLS handshake begins
WIRE_VERSION = 4


@dataclass
class Frame:
    """One received frame. The receiver of the frame owns the descriptors. `aborted`: its payload was stopped."""

    message: Message
    route: RouteNumber = NO_ROUTE
    descriptors: list[int] = field(default_factory=list)
    aborted: bool = False

    def __post_init__(self) -> None:
        self.descriptors = Descriptors(self.descriptors)

    def take_descriptor(self) -> int:
        """Hands over the only descriptor. Raises ProtocolError if not exactly one came."""
        if len(self.descriptors) != 1:
            raise ProtocolError(
                f"a {type(self.message).__name__} with {len(self.descriptors)} descriptors, it carries one"
            )
        return self.descriptors.pop()

    def discard(self) -> None:
        """Closes the descriptors that were not taken."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class Header(NamedTuple):
    """A frame's header. Lengths in bytes; `check`: what the message's CRC goes on from, and must end at."""

    descriptors: int
    route: RouteNumber
    message: int
    payload: int
    check: tuple[int, int]

    def verify(self, body: bytes | bytearray) -> None:
        """Raises ProtocolError if header and message are not as they were sent."""
        begun, expected = self.check
        if zlib.crc32(body, begun) != expected:
            raise ProtocolError("a damaged frame: its check sum is wrong")


def write_header(message: bytes, *, descriptors: int = 0, route: RouteNumber = NO_ROUTE, payload: int = 0) -> bytes:
    """Returns the header of a frame for an encoded message."""
    fields = FIELDS.pack(MAGIC, WIRE_VERSION, descriptors, route, 0, len(message), payload)
    return fields + CHECK.pack(zlib.crc32(message, zlib.crc32(fields)))


def read_header(raw: bytes | bytearray) -> Header:
    """Reads a header. Raises ProtocolError if the peer is no headrace process, or one of another version."""
    fields = raw[: FIELDS.size]
    magic, version, descriptors, route, _, message, payload = FIELDS.unpack(fields)
    if magic == TLS_RECORD:
        raise ProtocolError("the peer speaks TLS, this end does not")
    if magic != MAGIC:
        raise ProtocolError(f"not a headrace peer: the frame begins with {magic!r}")
    if version != WIRE_VERSION:
        raise ProtocolError(f"a peer speaks wire version {version}, this is {WIRE_VERSION}")
    (expected,) = CHECK.unpack(raw[FIELDS.size :])
    return Header(descriptors, route, message, payload, (zlib.crc32(fields), expected))
