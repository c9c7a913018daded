"""Sharded data: which worker can serve which sample, and what a sample is called there.

With a `ShardedByS3Key` channel every host holds other files. A dataset declares what it holds there with a method:

    def __shards__(self) -> list[tuple[str, int]]:
        return [(path.name, rows_of(path)) for path in self.files]      # key and number of samples, in its own order

Every worker announces that when it opens the pipeline, sorted by key, whatever the dataset's own order. The client
makes the union. The global order, which a loader's indices count in, is that of the sorted keys too: so it depends on
the data alone, not on how they were spread. A key that several workers announce is a replica, which any of them can
serve. A worker is asked for its own indices: the samples of the shards before it there, plus the index inside.

Invariants:
* the union does not change once it was made: the plan of an epoch stands on it;
* a sample is asked only of a worker that holds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, sendable
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.wire.messages import MAX_KEY, MAX_SHARDS

MAX_TOTAL = 4 << 20  # bytes of all keys of a worker

Shards = Sequence[tuple[str, int]]


def data_digest(shards: Shards, digests: Sequence[str]) -> str:
    """Returns what tells data from others of as many rows: 16 hex digits; empty if a shard's own digest is unknown.

    Args:
        shards: keys and samples, sorted by key.
        digests: of the shards, in the same order; or none.
    """
    if len(digests) != len(shards) or not all(digests):
        return ""
    return digest_of([list(shards), list(digests)], b"data")


class RowRange(NamedTuple):
    """Consecutive rows that the same workers hold. `first` to `last` - 1, as in a part of a batch."""

    first: int
    last: int
    holders: frozenset[WorkerNumber]


def declared(dataset: Any) -> list[tuple[str, int]]:
    """Returns the shards that a dataset declares; nothing when it declares none.

    Raises:
        PipelineError: `__shards__` returned something else, too much, or another number of samples than `len()`.
    """
    ask = getattr(dataset, "__shards__", None)
    if ask is None:
        return []
    name = f"{type(dataset).__name__}.__shards__()"
    hint = "return a list of (key, number of samples), in the order of the dataset's indices"
    try:
        shards = msgspec.convert([tuple(shard) for shard in ask()], list[tuple[str, int]])
    except (TypeError, msgspec.ValidationError) as error:
        raise PipelineError(f"{name} did not return its shards: {error}", hint) from error
    if not shards:
        raise PipelineError(f"{name} returned no shard: this host holds no data", "check the channel on this host")
    keys = [key for key, _ in shards]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise PipelineError(f"{name} names {twice[0]!r} twice", hint)
    negative = next((shard for shard in shards if shard[1] < 0), None)
    if negative is not None:
        raise PipelineError(f"{name} gives {negative[0]!r} {negative[1]} samples", hint)
    broken = next((key for key in keys if sendable(key) != key), None)
    if broken is not None:
        raise PipelineError(f"{name} gives the key {broken!r}, which has no UTF-8", hint)
    sizes = [len(key.encode()) for key in keys]
    if len(keys) > MAX_SHARDS or max(sizes) > MAX_KEY or sum(sizes) > MAX_TOTAL:
        raise PipelineError(
            f"{name} returned {len(keys)} shards with keys of {sum(sizes)} bytes, the longest {max(sizes)}; "
            f"allowed are {MAX_SHARDS}, {MAX_TOTAL} and {MAX_KEY}",
            hint="let a shard be a file of many samples, or a folder",
        )
    total = sum(samples for _, samples in shards)
    if hasattr(dataset, "__len__") and total != len(dataset):
        raise PipelineError(f"{name} counts {total} samples, len() of the dataset {len(dataset)}", hint)
    return shards


class ShardMap:
    """See the module. Workers are numbers that the session and this class share.

    Attributes:
        fixed: whether the union was made.
        length: samples of the union.
        unknown: keys that were announced after that.
    """

    def __init__(self) -> None:
        self._held: dict[WorkerNumber, dict[str, tuple[int, int]]] = {}  # worker -> key -> (offset there, samples)
        self._names: dict[WorkerNumber, str] = {}
        self._known: dict[str, tuple[int, str]] = {}  # key -> (samples, who announced it last)
        self._digests: dict[str, str] = {}  # key -> digest of the shard, if it was told
        self._keys: list[str] = []  # of the union, sorted
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)
        self._offsets: dict[
            WorkerNumber, NDArray[np.int64]
        ] = {}  # worker -> offset there of every shard of the union, or -1
        self.fixed, self.length = False, 0
        self.unknown: list[str] = []

    # Workers

    def add(self, worker: WorkerNumber, name: str, shards: Shards, digests: Sequence[str] = ()) -> None:
        """A worker announces its shards, in its own order, and their digests if it knows them.

        Raises:
            PipelineError: another worker has a shard of the same key and another size, or other contents.
        """
        digest_of = dict(zip((key for key, _ in shards), digests, strict=False))
        held: dict[str, tuple[int, int]] = {}
        for (key, samples), offset in zip(
            shards, itertools.accumulate((samples for _, samples in shards), initial=0), strict=False
        ):
            size, other = self._known.get(key, (samples, name))
            differ = f"and {size} on {other}" if size != samples else ""
            if not differ and key in digest_of and self._digests.get(key, digest_of[key]) != digest_of[key]:
                differ = f"and on {other}, and they are not the same"
            if differ:
                raise PipelineError(
                    f"shard {key!r} has {samples} samples on {name} {differ}",
                    hint="workers that hold the same key must hold the same data; check the channels of these hosts",
                )
            if key not in self._known and self.fixed:
                self.unknown.append(key)
                continue
            held[key] = (offset, samples)
        self._known |= {key: (samples, name) for key, (_, samples) in held.items()}
        self._digests |= {key: digest_of[key] for key in held if key in digest_of}
        self._held[worker], self._names[worker] = held, name
        if self.fixed:
            self._place(worker)

    def remove(self, worker: WorkerNumber) -> None:
        """A worker is gone."""
        self._held.pop(worker, None)
        self._offsets.pop(worker, None)

    def fix(self) -> None:
        """Makes the union: all that was announced so far."""
        self.fixed = True
        self._keys = sorted(self._known)
        self._starts = np.cumsum([0, *(self._known[key][0] for key in self._keys)], dtype=np.int64)
        self.length = int(self._starts[-1])
        for worker in self._held:
            self._place(worker)

    def _place(self, worker: WorkerNumber) -> None:
        held = self._held[worker]
        self._offsets[worker] = np.array([held.get(key, (-1, 0))[0] for key in self._keys], np.int64)

    # The union

    @property
    def uniform(self) -> bool:
        """Whether every worker holds everything, in the order of the union: then there is nothing to translate."""
        return all(np.array_equal(offsets, self._starts[:-1]) for offsets in self._offsets.values())

    @property
    def digest(self) -> str:
        """What tells the union from others of as many rows: see `data_digest`."""
        union = [(key, self._known[key][0]) for key in self._keys]
        return data_digest(union, [self._digests.get(key, "") for key in self._keys])

    def rows_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """Returns the samples of each source of a mixture: of the keys that begin with its name and a slash."""
        return tuple(sum(self._known[key][0] for key in self._keys if key.startswith(f"{name}/")) for name in names)

    def fingerprint(self) -> str:
        """Returns a hash of the union, equal on all ranks that see the same data: 32 hex digits."""
        union = [(key, self._known[key][0], self._digests.get(key, "")) for key in self._keys]
        return digest_of(union, b"shards", 16)

    # Samples

    def _shards_of(self, indices: Sequence[Any]) -> NDArray[np.int64]:
        values = np.asarray(indices)
        if values.size and (values.dtype.kind not in "iu" or int(values.min()) < 0 or int(values.max()) >= self.length):
            raise PipelineError(
                f"sharded data are indexed with 0..{self.length - 1}, got {list(indices)[:8]}",
                hint="let the sampler give indices of the whole dataset",
            )
        numbers: NDArray[np.int64] = np.searchsorted(self._starts, values.astype(np.int64), side="right") - 1
        return numbers

    def holders(self, indices: Sequence[Any]) -> frozenset[WorkerNumber]:
        """Returns the workers that hold all of these samples."""
        shards = np.unique(self._shards_of(indices))
        return frozenset(worker for worker, offsets in self._offsets.items() if bool((offsets[shards] >= 0).all()))

    def row_ranges(self, indices: Sequence[Any]) -> list[RowRange]:
        """Cuts samples into the longest ranges of rows that the same workers hold; a range may have no worker.

        Raises:
            PipelineError: a key that is no index.
        """
        if not len(indices):
            return [RowRange(0, 0, frozenset(self._offsets))]
        shards = self._shards_of(indices)
        workers = list(self._offsets)
        table = np.array([self._offsets[worker] >= 0 for worker in workers]).reshape(len(workers), len(self._keys))
        held = table[:, shards]
        edges = [0, *(np.flatnonzero((held[:, 1:] != held[:, :-1]).any(axis=0)) + 1).tolist(), len(shards)]
        return [
            RowRange(first, last, frozenset(worker for worker, has in zip(workers, held[:, first], strict=True) if has))
            for first, last in itertools.pairwise(edges)
        ]

    def local(self, worker: WorkerNumber, indices: Sequence[Any]) -> list[int]:
        """Returns what samples that a worker holds are called there."""
        shards = self._shards_of(indices)
        offsets = self._offsets[worker][shards]
        assert (offsets >= 0).all(), "asked of a worker that does not hold it"
        local: list[int] = (np.asarray(indices, dtype=np.int64) - self._starts[shards] + offsets).tolist()
        return local

    # What was lost

    def lost(self) -> list[str]:
        """Returns the keys that no worker holds any more, in order."""
        if not self._offsets:
            return list(self._keys)
        unheld = np.all([offsets < 0 for offsets in self._offsets.values()], axis=0)
        return [self._keys[number] for number in np.flatnonzero(unheld)]

    def describe_lost(self) -> str:
        """Says what no worker holds any more: how many samples, under which keys, and which host had them last."""
        by_host: dict[str, list[str]] = {}
        for key in self.lost():
            by_host.setdefault(self._known[key][1], []).append(key)
        return "; ".join(
            f"{sum(self._known[key][0] for key in keys)} samples of {_listed(keys)} were only on {host}"
            for host, keys in by_host.items()
        )


_HERE, _BEFORE = WorkerNumber(0), WorkerNumber(-1)


class _InKeyOrder:
    """A dataset whose shards are sorted by their keys, those in `wanted`; everything else is the dataset's own."""

    def __init__(self, dataset: Any, shards: Shards, wanted: Shards) -> None:
        self._dataset = dataset
        self._order = ShardMap()
        self._order.add(_BEFORE, "this host before", wanted)
        self._order.fix()
        self._order.add(_HERE, "this host now", shards)

    def __len__(self) -> int:
        return self._order.length

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[self._order.local(_HERE, [index])[0]]

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":
            load = self._dataset.__getitems__
            return lambda indices: load(self._order.local(_HERE, indices))
        if name.startswith("_"):  # while it is unpickled, too
            raise AttributeError(name)
        return getattr(self._dataset, name)


def in_key_order(dataset: Any, before: Shards = ()) -> tuple[Any, list[tuple[str, int]]]:
    """Returns a dataset with its shards sorted by their keys, and these; nothing changes without shards.

    Args:
        dataset: any.
        before: what this host has announced, if it has: shards that it has got since are left out.

    Raises:
        PipelineError: what the dataset declares is not sound, or a shard that was announced is not there.
    """
    shards = declared(dataset)
    ordered = sorted(before) if before else sorted(shards)
    missing = sorted({key for key, _ in ordered} - {key for key, _ in shards})
    if missing:
        raise PipelineError(
            f"the shard {missing[0]!r} is not there any more", "do not take shards away while they are read"
        )
    return (dataset if shards == ordered else _InKeyOrder(dataset, shards, ordered)), ordered


def _listed(keys: Iterable[str]) -> str:
    *names, last = map(repr, keys)
    if len(names) < 4:
        return ", ".join([*names, last])
    return f"{', '.join(names[:3])}, ... {last} ({len(names) + 1} keys)"
