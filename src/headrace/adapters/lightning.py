"""Lightning: a DataLoader whose data is divided among the ranks, as Lightning does for torch's.

Lightning replaces the sampler of a torch DataLoader by a DistributedSampler, and leaves other loaders as they are. So
the loader divides the data itself, when the first pass begins: the process group is there by then, also for a loader
that was made before `trainer.fit`. The order comes from Lightning's own seed (`seed_everything`), the epoch from
`loader.sampler.set_epoch`, which Lightning calls.
"""

from __future__ import annotations

import os
from typing import Any

from headrace import feed


class DataLoader(feed.DataLoader):
    """`headrace.feed.DataLoader` for a LightningModule, a LightningDataModule or `trainer.fit`.

    `batch_size` is per rank. Every index is seen exactly once an epoch, over all ranks, which have the same number of
    steps; nothing is repeated to fill up the end.

    Args:
        *args, **options: as `headrace.feed.DataLoader`; `seed` is that of `seed_everything` unless it is given.

    Raises:
        ValueError: a sampler, which decides by itself what a rank loads: `headrace.feed.DataLoader` takes it.
    """

    _shards = True

    def __init__(self, *args: Any, **options: Any) -> None:
        if options.get("seed") is None and options.get("generator") is None:
            options["seed"] = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        super().__init__(*args, **options)
        if self._sampled:
            raise ValueError(
                "a sampler decides by itself what a rank loads, and headrace does not divide it further: "
                "give it to headrace.feed.DataLoader, as a DistributedSampler where there are several ranks"
            )
