"""The framing of RecordIO, as MXNet's dmlc library defines it. Pure.

A record is: the magic number, a word with the length of the data in its lower 29 bits, the data, zeros up to the next
multiple of 4. Both words are little-endian. The upper three bits of the length are 0: the record is whole. (dmlc's
writer cuts records at a magic number inside the data, so that a file can be searched from its middle. A stream is
only read from its start, by readers that go by the length, and some of them know whole records only.)
"""

from __future__ import annotations

import struct

MAGIC = 0xCED7230A
MAX_LENGTH = (1 << 29) - 1
"""Bytes of data that one record can hold."""

_HEADER = struct.Struct("<II")


def header(length: int) -> bytes:
    """Returns what stands before the data of a record.

    Raises:
        ValueError: the data are too long for one record.
    """
    if length > MAX_LENGTH:
        raise ValueError(f"{length} bytes are more than a RecordIO record can hold ({MAX_LENGTH})")
    return _HEADER.pack(MAGIC, length)


def padding(length: int) -> bytes:
    """Returns what stands after the data of a record."""
    return bytes(-length % 4)
