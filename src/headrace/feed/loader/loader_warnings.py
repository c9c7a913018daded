"""What a user of a DataLoader is warned of, in torch's words where torch warns of it too. It decides nothing."""

from __future__ import annotations

import os
import sys
import warnings

from headrace.feed.wire.remote_errors import warn_user


def _warn_of_frameworks() -> None:
    """Warns when every rank loads all, under a framework that shards torch's loaders by itself and not this one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    ranks = torch.distributed.get_world_size()
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    found = [
        name
        for name, live in (
            ("accelerate", state is not None and bool(state._shared_state)),
            ("lightning", "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules),
        )
        if live
    ]
    if ranks > 1 and found:
        warnings.warn(
            f"each of the {ranks} ranks loads the whole dataset: {found[0]} divides the data of torch's DataLoader "
            f"among them, not of this one. Use headrace.adapters.{found[0]}.DataLoader, or give global_batch_size=; "
            "rank=0, world_size=1 says that it is meant",
            stacklevel=4,
        )


def _warn_of_pinning(device: str) -> None:
    """Warns of what `pin_memory=True` cannot do here, in torch's own words."""
    import torch

    if device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            stacklevel=4,
        )
    if not torch.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )


def warn_of_workers(workers: int) -> None:
    """Warns, in torch's words, of more local workers than the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        warn_user(
            f"This DataLoader will create {workers} worker processes in total. Our suggested max number of worker in "
            f"current system is {cores}, which is smaller than what this DataLoader is going to create. Please be "
            "aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker "
            "number to avoid potential slowness/freeze if necessary.",
            UserWarning,
        )


def warn_of_pass(*, divided: bool, pin: bool, device: str) -> None:
    """Warns, when a pass begins, of what it will not do.

    Args:
        divided: whether the ranks share the data, or the user's sampler decides.
        pin, device: `pin_memory` and `pin_memory_device`.
    """
    if not divided:
        _warn_of_frameworks()
    if pin:
        _warn_of_pinning(device)
