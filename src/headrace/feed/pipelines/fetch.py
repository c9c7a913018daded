"""Making batches: seed, load, transform, collate. The only place where the user's dataset is called.

Samples become a batch by torch's own collate functions, and by NumPy's counterpart for those who have no torch.

Used by executors and, with `num_workers=0`, by the trainer itself. It keeps no state between slices but what it has
learned to be quicker, so an answer depends on the request alone.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError, ProtocolError, interruptions
from headrace.feed.batch.plain_values import CONTAINERS
from headrace.feed.batch.pytree import Bytes, is_plain_list
from headrace.feed.batch.row_layout import Layout, LayoutCache, RowWriter, Uneven, join_arrays, stacks_at_once
from headrace.feed.batch.tensors import is_tensor
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.seeds import SampleSeeds

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


def standard_collate(*, batched: bool) -> Callable[[Any], Any]:
    """Returns torch's `default_collate`, or `default_convert` for a loader that does not batch.

    They are taken where torch's loader takes them; somebody may have put another function there.
    """
    from torch.utils.data._utils import collate

    return collate.default_collate if batched else collate.default_convert


def stack_arrays(samples: list[Any]) -> Any:
    """Makes a batch of NumPy arrays of a list of samples; what `collate_fn=` takes where batches are not for torch.

    Arrays and numbers are stacked along a new first axis. Mappings become a dict of such batches, lists, tuples and
    namedtuples one of their own type. Everything else, as strings, becomes the list of the samples' values.

    Args:
        samples: all of the same structure.

    Raises:
        ValueError: arrays of different shapes, or samples of different structures.
        TypeError: masked arrays, matrices, or arrays of another subclass, whose meaning would be lost.
    """
    first = samples[0]
    if isinstance(first, _NUMBERS):
        for kind in {*map(type, samples)}:
            if issubclass(kind, np.ndarray) and kind not in (np.ndarray, np.memmap):
                raise TypeError(
                    f"a {kind.__module__}.{kind.__qualname__} would be stacked as an ordinary array: return np.asarray "
                    "of it, and what else belongs to it (as a mask) as another field"
                )
        return np.stack([np.asarray(sample) for sample in samples])
    if isinstance(first, Mapping):
        return {key: stack_arrays([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (list, tuple)):
        parts = [stack_arrays(list(column)) for column in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(samples)


def uneven_field(samples: list[Any], collate: Callable[[list[Any]], Any]) -> str:
    """Says which field keeps samples from being stacked, and how they differ; empty if that is not seen.

    Args:
        samples: of one batch.
        collate: what stacks them. A field is the culprit if the field alone cannot be stacked, whatever it looks like.

    Raises:
        BaseException: the user's objects may do anything when they are looked at.
    """
    return _uneven_field(samples, collate, "batch") if _fails(samples, collate) else ""


def _fails(samples: list[Any], collate: Callable[[list[Any]], Any]) -> bool:
    try:
        collate(samples)
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return False


def _uneven_field(samples: list[Any], collate: Callable[[list[Any]], Any], place: str) -> str:
    first = samples[0]
    columns: Iterable[tuple[Any, list[Any]]] = ()
    if all(isinstance(sample, Mapping) for sample in samples):
        missing = next(filter(None, ([key for key in first if key not in sample] for sample in samples)), [])
        if missing:
            return f"{place}[{min(map(repr, missing))}] is not in every sample"
        columns = ((key, [sample[key] for sample in samples]) for key in first)
    elif all(isinstance(sample, (list, tuple)) and len(sample) == len(first) for sample in samples):
        columns = enumerate(map(list, zip(*samples, strict=True)))
    for key, column in columns:
        if _fails(column, collate):
            return _uneven_field(column, collate, f"{place}[{key!r}]")
    if first is None:
        return f"{place} is None"
    types = {type(sample) for sample in samples}
    if len(types) > 1 and not all(map(is_tensor, samples)):
        return f"{place} holds {' and '.join(sorted(kind.__name__ for kind in types))}"
    shapes = [_shape_of(sample) for sample in samples]
    other = next((shape for shape in shapes if shape != shapes[0]), None)  # of the row that torch's error names too
    return "" if other is None or isinstance(first, (str, bytes)) else f"{place} has the shapes {shapes[0]} and {other}"


def reworded(error: Exception, text: str) -> Exception | None:
    """Returns an exception of the same type with another text; None if its type takes no text."""
    copy = type(error)(text)
    return copy if text in str(copy) or isinstance(copy, KeyError) else None


def _shape_of(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)  # also of what has no axes, and so no length
    return tuple(shape) if shape is not None else (len(value),) if hasattr(value, "__len__") else ()


def collate_as_torch(samples: list[Any]) -> Any:
    """Makes what torch's `default_collate` makes, which makes a tensor of each NumPy array first: here one of all.

    Args:
        samples: of one batch.

    Raises:
        Exception: what `default_collate` raises.
    """
    from torch.utils.data._utils import collate

    functions = collate.default_collate_fn_map
    if functions.get(np.ndarray) is not collate.collate_numpy_array_fn:  # the user's own
        return collate.default_collate(samples)  # type: ignore[no-untyped-call]
    return collate.collate(samples, collate_fn_map={**functions, np.ndarray: _stacked_arrays})


def _stacked_arrays(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    import torch
    from torch.utils.data._utils import collate

    if stacks_at_once(batch):
        stacked = np.empty((len(batch), *batch[0].shape), batch[0].dtype)
        join_arrays(batch, stacked)
        with contextlib.suppress(TypeError):  # of a dtype that torch does not have
            return torch.from_numpy(stacked)
    return collate.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def stacks_rows(collate: Callable[[Any], Any], *, batched: bool) -> bool:
    """Returns whether rows of the batches that a function makes may be written one by one: torch's, and NumPy's."""
    if collate is stack_arrays:
        return True
    if "torch.utils.data" not in sys.modules or collate is not standard_collate(batched=batched):
        return False
    return getattr(collate, "__module__", "") == "torch.utils.data._utils.collate"


def stack_in_ordinary_memory() -> None:
    """Keeps `default_collate` from stacking into torch's shared memory in this process.

    In a worker (`get_worker_info()` is set) it makes a file in /dev/shm for every tensor, to hand it to the trainer.
    Here results go into slabs, so that is a copy too many, and a worker that is killed between making and unlinking
    such a file leaves it behind forever. The change is made where torch lets collate functions be added: its map by
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
    whole = built.batched and built.fetches
    samples = fetched(built, addresses) if whole else built.seeds.made(lambda: _samples(built, addresses))
    return collated(built, samples, (addresses.seed, addresses.epoch, addresses.position), addresses.keys)


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
    except interruptions():
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
    except interruptions():
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
    samples = outputs if built.batched else outputs[0]
    try:
        if built.converts and is_plain_list(samples):
            return samples.copy()  # as torch's default_convert does, which looks at every value
        if built.default_collate:
            return _stacked(built, samples, keys)
        own, key = built.collate_seeds, seeds.collate_key(*address)
        return own.made(lambda: own.call(key, built.collate, samples))
    except interruptions():
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
        text = error.args[0] if error.args else ""
        hint = "make the rows equal in .map() or in the dataset (pad them, say), or give the loader a collate_fn"
        return reworded(error, f"{text}; {field}{_sources(built, collate, samples, keys)}: {hint}")
    except interruptions():
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
    rows, count = addresses.checked_rows(), 0
    try:
        for key in addresses.keys:
            if own.quiet:
                yield load(key)  # and keep no hold of it here
            else:
                stream = seeds.stream_key(addresses.seed, addresses.epoch, addresses.position + rows[count])
                yield own.call(stream, load, key)
            count += 1
    except interruptions():
        raise
    except BaseException as error:
        raise RowFailed(rows[count]) from error
