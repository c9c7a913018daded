"""What a slice of a bundle asks a worker for: batches, or rows, with their keys."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.errors import PipelineError
from headrace.feed.batch import pytree
from headrace.feed.batch.plain_values import is_broken
from headrace.feed.client.work_units import Slice
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.shard_map import ShardMap
from headrace.feed.wire import messages

_PLAIN = {int, str, float, bool, bytes, type(None)}  # keys that a message holds as they are
_INTS = (-(2**63), 2**64)


def batch_rows(slice_: Slice, shards: ShardMap | None, worker: WorkerNumber) -> tuple[messages.BatchRows, ...]:
    """Returns what is requested for a slice.

    Args:
        slice_: of a bundle.
        shards: who holds what, when workers hold different data; then keys are the indices of `worker`.
        worker: who is asked.
    """
    bundle = slice_.bundle
    if len(bundle.plans) == 1:
        batch = _batch_rows(bundle.plan, slice_.first, slice_.last, bundle.left_out)
        if shards is None:
            return (batch,)
        return (msgspec.structs.replace(batch, keys=shards.local(worker, batch.keys)),)
    return tuple(_batch_rows(plan, 0, plan.rows, ()) for plan in bundle.plans)


def _batch_rows(plan: BatchPlan, first: int, last: int, left_out: Collection[int]) -> messages.BatchRows:
    keys = list(plan.keys[first:last])
    if left_out:
        keys = [key for row, key in enumerate(keys, first) if row not in left_out]
    if _plain(keys):
        return messages.BatchRows(plan.step, plan.position, plan.rows, first, last, keys, left_out=tuple(left_out))
    try:
        node, leaves, size = pytree.describe(keys, "indices")
    except PipelineError as error:
        raise PipelineError(
            f"an index that the sampler gave cannot be sent to a worker: {error.message}",
            hint="give numbers, strings, bytes, None, enums, tuples, lists or dicts of them, arrays or tensors as "
            "indices, and let the dataset make of them what it needs; or load without workers (num_workers=0)",
        ) from error
    packed = pytree.packed(leaves, size)
    return messages.BatchRows(plan.step, plan.position, plan.rows, first, last, node, True, packed, tuple(left_out))


def _plain(keys: list[object]) -> bool:
    """Whether a message can hold the keys as they are."""
    kinds = set(map(type, keys))
    if str in kinds and any(type(key) is str and is_broken(key) for key in keys):
        return False
    if int in kinds and len(kinds) > 1:
        return kinds <= _PLAIN and all(_plain([key]) for key in keys)
    return kinds <= _PLAIN and (int not in kinds or (min(keys) >= _INTS[0] and max(keys) < _INTS[1]))  # type: ignore[type-var, operator]
