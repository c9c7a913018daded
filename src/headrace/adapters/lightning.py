"""Lightning: a DataLoader whose data is divided among the ranks, as Lightning does for torch's; and a callback that
measures the steps where the loader is another one.

Lightning replaces the sampler of a torch DataLoader by a DistributedSampler, and leaves other loaders as they are. So
the loader divides the data itself, when the first pass begins: the process group is there by then, also for a loader
that was made before `trainer.fit`. The order comes from Lightning's own seed (`seed_everything`), the epoch from
`loader.sampler.set_epoch`, which Lightning calls.

Lightning calls `iter` before it says which epoch this is, and fetches a batch ahead where a loader has no length. So a
checkpoint holds the place behind the batches that Lightning counts as trained on, which may be fewer than it has
fetched; and what it had fetched of another epoch than the one it resumes is fetched again.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops import _FitLoop
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _OptimizationProgress, _Progress

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
        if self._options.sampled:
            raise ValueError(
                "a sampler decides by itself what a rank loads, and headrace does not divide it further: "
                "give it to headrace.feed.DataLoader, as a DistributedSampler where there are several ranks"
            )
        self._shuffle = self._planner.shuffle
        self._trainer: weakref.ref[Trainer] | None = None  # that trains with the latest pass
        self._trained_before = 0  # batches of all passes before the latest one
        self._refetch = False

    @property
    def sampler(self) -> Any:
        """The samples' order; in sequence for a trainer that overfits, which trains on the same batches every epoch."""
        trainer = _trainer_above()
        if trainer is not None and trainer.overfit_batches:
            self._planner.shuffle = False
        return super().sampler

    def __iter__(self) -> Iterator[Any]:
        trainer = _trainer_above()
        self._planner.shuffle = False if trainer is not None and trainer.overfit_batches else self._shuffle
        trains = trainer is not None and any(loader is self for loader in _training_loaders(trainer))
        self._trainer = weakref.ref(trainer) if trains and trainer is not None else None
        self._trained_before = _trained(trainer) if trains and trainer is not None else 0
        limits: Any = trainer.fit_loop._combined_loader if trains and trainer is not None else None
        if limits is not None and min(limits.limits) < float("inf"):
            self._planner.bookmark.steps = int(min(limits.limits))  # that end an epoch
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; has Lightning fetch anew what it has fetched of another one, ahead."""
        latest = self._planner.bookmark.given()
        super().set_epoch(epoch)
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None or latest is None:
            return
        loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
        _count_epoch(loop)
        iterates = trainer.current_epoch > 0 and not loop.is_resuming and not loop.epoch_loop.restarting
        if fetcher is None or fetcher.length is not None or iterates:
            return
        self._refetch = latest[0] != epoch
        loaders = _training_loaders(trainer)
        if self is loaders[-1] and any(loader._refetch for loader in loaders):
            for loader in loaders:
                loader._refetch = False
            iter(fetcher)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Returns the position; by default, in `trainer.fit`, that behind the batches which were trained on.

        Lightning counts them where one loader is trained with, and `training_step` does not take the batches itself.
        """
        trainer = self._trainer() if self._trainer is not None else None
        fetcher: Any = trainer.fit_loop._data_fetcher if trainer is not None and batches is None else None
        counts = fetcher is not None and not isinstance(fetcher, _DataLoaderIterDataFetcher)
        if counts and trainer is not None and len(fetcher.combined_loader.flattened) == 1:
            bookmark = self._planner.bookmark
            batches = bookmark.behind(bookmark.first_step + _trained(trainer) - self._trained_before)
        return super().state_dict(batches)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_trainer": None}


def _trainer_above() -> Trainer | None:
    """Returns the trainer that this is called for. Lightning tells a loader nothing, so the stack is looked through."""
    frame = sys._getframe(1)
    while frame is not None:
        loop = frame.f_locals.get("self")
        if isinstance(loop, _Loop):
            return loop.trainer
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _count_epoch(loop: _FitLoop) -> None:
    """Counts that an epoch begins, where Lightning does not: resumed behind the last batch of the one before.

    It would take the new epoch for a finished one when it resumes from a checkpoint in it; and with `max_steps` it goes
    on counting the batches of the epoch before, and ends the new one after a batch.
    """
    epochs = loop.epoch_progress
    if epochs.current.ready != epochs.current.processed or not (
        loop.restarted_mid_epoch or loop.restarted_on_epoch_end
    ):
        return
    if loop.restarted_on_epoch_end:
        epochs.increment_completed()
        for batches in (loop.epoch_loop, loop.epoch_loop.automatic_optimization):
            for progress in vars(batches).values():
                if isinstance(progress, (_Progress, _OptimizationProgress)):
                    progress.reset_on_run()
    epochs.increment_ready()
    epochs.increment_started()


def _trained(trainer: Trainer) -> int:
    """Returns how many batches were trained on, over all epochs; those of an epoch Lightning does not always reset."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)


def _training_loaders(trainer: Trainer) -> list[DataLoader]:
    combined = trainer.fit_loop._combined_loader
    return [each for each in combined.flattened if isinstance(each, DataLoader)] if combined is not None else []


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

    on_validation_start = Metering.step_ends
    on_train_epoch_end = Metering.epoch_ends
    teardown = Metering.training_ends
