"""Lightning: a DataLoader whose data is divided among the ranks, as Lightning does for torch's; and a callback that
measures the steps where the loader is another one.

Lightning replaces the sampler of a torch DataLoader by a DistributedSampler, and leaves other loaders as they are. So
the loader divides the data itself, when the first pass begins: the process group is there by then, also for a loader
that was made before `trainer.fit`. The order comes from Lightning's own seed (`seed_everything`), the epoch from
`loader.sampler.set_epoch`, which Lightning calls.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from headrace import feed
from headrace.adapters.metering import Metering
from headrace.feed.metrics.track import extent


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


class MeterCallback(Metering, Callback):
    """Measures the steps of a training whose loader is not headrace's: ``Trainer(callbacks=[MeterCallback()])``.

    A step's wait is what Lightning's own profiler calls ``train_dataloader_next``. Validation is no part of a step.
    headrace's loaders measure themselves; beside one of them this does nothing, nor does it outside a job.

    Args:
        name: name of the loader in the run's metrics.
    """

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Has the epoch's fetcher measured, which may be a new one."""
        self._epoch = trainer.current_epoch
        fetcher: Any = trainer.fit_loop._data_fetcher
        loaders = trainer.fit_loop._combined_loader
        if not self._wants(fetcher, *(loaders.flattened if loaders is not None else ())):
            return
        if isinstance(fetcher, _DataLoaderIterDataFetcher):
            warnings.warn("the steps are not measured: training_step takes the batches itself", stacklevel=2)
            return
        self._meter.begin()
        fetcher.__class__ = self._measured(type(fetcher))

    def _measured(self, kind: type) -> type:
        """Returns a fetcher's class whose `next` measures its time. Python looks up `next` in the class."""

        def following(fetcher: Any) -> Any:
            self._meter.waiting()
            try:
                fetched = kind.__next__(fetcher)  # type: ignore[attr-defined]
            except StopIteration:
                self._meter.ended()
                raise
            self._meter.got(*extent(fetched[0]), self._epoch)
            return fetched

        return type(kind.__name__, (kind,), {"__next__": following, "headrace_measures": True})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The step under way ends before it."""
        self._meter.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last step has ended; Lightning asks for no further batch."""
        self._meter.ended()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Writes what is left."""
        self._meter.close()
