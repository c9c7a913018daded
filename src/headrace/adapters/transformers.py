"""Hugging Face's Trainer: the same Trainer, whose batches come from headrace; and a callback that measures its steps.

The Trainer's own methods decide everything as before (dataset, columns, collator, sampling strategy, batch size); what
they return, a torch DataLoader that Accelerate has prepared, is never iterated but read, and replaced by a headrace
loader that gives the same samples: divided among the ranks once, shuffled by the Trainer's `data_seed` or `seed`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from headrace.adapters.accelerate import DataLoader
from headrace.adapters.metering import Metering
from headrace.feed.metrics.track import measured


class FeedMixin:
    """Put it before a Trainer class: ``class MyTrainer(FeedMixin, Seq2SeqTrainer)``.

    Training gives every index exactly once an epoch, over all ranks. In evaluation the last batch is filled up to the
    full size, as Accelerate does, and the Trainer takes that off again.

    Attributes:
        feed_options: further arguments of the loaders, e.g. ``{"verify": 0}``.
    """

    feed_options: dict[str, Any] = {}  # noqa: RUF012 - replaced, not changed

    def get_train_dataloader(self) -> Any:
        """Returns the headrace loader of the training set."""
        return self._feed(super().get_train_dataloader(), "train", training=True)  # type: ignore[misc]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the headrace loader of an evaluation set."""
        return self._feed(super().get_eval_dataloader(eval_dataset), "eval")  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Returns the headrace loader of a test set."""
        return self._feed(super().get_test_dataloader(test_dataset), "test")  # type: ignore[misc]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; a run that resumes in the middle of an epoch skips batches with headrace's loader."""
        with _skipping():
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def _feed(self, prepared: Any, name: str, *, training: bool = False) -> DataLoader:
        if isinstance(prepared, DataLoader):
            return prepared
        kept = vars(self).setdefault("_feed_loaders", {})  # the Trainer keeps those of persistent workers
        if prepared not in kept:
            loader = self._made_of(prepared, name, training=training)
            if not prepared.persistent_workers:
                return loader
            kept[prepared] = loader
        return kept[prepared]  # type: ignore[no-any-return]

    def _made_of(self, prepared: Any, name: str, *, training: bool) -> DataLoader:
        if isinstance(prepared.dataset, IterableDataset):
            raise TypeError("headrace takes map-style datasets (__getitem__ and __len__), got an iterable one")
        args: Any = self.args  # type: ignore[attr-defined]
        init = prepared.worker_init_fn
        seeds = (
            isinstance(init, functools.partial) and init.func.__name__ == "seed_worker"
        )  # headrace seeds each sample
        options: dict[str, Any] = {
            "num_workers": prepared.num_workers,
            "collate_fn": prepared.collate_fn,
            "pin_memory": prepared.pin_memory,
            "persistent_workers": prepared.persistent_workers,
            "multiprocessing_context": prepared.multiprocessing_context,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "worker_init_fn": None if seeds else init,
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "name": name,
        }
        divided = prepared.batch_sampler
        whole = divided.batch_sampler if isinstance(divided, BatchSamplerShard) else divided
        order: Any = getattr(whole, "sampler", None)
        plain = isinstance(order, SequentialSampler) or (isinstance(order, RandomSampler) and not order.replacement)
        if type(whole) is BatchSampler and plain and len(order) == len(prepared.dataset):
            options |= {"batch_size": whole.batch_size, "drop_last": whole.drop_last}
            options |= {"shuffle": isinstance(order, RandomSampler), "even_batches": False if training else "full"}
        else:
            options["batch_sampler"] = divided  # a strategy of the Trainer's own, divided by Accelerate
        loader = DataLoader(prepared.dataset, **options | self.feed_options)
        loader.prepared = True  # the Trainer's own checkpoints say where it is
        return loader


class Trainer(FeedMixin, transformers.Trainer):
    """`transformers.Trainer` with headrace's loaders."""


class MeterCallback(Metering, transformers.TrainerCallback):
    """Measures the steps of a Trainer whose loader is not headrace's: ``Trainer(..., callbacks=[MeterCallback()])``.

    A step is one batch of the loader: with gradient accumulation the Trainer takes several of them in a row and works
    on them together, so that single steps mean little, but their sums are right. Evaluation is not part of a step. In a
    run that goes on in the middle of an epoch, that epoch's loader is made by Accelerate and is not measured.
    headrace's loaders measure themselves; beside one of them this does nothing, nor does it outside a job.

    Args:
        name: name of the loader in the run's metrics.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Has the loader measured."""
        if not self._wants(train_dataloader):
            return
        kind = type(train_dataloader)

        def passes(loader: Any) -> Iterator[Any]:
            return measured(kind.__iter__(loader), self._meter, self._epoch)

        # `iter` asks an object's class, in Python; so the loader gets a class of its own, and stays the one that others
        # have seen. Accelerate's loaders have a `__class__` that is a property, behind which the real one is.
        own_class = type(kind.__name__, (kind,), {"__iter__": passes, "headrace_measures": True})
        object.__dict__["__class__"].__set__(train_dataloader, own_class)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts."""
        self._epoch = int(state.epoch or 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step under way ends before an evaluation."""
        if control.should_evaluate:
            self._meter.pause()

    on_epoch_end = Metering.epoch_ends
    on_train_end = Metering.training_ends


@contextmanager
def _skipping() -> Iterator[None]:
    """Replaces the Trainer's `skip_first_batches`, which would make a torch DataLoader of a headrace one."""
    module: Any = transformers.trainer
    original = module.skip_first_batches

    def skip(loader: Any, num_batches: int = 0) -> Any:
        if not isinstance(loader, DataLoader):
            return original(loader, num_batches)
        loader.skip_first_batches(num_batches)
        return loader

    module.skip_first_batches = skip
    try:
        yield
    finally:
        module.skip_first_batches = original
