"""Frames as values: the header that every message travels behind, and what has come of one.

    magic "HR" | version u8 | descriptors u8 | route u16 | reserved u16 | message length u32 | payload length u64 |
    check u64 of the header's other fields and the message

all little-endian. `route` is used between a client and its receiver process to name a host. The check is a CRC-32, or,
where others may reach the bytes, the stamp of the connection's `Seal`.
"""

from __future__ import annotations

import hashlib
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
