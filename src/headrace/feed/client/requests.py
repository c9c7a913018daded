"""What a part of a bundle asks a worker for: batches, or rows, with their keys."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.feed.batch import pytree
from headrace.feed.client.work_units import Part
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.shard_map import ShardMap
from headrace.feed.wire import messages

_PLAIN = {int, str, float, bool, bytes, type(None)}  # keys that a message holds as they are
_INTS = (-(2**63), 2**64)


def pieces_of(part: Part, shards: ShardMap | None = None, worker: int = 0) -> tuple[messages.Piece, ...]:
    """Returns what a part asks for.

    Args:
        part: of a bundle.
        shards: who holds what, when workers hold different data; then keys are the indices of `worker`.
        worker: who is asked.
    """
    bundle = part.bundle
    if len(bundle.plans) == 1:
        piece = _piece(bundle.plan, part.first, part.last, bundle.left_out)
        if shards is None:
            return (piece,)
        return (msgspec.structs.replace(piece, keys=shards.local(worker, piece.keys)),)
    return tuple(_piece(plan, 0, plan.rows, ()) for plan in bundle.plans)


def _piece(plan: BatchPlan, first: int, last: int, left_out: Collection[int]) -> messages.Piece:
    keys = list(plan.keys[first:last])
    if left_out:
        keys = [key for row, key in enumerate(keys, first) if row not in left_out]
    if _plain(keys):
        return messages.Piece(plan.step, plan.position, plan.rows, first, last, keys, left_out=tuple(left_out))
    node, leaves, size = pytree.describe(keys, "indices")
    packed = pytree.packed(leaves, size)
    return messages.Piece(plan.step, plan.position, plan.rows, first, last, node, True, packed, tuple(left_out))


def _plain(keys: list[object]) -> bool:
    """Whether a message can hold the keys as they are."""
    kinds = set(map(type, keys))
    if int in kinds and len(kinds) > 1:
        return kinds <= _PLAIN and all(_plain([key]) for key in keys)
    return kinds <= _PLAIN and (int not in kinds or (min(keys) >= _INTS[0] and max(keys) < _INTS[1]))  # type: ignore[type-var, operator]
