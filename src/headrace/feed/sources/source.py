"""What all counted sources are: map-style datasets whose rows are found by (shard, row).

Row `index` lies in a shard that the counts alone decide, so every worker finds it without reading what stands before.
A source is all that the feed's pipelines ask of a dataset, and it declares its shards, so that hosts may hold
different ones.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError
from headrace.feed.identifiers import positive
from headrace.feed.streams.packing import Packable
from headrace.feed.streams.steps import require_callable
from headrace.feed.streams.stream import Stream

Counts = Sequence[tuple[str, int]]


class Source(Packable):
    """Rows of shards; see the module.

    Args:
        counts: key and number of rows of every shard, sorted by key.
        declared: whether other hosts may hold other shards.
        digests: what tells each shard from another of as many rows, in the order of `counts`; empty if unknown.
    """

    def __init__(self, counts: Counts, *, declared: bool, digests: Sequence[str] = ()) -> None:
        self.counts = list(counts)
        self.shard_digests = list(digests)
        self.declared = declared
        self._starts = list(itertools.accumulate((rows for _, rows in self.counts), initial=0))

    @abstractmethod
    def read(self, shard: int, row: int) -> Any:
        """Returns a row of a shard, both by number. Raises ShardError if it cannot be read."""

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        if not hasattr(index, "__index__"):
            raise TypeError(
                f"rows of a source are found by one number, got {index!r}; for several write "
                "[source[row] for row in range(first, last)]"
            )
        length = len(self)
        at = index + length if index < 0 else index
        if not 0 <= at < length:
            raise IndexError(f"index {index} is out of range for {length} rows")
        shard = bisect_right(self._starts, at) - 1
        return self.read(shard, at - self._starts[shard])

    def __iter__(self) -> Iterator[Any]:
        return (self.read(shard, row) for shard, (_, rows) in enumerate(self.counts) for row in range(rows))

    @property
    def __shards__(self) -> Callable[[], list[tuple[str, int]]]:
        """What this host holds; see `headrace.feed.plan.shard_map`."""
        if not self.declared:
            raise AttributeError("__shards__")
        return lambda: list(self.counts)

    def map(self, function: Callable[[Any], Any]) -> Source:
        """Returns a source of what a function makes of every row.

        Args:
            function: of one row. It may draw random numbers: they follow from the row's place in the epoch's order.

        Raises:
            TypeError: it cannot be called.
        """
        require_callable(function, "map")
        return _Mapped(self, function)

    def lengths(self) -> NDArray[np.int64]:
        """Returns the bytes of every row, from the index. Raises PipelineError if that does not know them."""
        raise PipelineError(
            "the lengths of the rows of this source are not known without reading them",
            hint="give them yourself, one integer a row: feed.Buckets(lengths)",
        )

    def batch(self, rows: int) -> Source:
        """Returns a source of lists of consecutive rows. No list crosses a shard, so the last of one may be shorter.

        Args:
            rows: of a list, at least 1.

        Raises:
            ValueError: fewer.
        """
        return _Batched(self, positive("rows of a batch", rows))

    def filter(self, predicate: Callable[[Any], bool]) -> Stream:
        """Returns a stream of the rows that a predicate holds for. It has no count: it is read in lanes.

        Args:
            predicate: of one row. It may draw random numbers.

        Raises:
            TypeError: it cannot be called.
        """
        return Stream(self).filter(predicate)

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> Stream:
        """Returns a stream of everything in what a function makes of every row. It has no count: it is read in lanes.

        Args:
            function: returns none, one or many outputs for a row. It may draw random numbers.

        Raises:
            TypeError: it cannot be called.
        """
        return Stream(self).flat_map(function)

    def _documents(self) -> Stream:
        return Stream(self)

    def _only(self, keys: Collection[str]) -> Source:
        """Returns a source of some of the shards, in the same order."""
        return _Some(self, keys)


class _Some(Source):
    def __init__(self, source: Source, keys: Collection[str]) -> None:
        self._numbers = [number for number, (key, _) in enumerate(source.counts) if key in keys]
        digests = source.shard_digests if len(source.shard_digests) == len(source.counts) else []
        super().__init__(
            [source.counts[number] for number in self._numbers],
            declared=source.declared,
            digests=[digests[number] for number in self._numbers] if digests else [],
        )
        self._source = source

    def read(self, shard: int, row: int) -> Any:
        return self._source.read(self._numbers[shard], row)


class _Mapped(Source):
    def __init__(self, source: Source, function: Callable[[Any], Any]) -> None:
        super().__init__(source.counts, declared=source.declared, digests=source.shard_digests)
        self._source, self._function = source, function

    def lengths(self) -> NDArray[np.int64]:
        """Those of the source."""
        return self._source.lengths()

    def read(self, shard: int, row: int) -> Any:
        return self._function(self._source.read(shard, row))


class _Batched(Source):
    def __init__(self, source: Source, rows: int) -> None:
        counts = [(key, -(-count // rows)) for key, count in source.counts]
        super().__init__(counts, declared=source.declared, digests=source.shard_digests)
        self._source, self._rows = source, rows

    def read(self, shard: int, row: int) -> list[Any]:
        first = row * self._rows
        last = min(first + self._rows, self._source.counts[shard][1])
        return [self._source.read(shard, at) for at in range(first, last)]
