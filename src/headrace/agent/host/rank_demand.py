"""What a rank needs of data workers, as the last lines of its metric file tell."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from headrace.agent.control.control_messages import Demand
from headrace.runs import LoaderSecond

TAIL = 4096  # bytes, several lines
FRESH_SECONDS = 10.0

_decode = msgspec.json.Decoder(LoaderSecond).decode


def latest_demand(path: Path) -> Demand | None:
    """Returns what a rank's loaders told last; None when that is old, or they did not tell.

    Args:
        path: its metric file, which it appends to.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().split(b"\n")[1:-1]  # the first may be cut off, the last be under way
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            second = _decode(line)
        except msgspec.DecodeError:
            continue  # another kind of record
        if second.needed is None or not second.steps:
            continue
        fresh = time.time() - second.t < FRESH_SECONDS
        stall = second.wait / second.step if second.step else 0.0
        return Demand(second.needed, stall, second.link or 0.0) if fresh else None
    return None
