"""Bundles of segments: many small segments once more in one object, so that a long record is read with few requests.

    <place>/<run id>/bundles/<writer>/<last segment's name>-<how many>     `BundleHeader` in one line, then the segments

A bundle is a shortcut and never the only place of anything: the segments stay, who knows no bundles reads those, and a
bundle that is missing changes nothing. It holds segments that one process stored one after the other, so it is as whole
as they are, and replaces in a reader's list whatever has their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.errors import RecordDamaged
from headrace.runs.segments import SEGMENTS, VERSION, header_and_rest, number_of

BUNDLES = "bundles"
COUNT = 100  # segments of a bundle
MOST_BYTES = 8 << 20  # of a bundle, and kept in memory by the writer; larger segments are read as they are


class BundledSegment(msgspec.Struct, frozen=True):
    """One segment of a bundle.

    Attributes:
        name: of the segment.
        size: bytes.
    """

    name: str
    size: int


class BundleHeader(msgspec.Struct, frozen=True):
    """The first line of a bundle.

    Attributes:
        version: `VERSION` of the writer.
        segments: what it holds, in the order of the bytes; their numbers have no gap.
    """

    version: int
    segments: tuple[BundledSegment, ...]


_DECODER = msgspec.json.Decoder(BundleHeader)


def bundles_place(segments_place: str) -> str:
    """Returns the folder of the bundles of a writer, whose segments are in that folder.

    >>> bundles_place("s3://bucket/runs/j-1/segments/engine")
    's3://bucket/runs/j-1/bundles/engine'
    """
    run, _, writer = segments_place.rpartition(f"/{SEGMENTS}/")
    return f"{run}/{BUNDLES}/{writer}"


class Bundler:
    """Collects the segments that a writer has stored, until they are a bundle."""

    def __init__(self) -> None:
        self._segments: list[tuple[str, bytes]] = []
        self._bytes = 0

    def add(self, name: str, data: bytes) -> tuple[str, bytes] | None:
        """Takes a segment that is stored. Returns the name and the bytes of a bundle when it is time to store one."""
        self._segments.append((name, data))
        self._bytes += len(data)
        if self._bytes <= MOST_BYTES and len(self._segments) < COUNT:
            return None
        segments, few = self._segments, self._bytes <= MOST_BYTES
        self._segments, self._bytes = [], 0
        if not few:
            return None
        header = BundleHeader(VERSION, tuple(BundledSegment(each, len(content)) for each, content in segments))
        return f"{name}-{len(segments)}", b"".join(
            [msgspec.json.encode(header), b"\n", *(content for _, content in segments)]
        )


def segments_of(data: bytes, uri: str) -> list[tuple[str, bytes]]:
    """Returns the names and the bytes of the segments of a bundle.

    Args:
        data: the whole object.
        uri: where it was, for messages.

    Raises:
        RecordDamaged: it is no bundle, or one of a newer headrace.
    """
    header, rest = header_and_rest(data, _DECODER, uri, "bundle of segments")
    numbers = [number_of(each.name) for each in header.segments]
    whole = sum(each.size for each in header.segments) == len(rest) and all(each.size >= 0 for each in header.segments)
    if not numbers or not whole or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise RecordDamaged(f"{uri} does not hold the segments that its first line names")
    found, begin = [], 0
    for each in header.segments:
        found.append((each.name, bytes(rest[begin : begin + each.size])))
        begin += each.size
    return found


def in_bundles(names: Sequence[str], bundles: Sequence[str]) -> list[tuple[str, bool]]:
    """Chooses what to read of a record: bundles where all that they hold is wanted, segments elsewhere.

    Args:
        names: of the segments that are wanted, sorted, their numbers without a gap.
        bundles: names of bundles, sorted.

    Returns:
        Names in the order in which they are read, and whether each is a bundle.

    >>> in_bundles(["0000000004-a", "0000000005-a", "0000000006-a", "0000000007-a"], ["0000000006-a-2"])
    [('0000000004-a', False), ('0000000006-a-2', True), ('0000000007-a', False)]
    """
    chosen: list[tuple[str, bool]] = []
    wanted = deque(names)
    for bundle in bundles:
        last, count = number_of(bundle), _count_of(bundle)
        first = last - count + 1
        if not count or not wanted or number_of(wanted[0]) > first or number_of(wanted[-1]) < last:
            continue
        while number_of(wanted[0]) < first:
            chosen.append((wanted.popleft(), False))
        while wanted and number_of(wanted[0]) <= last:
            wanted.popleft()
        chosen.append((bundle, True))
    return chosen + [(name, False) for name in wanted]


def _count_of(bundle: str) -> int:
    """How many segments a bundle has by its name; 0 when that is none of a bundle."""
    count = bundle.rpartition("-")[2]
    return int(count) if count.isdecimal() and bundle.count("-") == 2 else 0
