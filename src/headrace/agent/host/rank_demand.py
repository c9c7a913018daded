"""What a rank needs of data workers, as the last lines of its metric file tell."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from headrace.agent.control.control_messages import Demand
from headrace.record_files import decode_record, open_record
from headrace.runs import LoaderSecond

TAIL = 4096  # bytes, several lines
FRESH_SECONDS = 10.0

_decoder = msgspec.json.Decoder(LoaderSecond)


def latest_demand(path: Path) -> Demand | None:
    """Returns what a rank's loaders told last; None when that is old, or they did not tell.

    Args:
        path: its metric file, which it appends to.
    """
    try:
        with os.fdopen(open_record(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().split(b"\n")[1:-1]  # the first may be cut off, the last be under way
    except OSError:  # not there yet, or none that a loader has written
        return None
    for line in reversed(lines):
        try:
            second = decode_record(_decoder, line)
        except msgspec.DecodeError:
            continue  # another kind of record
        if second.needed is None or not second.steps:
            continue
        fresh = time.time() - second.t < FRESH_SECONDS
        stall = second.wait / second.step if second.step else 0.0
        return Demand(second.needed, stall, second.link or 0.0) if fresh else None
    return None
