"""Making batches: seed, load, transform, collate. The only place where the user's dataset is called.

Used by executors and, with `num_workers=0`, by the trainer itself. It keeps no state between slices but what it has
learned to be quicker, so an answer depends on the request alone.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from headrace.errors import INTERRUPTIONS, PipelineError, ProtocolError
from headrace.feed.batch.plain_values import CONTAINERS
from headrace.feed.batch.pytree import Bytes, is_plain_list
from headrace.feed.batch.row_layout import Layout, LayoutCache, RowWriter, Uneven
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.collate import collate_as_torch, reworded, stack_arrays, uneven_field
from headrace.feed.pipelines.seeds import SampleSeeds

_DEEP = 64  # levels: torch's collate needs several frames for each


@dataclass(frozen=True)
class Built:
    """A pipeline that is ready to work.

    Attributes:
        dataset: map-style: `__getitem__`, and `__len__` unless the user gives a sampler.
        collate: makes a batch of a list of samples; for `batch_size=None` converts one sample.
        default_collate: whether `collate` is torch's own or `stack_arrays`, so that rows may be written one by one.
        batched: False for `batch_size=None`.
        seed: seed of local workers, to which each adds its number.
        seeds, collate_seeds: set the generators, those that the dataset and an own `collate` draw from.
        layouts: those of the samples that were seen.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    default_collate: bool
    batched: bool = True
    seed: int = 0
    seeds: SampleSeeds = field(default_factory=SampleSeeds, compare=False)
    collate_seeds: SampleSeeds = field(default_factory=SampleSeeds, compare=False)
    layouts: LayoutCache = field(default_factory=LayoutCache, compare=False)

    @property
    def fetches(self) -> bool:
        """Whether the dataset loads all samples of a batch at once; as in torch, not with a `__getitems__` of None."""
        return bool(getattr(self.dataset, "__getitems__", None))

    @property
    def converts(self) -> bool:
        """Whether what is loaded without batching is left to torch's `default_convert`."""
        return not self.batched and self.default_collate and self.collate is not stack_arrays

    @property
    def stacks_as_torch(self) -> bool:
        """Whether batches are what torch's `default_collate` makes."""
        return self.batched and self.default_collate and self.collate is not stack_arrays

    @property
    def whole(self) -> bool:
        """Whether batches are always made whole."""
        return not self.batched or not self.default_collate or self.fetches

    def __getstate__(self) -> tuple[Any, ...]:
        """What is learned stays here: it looks at this process's memory."""
        return self.dataset, self.collate, self.default_collate, self.batched, self.seed

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Built.__init__(self, *state)


class SampleAddresses(NamedTuple):
    """Rows of one batch.

    Attributes:
        epoch, seed: of the epoch.
        position: plan position of the batch's first row.
        rows: which rows of the batch are made, in order.
        keys: one a row.
    """

    epoch: int
    seed: int
    position: int
    rows: Sequence[int]
    keys: Sequence[Any]

    def checked_rows(self) -> Sequence[int]:
        """Returns the rows. Raises ProtocolError if there is not one key a row."""
        if len(self.rows) != len(self.keys):
            raise ProtocolError(f"{len(self.keys)} keys came for {len(self.rows)} rows")
        return self.rows


class RowFailed(Exception):
    """The dataset raised over a row of the batch; the cause is the user's exception. `row` -1: it was no single row."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


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


def make_whole(built: Built, addresses: SampleAddresses) -> Any:
    """Makes a whole batch with the pipeline's collate function. Raises RowFailed."""
    if built.batched and built.fetches:
        samples = fetched(built, addresses)
    else:
        samples = built.seeds.made(lambda: _samples(built, addresses))
        if not built.batched:
            [samples] = samples
    return _collated(built, samples, (addresses.seed, addresses.epoch, addresses.position), addresses.keys)


def _samples(built: Built, addresses: SampleAddresses) -> list[Any]:
    """Loads the samples of a batch, as `samples_of` does, with fewer steps of Python where nothing is drawn."""
    if not built.seeds.quiet:
        return list(samples_of(built, addresses))
    load = partial(operator.getitem, built.dataset)
    samples: list[Any] = []
    add, rows = samples.append, addresses.checked_rows()
    try:
        for key in addresses.keys:  # not `map`: what takes of it would end where a sample raises StopIteration
            add(load(key))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        raise RowFailed(rows[len(samples)]) from error
    return samples


def fetched(built: Built, addresses: SampleAddresses) -> Any:
    """Has a dataset with `__getitems__` load the samples of a batch. Raises RowFailed."""
    key = seeds.stream_key(addresses.seed, addresses.epoch, addresses.position)
    own = built.seeds
    try:
        return own.made(lambda: own.call(key, built.dataset.__getitems__, list(addresses.keys)))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        raise RowFailed(-1) from error


def collated(built: Built, outputs: Any, address: tuple[int, int, int], keys: Sequence[Any] = ()) -> Any:
    """Makes a batch of outputs that were made before. Raises RowFailed.

    Args:
        built: the pipeline.
        outputs: at least one; without batching just one.
        address: seed, epoch, and position of the first.
        keys: theirs, if they have any.
    """
    return _collated(built, outputs if built.batched else outputs[0], address, keys)


def _collated(built: Built, samples: Any, address: tuple[int, int, int], keys: Sequence[Any] = ()) -> Any:
    try:
        if built.converts and is_plain_list(samples):
            return samples.copy()  # as torch's default_convert does, which looks at every value
        if built.default_collate:
            return _stacked(built, samples, keys)
        own, key = built.collate_seeds, seeds.collate_key(*address)
        return own.made(lambda: own.call(key, built.collate, samples))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        raise RowFailed(-1) from error


def _stacked(built: Built, samples: Any, keys: Sequence[Any]) -> Any:
    """Stacks samples. An error over uneven ones keeps its type, and says which field it is and what to do.

    Args:
        built: the pipeline.
        samples: of the batch.
        keys: theirs, if they have any.
    """
    collate = collate_as_torch if built.stacks_as_torch else built.collate
    try:
        return collate(samples)
    except RecursionError as error:
        if not _is_deep(samples):
            raise  # an object of the user's raised it
        raise PipelineError(
            "the samples are nested too deep to be stacked", "give the loader collate_fn=list, or make arrays of them"
        ) from error
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        explained = _explained(error, built, collate, samples, keys) if built.batched else None
        if explained is None:
            raise
        raise explained from error


def _is_deep(samples: Any) -> bool:
    """Whether lists, tuples and dicts are nested so deep that stacking them ends where the interpreter's stack does."""
    level = [samples]
    for _ in range(_DEEP):
        containers = [value for value in level if type(value) in CONTAINERS]
        level = [item for value in containers for item in (value.values() if type(value) is dict else value)]
    return bool(level)


def _explained(
    error: Exception, built: Built, collate: Callable[[Any], Any], samples: list[Any], keys: Sequence[Any]
) -> Exception | None:
    """Returns an error over uneven samples with an explanation; None if there is none.

    It never raises, whatever the user's objects do when they are looked at: the error itself is what counts.
    """
    try:
        field = uneven_field(samples, collate)
        if not field:
            return None
        told = error.args[0] if error.args else ""
        hint = "make the rows equal in .map() or in the dataset (pad them, say), or give the loader a collate_fn"
        return reworded(error, f"{told}; {field}{_sources(built, collate, samples, keys)}: {hint}")
    except INTERRUPTIONS:
        raise
    except BaseException:  # noqa: BLE001 - as said
        return None


def _sources(built: Built, collate: Callable[[Any], Any], samples: list[Any], keys: Sequence[Any]) -> str:
    """Says which sources of a mixture have unlike rows; empty without a mixture, or if rows of one source differ."""
    from headrace.feed.pipelines.mixture import Mixture

    if not isinstance(built.dataset, Mixture) or len(keys) != len(samples):
        return ""
    source_of = built.dataset.source_of
    first = {source_of(key): sample for key, sample in zip(reversed(keys), reversed(samples), strict=True)}
    name = source_of(keys[0])
    other = next((source for source in first if uneven_field([first[name], first[source]], collate)), None)
    return "" if other is None else f" (of the mixture's sources {name!r} and {other!r})"


def make_rows(
    built: Built, addresses: SampleAddresses, expected: Layout | None, block_of: Callable[[Layout], RowBlock]
) -> Layout:
    """Makes rows of a stacked batch, written as they are loaded.

    Args:
        built: the pipeline.
        addresses: the rows.
        expected: layout of the batch, None when it is not known yet.
        block_of: given the layout, says where the rows go.

    Returns:
        The layout.

    Raises:
        Uneven: the samples do not stack row by row, or not into the expected layout.
        RowFailed: the dataset raised.
    """
    return built.seeds.made(lambda: _make_rows(built, addresses, expected, block_of))


def _make_rows(
    built: Built, addresses: SampleAddresses, expected: Layout | None, block_of: Callable[[Layout], RowBlock]
) -> Layout:
    writer: RowWriter | None = None
    layout = expected
    for sample in samples_of(built, addresses):
        if writer is None:
            layout = built.layouts.of(sample, built.collate)
            if expected is not None and layout is not expected and layout != expected:
                raise Uneven
            place = block_of(layout)
            writer = RowWriter(sample, layout, place.block, place.rows, place.first)
        writer.write(sample)
        del sample
    if writer is None or layout is None:
        raise Uneven
    writer.finish()
    return layout


@dataclass(frozen=True)
class RowBlock:
    """Where rows go.

    Attributes:
        block: of the whole batch.
        rows: of the whole batch.
        first: the first row that is written.
    """

    block: Bytes
    rows: int
    first: int


def samples_of(built: Built, addresses: SampleAddresses) -> Iterator[Any]:
    """Loads the samples of a slice, one after the other, within `built.seeds.made`. Raises RowFailed."""
    own, load = built.seeds, partial(operator.getitem, built.dataset)
    rows, made = addresses.checked_rows(), 0
    try:
        for key in addresses.keys:
            if own.quiet:
                yield load(key)  # and keep no hold of it here
            else:
                stream = seeds.stream_key(addresses.seed, addresses.epoch, addresses.position + rows[made])
                yield own.call(stream, load, key)
            made += 1
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        raise RowFailed(rows[made]) from error
