"""Mixtures: several datasets as one, of whose rows the loader takes as many from each as the weights say.

    mixed = feed.mix({"web": web, "code": code}, weights={"web": 0.7, "code": 0.3})

A mixture holds the rows of all its sources, one source after the other, and the union of their shards; the name of a
source stands before the keys of its shards. Which row comes when is the loader's business: `plan.orders.mixed_order`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, sendable
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.identifiers import one_of, positive
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.lane_datasets import is_uncounted, require_openable
from headrace.feed.sources.source import Source
from headrace.feed.streams.mixed_stream import MixedStream, keys_of
from headrace.feed.streams.stream import Stream
from headrace.feed.wire.messages import Mixing, Until

MAX_SOURCES = 1024
Weights = Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]]


class Counted(Protocol):
    """A dataset with rows by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@overload
def mix(
    sources: Mapping[str, Counted], weights: Weights, *, until: Until | None = None, rows: int | None = None
) -> Mixture: ...


@overload
def mix(
    sources: Mapping[str, Any], weights: Weights, *, until: Until | None = None, rows: int | None = None
) -> Any: ...


def mix(
    sources: Mapping[str, Any], weights: Weights, *, until: Until | None = None, rows: int | None = None
) -> Mixture | MixedStream:
    """Mixes datasets: of every number of samples each gives the share that its weight says, to within a sample.

    Args:
        sources: datasets by name: sources, map-style datasets, streams, packed documents, datasets without a count,
            pipelines that make one. If one has no count the mixture has none, and is read in lanes.
        weights: of each, by the same names; only their ratios count, and 0 leaves a source out. Or a list of such
            weights, each with the number of samples, over all ranks and epochs, after which it holds:
            ``[(0, {...}), (100_000, {...})]``. An epoch keeps the length that follows from the weights it begins with.
        until: an epoch (or a lane) ends with the ``"first"`` source that is used up (the default), or with the last:
            ``"all"``; a source that is used up before begins again, in another order.
        rows: of an epoch, in place of `until`; then sources go on in the next epoch where they were. It needs counts.

    Raises:
        ValueError: names or weights that do not fit, or `until` and `rows`.
        PipelineError: a source that has no rows or can be read once only, or `rows` without counts.
    """
    if not isinstance(sources, Mapping):
        raise TypeError(f"sources must be a dict of names and datasets, got {sources!r}")
    if not sources or len(sources) > MAX_SOURCES:
        raise ValueError(f"a mixture has 1 to {MAX_SOURCES} sources, got {len(sources)}")
    for name in sources:
        if not isinstance(name, str) or not name or "/" in name or sendable(name) != name:
            raise ValueError(f"the name of a source is a text without '/' that has UTF-8, got {name!r}")
    one_of("until", until, (None, "first", "all"))
    if rows is not None and until is not None:
        raise ValueError("rows= says how long an epoch is, and so does until=: give one of the two")
    if rows is not None:
        rows = positive("rows of an epoch", rows)
    names = tuple(sorted(sources, key=lambda name: f"{name}/"))  # as the keys of their shards are sorted
    datasets = [_built(sources[name]) for name in names]
    if any(map(is_uncounted, datasets)):
        return _uncounted(names, datasets, weights, until, rows)
    parts = [_source(name, dataset) for name, dataset in zip(names, datasets, strict=True)]
    counts = tuple(len(part) for part in parts)
    return Mixture(parts, Mixing(names, counts, (), until or "first", rows or 0).weighted(weights))


class Mixture(Source):
    """See the module. It is made by `feed.mix`.

    Args:
        parts: the sources, in the order of `mixing`.
        mixing: what it is made of.

    Attributes:
        mixing: as given.
    """

    def __init__(self, parts: list[Source], mixing: Mixing) -> None:
        self._parts = parts
        self.mixing = msgspec.structs.replace(mixing, rows=tuple(len(part) for part in parts))
        self._part_starts = starts = list(itertools.accumulate(map(len, parts), initial=0))
        counts, digests = self._shards()
        if not any(part.declared for part in parts):  # every host has all of it
            digest = [digest_of([counts, digests], b"mixture")] if all(digests) else []
            super().__init__([("", starts[-1])], declared=False, digests=digest)
            return
        shard_digests = digests if counts == sorted(counts) else []  # else they are put in order, and digests are not
        super().__init__(counts, declared=True, digests=shard_digests)

    def _shards(self) -> tuple[list[tuple[str, int]], list[str]]:
        counts, digests = [], []
        for name, part in zip(self.mixing.names, self._parts, strict=True):
            counts += [(f"{name}/{key}", rows) for key, rows in part.counts]
            digests += part.shard_digests if len(part.shard_digests) == len(part.counts) else [""] * len(part.counts)
        return counts, digests

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        at = self._starts[shard] + row
        part = bisect_right(self._part_starts, at) - 1
        return self._parts[part][at - self._part_starts[part]]

    def source_of(self, index: int) -> str:
        """Returns the name of the source that a row is of."""
        return self.mixing.names[bisect_right(self._part_starts, index) - 1]

    def map(self, function: Callable[[Any], Any]) -> Mixture:
        """Returns a mixture of what a function makes of every row. Raises TypeError if it cannot be called."""
        return Mixture([part.map(function) for part in self._parts], self.mixing)

    def lengths(self) -> NDArray[np.int64]:
        """See `Source.lengths`."""
        return np.concatenate([part.lengths() for part in self._parts])

    def batch(self, rows: int) -> Mixture:
        """Returns a mixture of lists of consecutive rows, each of one source. Raises ValueError for fewer than 1."""
        return Mixture([part.batch(rows) for part in self._parts], self.mixing)

    def _only(self, keys: Collection[str]) -> Mixture:
        names = self.mixing.names
        parts = [part._only(keys_of(name, keys)) for name, part in zip(names, self._parts, strict=True)]
        return Mixture(parts, self.mixing)


class _DatasetRows(Source):
    """A map-style dataset of the user's as a source."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        ask = getattr(dataset, "__shards__", None)
        counts = [("", len(dataset))] if ask is None else [(str(key), int(rows)) for key, rows in ask()]
        super().__init__(counts, declared=ask is not None, digests=getattr(dataset, "shard_digests", ()))

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        return self._dataset[self._starts[shard] + row]


def _built(dataset: Any) -> Any:
    return dataset.build() if isinstance(dataset, Pipeline) else dataset


def _source(name: str, dataset: Any) -> Source:
    """Returns a source of what the user gave. Raises PipelineError."""
    if not hasattr(dataset, "__len__"):
        raise PipelineError(
            f"the source {name!r} is a {type(dataset).__name__}, which has no rows by number, and cannot be iterated",
            hint="give a source, a map-style dataset with __len__, an IterableDataset, or a function that makes an "
            "iterable",
        )
    source = dataset if isinstance(dataset, Source) else _DatasetRows(dataset)
    if not len(source) and not source.declared:  # another host may hold its shards
        raise PipelineError(f"the source {name!r} has no rows", "leave it out, or look where its data are")
    return source


def _uncounted(
    names: tuple[str, ...], datasets: list[Any], weights: Weights, until: Until | None, rows: int | None
) -> MixedStream:
    """Returns a mixture of datasets of which one has no count at least. Raises PipelineError."""
    parts = []
    for name, dataset in zip(names, datasets, strict=True):
        if is_uncounted(dataset):
            require_openable(dataset)
            parts.append(dataset)
        else:
            parts.append(Stream(_source(name, dataset)))
    without = next(name for name, dataset in zip(names, datasets, strict=True) if is_uncounted(dataset))
    if rows is not None:
        raise PipelineError(
            f"rows= needs the counts of all sources, to go on in the next epoch, and {without!r} has none",
            hint='give until="first" or "all", and steps_per_epoch= to the loader',
        )
    mixing = Mixing(names, (), (), until or "first").weighted(weights)
    if mixing.schedule:
        raise PipelineError(
            f"weights that change need the counts of all sources, to know where each stands, and {without!r} has none",
            hint="give one dict of weights, and begin an epoch with another mixture",
        )
    return MixedStream(parts, mixing)
