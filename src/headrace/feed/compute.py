"""Making a slice: seed, load, transform, collate, write. The only place where the user's dataset is called.

Used by executors and, with `num_workers=0`, by the trainer itself. It keeps no state between slices, so an answer
depends on the request alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.feed import layout as layouts
from headrace.feed import seeds
from headrace.feed.layout import Layout, RowWriter, Uneven
from headrace.feed.tree import Bytes


@dataclass(frozen=True)
class Built:
    """A pipeline that is ready to work.

    Attributes:
        dataset: map-style: `__getitem__`, and `__len__` unless the user gives a sampler.
        collate: makes a batch of a list of samples; for `batch_size=None` converts one sample.
        default_collate: whether `collate` is torch's own, so that rows may be written one by one.
        batched: False for `batch_size=None`.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    default_collate: bool
    batched: bool = True

    @property
    def whole(self) -> bool:
        """Whether batches are always made whole."""
        return not self.batched or not self.default_collate or hasattr(self.dataset, "__getitems__")


@dataclass(frozen=True)
class Slice:
    """The address of a slice: rows first.. of a batch, with their keys."""

    epoch: int
    seed: int
    position: int
    rows: int
    first: int
    keys: Sequence[Any]


@dataclass(frozen=True)
class Cost:
    """What a slice took: wall seconds and CPU seconds."""

    seconds: float
    cpu: float


class Stopwatch:
    """Measures wall and CPU time of this thread."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def read(self) -> Cost:
        """Returns the time since the start."""
        return Cost(time.perf_counter() - self._wall, time.thread_time() - self._cpu)


def make_whole(built: Built, part: Slice) -> Any:
    """Makes a whole batch with the pipeline's collate function."""
    if not built.batched:
        seeds.seed_sample(part.seed, part.epoch, part.position)
        return built.collate(built.dataset[part.keys[0]])
    if hasattr(built.dataset, "__getitems__"):
        seeds.seed_sample(part.seed, part.epoch, part.position)
        samples = built.dataset.__getitems__(list(part.keys))
    else:
        samples = [_load(built, part, row) for row in range(len(part.keys))]
    seeds.seed_collate(part.seed, part.epoch, part.position)
    return built.collate(samples)


def make_rows(
    built: Built, part: Slice, expected: Layout | None, block_of: Callable[[Layout], tuple[Bytes, int, int]]
) -> Layout:
    """Makes rows of a stacked batch, each written as soon as it is loaded.

    Args:
        built: the pipeline.
        part: the slice.
        expected: layout of the batch, None when it is not known yet.
        block_of: given the layout, returns the block to write to, its rows, and the row of the slice's first sample.

    Returns:
        The layout.

    Raises:
        Uneven: the samples do not stack row by row, or not into the expected layout.
    """
    writer: RowWriter | None = None
    start = 0
    layout = expected
    for row in range(len(part.keys)):
        sample = _load(built, part, row)
        if writer is None:
            layout = layouts.learn(sample) if expected is None else expected  # the writer compares
            block, rows, start = block_of(layout)
            writer = RowWriter(sample, layout, block, rows)
        writer.write(start + row, sample)
    if layout is None:
        raise Uneven
    return layout


def _load(built: Built, part: Slice, row: int) -> Any:
    seeds.seed_sample(part.seed, part.epoch, part.position + part.first + row)
    return built.dataset[part.keys[row]]
