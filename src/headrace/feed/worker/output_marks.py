"""Marks of a lane's outputs: a few bytes by which an output is known again, when a lane is replayed.

A mark is made of one output an answer, so it must not cost what the output cost: of large arrays it covers the two
ends.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.feed.batch import pytree
from headrace.feed.wire.draws import MARK_BYTES

_ENDS = 4096  # bytes of each end of an array that are covered


def mark_of(output: Any) -> bytes:
    """Returns the mark of an output; empty for one that only an own `collate_fn` can read."""
    try:
        node, leaves, _ = pytree.describe(output, "output")
    except PipelineError:
        return b""
    found = hashlib.blake2b(msgspec.msgpack.encode(node), digest_size=MARK_BYTES, person=b"lane mark")
    for _, raw in leaves:
        found.update(raw[:_ENDS].data)
        found.update(raw[-_ENDS:].data)
    return found.digest()
