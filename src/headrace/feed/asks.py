"""What a part of a bundle asks a worker for: batches, or rows, with their keys."""

from __future__ import annotations

from collections.abc import Collection

from headrace.feed import messages, tree
from headrace.feed.plan import BatchPlan
from headrace.feed.schedule import Part

_PLAIN = {int, str, float, bool, bytes, type(None)}  # keys that a message holds as they are
_INTS = (-(2**63), 2**64)


def pieces_of(part: Part) -> tuple[messages.Piece, ...]:
    """Returns what a part asks for."""
    bundle = part.bundle
    if len(bundle.plans) == 1:
        return (_piece(bundle.plan, part.first, part.last, bundle.left_out),)
    return tuple(_piece(plan, 0, plan.rows, ()) for plan in bundle.plans)


def _piece(plan: BatchPlan, first: int, last: int, left_out: Collection[int]) -> messages.Piece:
    keys = list(plan.keys[first:last])
    if left_out:
        keys = [key for row, key in enumerate(keys, first) if row not in left_out]
    if all(type(key) in _PLAIN and (type(key) is not int or _INTS[0] <= key < _INTS[1]) for key in keys):
        return messages.Piece(plan.step, plan.position, plan.rows, first, last, keys, left_out=tuple(left_out))
    node, leaves, size = tree.describe(keys, "indices")
    packed = tree.packed(leaves, size)
    return messages.Piece(plan.step, plan.position, plan.rows, first, last, node, True, packed, tuple(left_out))
