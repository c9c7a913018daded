"""headrace's feed as a `tf.data.Dataset`: exactly once, in order and resumable, for training with TensorFlow.

A pass of the dataset is a pass of a `headrace.feed.DataLoader` whose batches are NumPy arrays; torch is not needed.
Their memory is handed to TensorFlow as it is: tensors are views of the slabs (`from_generator` copies only what is not
aligned to 64 bytes, and the feed aligns everything), and a slab is used again when the last tensor over it is gone.

TensorFlow may read ahead of the training (`prefetch`, a distribution strategy). So the place to go on from is not where
the loader is: `FeedDataset.state_dict` is told how many batches were trained on.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from headrace.errors import FeedError
from headrace.feed import DataLoader, Pipeline, stack_arrays
from headrace.feed.loader.supply import Iteration


class FeedDataset(tf.data.Dataset):  # type: ignore[misc]
    """Batches of a loader as a dataset. Every pass over it is an epoch; made by `feed`.

    Attributes:
        loader: where they come from: its `stats()`, `set_epoch()` and `skipped`.
    """

    def __init__(self, loader: DataLoader, *, skips: bool) -> None:
        self.loader = loader
        self._skips = skips
        self._opened = self._open()
        if self._opened is None:
            raise FeedError("the feed has no batch to learn the shapes of", hint="is the dataset empty?")
        fixed = loader.drop_last and not skips
        rows = loader.batch_size if fixed else None
        signature = tf.nest.map_structure(lambda leaf: _spec(leaf, rows), self._opened[1])
        self._source = tf.data.Dataset.from_generator(_passes_of(weakref.ref(self)), output_signature=signature)
        super().__init__(tf.data.experimental.to_variant(self._source))

    @property
    def element_spec(self) -> Any:
        """Structure, shapes and dtypes of a batch. The rows are fixed with `drop_last=True`."""
        return self._source.element_spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._source]

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch. Raises TypeError if the dataset has no count."""
        return len(self.loader)

    def cardinality(self, name: str | None = None) -> tf.Tensor:
        """Returns the number of batches of a whole epoch, int64.

        It is unknown with ``on_error="skip"``, and in lanes without `steps_per_epoch`.

        It is what Keras counts an epoch's steps by. TensorFlow itself is not told (`assert_cardinality`): it would end
        a pass that goes on in the middle of an epoch with an error.

        Args:
            name: of the operation, as TensorFlow's.
        """
        count = tf.data.experimental.UNKNOWN_CARDINALITY
        if not self._skips:
            with contextlib.suppress(TypeError):  # nobody knows how much a filter leaves
                count = len(self.loader)
        return tf.constant(count, tf.int64, name=name)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Returns a position, as `DataLoader.state_dict` does.

        Args:
            batches: how many of the latest pass were trained on; by default all that TensorFlow has taken, which may be
                more.

        Raises:
            PositionError: TensorFlow has not taken as many.
        """
        return self.loader.state_dict(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next pass where a state was taken. Raises PositionError if it does not fit."""
        self._opened = None
        self.loader.load_state_dict(dict(state))

    def close(self) -> None:
        """Ends the workers."""
        self._opened = None
        self.loader.close()

    def _open(self) -> tuple[Iteration, Any] | None:
        """Plans a pass and waits for its first batch, which is not taken yet; None if there is none.

        A state behind an epoch's last batch leaves nothing of that epoch, which neither TensorFlow nor Keras can do
        anything with: then it is the next epoch.
        """
        for _ in range(2):
            batches = iter(self.loader)
            assert isinstance(batches, Iteration)
            first = batches.peek()
            if first is not None:
                return batches, first
            next(batches, None)  # it was the end
        return None

    def _batches(self) -> Iterator[Any]:
        opened, self._opened = self._opened or self._open(), None
        if opened is None:
            return
        expected = self.element_spec
        for number, batch in enumerate(opened[0]):
            _require_dtypes(batch, expected, number)
            yield batch


def _passes_of(dataset: weakref.ref[FeedDataset]) -> Callable[[], Iterator[Any]]:
    """Returns what TensorFlow calls for every pass, and keeps for ever: the dataset must not be held by it."""

    def batches() -> Iterator[Any]:
        found = dataset()
        if found is None:
            raise FeedError("nobody holds the dataset of the feed any more", hint="keep what feed() returned")
        return found._batches()

    return batches


def _require_dtypes(batch: Any, expected: Any, number: int, place: str = "") -> None:
    """Raises FeedError if a batch has other dtypes than the first one: TensorFlow would cast its values silently."""
    if isinstance(expected, tf.TensorSpec):
        dtype = getattr(batch, "dtype", expected.dtype)
        if tf.as_dtype(dtype) != expected.dtype:
            raise FeedError(
                f"batch {number} of the pass has {dtype}{place and ' in ' + place}, "
                f"and the first batch had {expected.dtype.name}",
                hint="TensorFlow has one dtype for all batches, and would cast the values: give all samples one that "
                "holds them, in the dataset or in .map()",
            )
    elif isinstance(expected, Mapping):
        for key in expected.keys() & batch.keys() if isinstance(batch, Mapping) else ():
            _require_dtypes(batch[key], expected[key], number, f"{place}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for at, (part, spec) in enumerate(zip(batch, expected, strict=False)):
            _require_dtypes(part, spec, number, f"{place}[{at}]")


def _spec(leaf: object, rows: int | None) -> tf.TensorSpec:
    """Returns shape and dtype of a part of a batch. Raises FeedError when TensorFlow has no such dtype."""
    if not isinstance(leaf, np.ndarray):
        raise FeedError(
            f"a batch holds a {type(leaf).__name__}, which is no tensor",
            hint="samples for TensorFlow are NumPy arrays and numbers, nested in dict, list or tuple",
        )
    return tf.TensorSpec((rows, *leaf.shape[1:]), tf.as_dtype(leaf.dtype))


def feed(
    dataset: Any,
    batch_size: int | None = None,
    *,
    global_batch_size: int | None = None,
    state: Mapping[str, Any] | None = None,
    seed: int | None = 0,
    **options: Any,
) -> FeedDataset:
    """Makes a `tf.data.Dataset` of headrace's own feed.

    The first batch is loaded at once, because TensorFlow asks for shapes and dtypes before the training.

    Args:
        dataset: a call of a function marked with `headrace.feed.pipeline`, or what `headrace.feed.DataLoader` takes:
            shards, datasets with and without a count. Samples are NumPy arrays and numbers, nested in dict, list or
            tuple.
        batch_size: rows of a batch, per rank.
        global_batch_size: rows of a step over all ranks, in place of `batch_size`.
        state: where to begin: what `FeedDataset.state_dict` returned.
        seed: of order and random numbers.
        **options: as of `headrace.feed.DataLoader`: `shuffle`, `drop_last` (rows are static then), `num_workers`,
            `rank` and `world_size`, `workers`, `num_shards` and `steps_per_epoch` for data without a count, ...

    Raises:
        FeedError: a batch that TensorFlow cannot take, or an option that it has no use for.
        PositionError: `state` does not fit.

    Example:
        images = headrace.tensorflow.feed(train_set(), 64, shuffle=True, drop_last=True)
        model.fit(images, epochs=3)
    """
    for name in ("device", "pin_memory", "generator"):
        if options.get(name):
            raise FeedError(f"{name} can be used with torch only", hint="TensorFlow places batches itself")
    if batch_size is None and global_batch_size is None:
        raise FeedError(
            "headrace.tensorflow.feed gives batches, so batch_size=None has no meaning",
            hint="say how many rows a batch has, with batch_size or global_batch_size; images.unbatch() makes single "
            "samples of them",
        )
    if isinstance(dataset, tf.data.Dataset):
        raise FeedError(
            f"the feed runs Python: datasets with rows, iterables and shards, not a {type(dataset).__name__}",
            hint="a tf.data pipeline runs on the data hosts by headrace.tensorflow.distribute "
            "(the page tensorflow of the docs)",
        )
    options.setdefault("collate_fn", stack_arrays)
    if options.get("num_workers"):  # a fork of a process that has TensorFlow's threads may hang
        options.setdefault("multiprocessing_context", "forkserver")
        options.setdefault("persistent_workers", not isinstance(dataset, Pipeline))
    rows = 1 if batch_size is None else batch_size  # 1 is what a loader takes for not given
    loader = DataLoader(dataset, rows, global_batch_size=global_batch_size, seed=seed, **options)
    try:
        if state:
            loader.load_state_dict(dict(state))
        return FeedDataset(loader, skips=options.get("on_error") == "skip")
    except BaseException:
        loader.close()
        raise
