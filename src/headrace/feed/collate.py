"""torch's own collate functions, as a worker of headrace uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def standard_collate(*, batched: bool) -> Callable[[Any], Any]:
    """Returns torch's `default_collate`, or `default_convert` for a loader that does not batch."""
    from torch.utils.data import default_collate, default_convert

    return default_collate if batched else default_convert


def stack_in_ordinary_memory() -> None:
    """Keeps `default_collate` from stacking into torch's shared memory in this process.

    In a worker (`get_worker_info()` is set) it makes a file in /dev/shm for every tensor, to hand it to the trainer.
    Here results go into slabs, so that is a copy too many, and a worker that is killed between making and unlinking
    such a file leaves it behind for ever. The change is made where torch lets collate functions be added: its map by
    type.
    """
    import torch
    from torch.utils.data._utils import collate, worker

    def stack(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
        info, worker._worker_info = worker._worker_info, None
        try:
            return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        finally:
            worker._worker_info = info

    collate.default_collate_fn_map[torch.Tensor] = stack
