"""Opening a lane: of a stream, of what is packed or mixed, or of a dataset that is not headrace's own.

A source of a mixture is opened like a dataset by itself, with a seed that follows from the mixture's, from which source
it is, and from how often it was used up: so its order and its random numbers are others each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.lane_datasets import LaneInfo, WorkingFor, own_copy
from headrace.feed.plan.orders.mixed_order import SLOTS, MixedOrder, endless
from headrace.feed.plan.orders.order import RowOrder, Window
from headrace.feed.plan.shard_map import Shards, declared
from headrace.feed.streams.mixed_stream import SOURCE, MixedStream, OpenedSource, OpenSource
from headrace.feed.streams.packing import Packed
from headrace.feed.streams.steps import Lane, LeftOut, Restart, Stepped
from headrace.feed.streams.stream import Order, Stream
from headrace.feed.wire.messages import Draw, Mixing
from headrace.feed.worker.dataset_lane import DatasetLane

_OPENING = b"lane opening"
_EVERY_SOURCE = "every host must hold rows of every source: each of its lanes takes of all of them"


def with_shards(dataset: Any, before: Shards = ()) -> tuple[Any, list[tuple[str, int]]]:
    """Returns a dataset without a count, and the shards that it is made of here, sorted by key.

    There are none where a part of the data declares none, a dataset of the user's say: every host has all of it then.

    Args:
        dataset: any.
        before: what this host has announced, if it has: shards that it has got since are left out.

    Raises:
        PipelineError: what is declared is not sound, or a shard that was announced is not there any more.
    """
    shards = sorted(declared(dataset)) if isinstance(dataset, Stepped) else []
    if not before or shards == list(before):
        return dataset, shards
    missing = sorted(set(before).difference(shards))
    if missing:
        raise PipelineError(
            f"the shard {missing[0][0]!r} is not there any more, or has another number of rows",
            hint="do not take shards away, or change them, while they are read",
        )
    return dataset._only({key for key, _ in before}), list(before)


class LaneAddress(NamedTuple):
    """What is asked of a lane, and the epoch and seed of its pass."""

    epoch: int
    seed: int
    draw: Draw


class _MixedSource(NamedTuple):
    """A source of a mixture: the opening of that, its name, and how often it was used up before in this epoch."""

    within: LaneOpening | None
    name: str
    passes: int


class LaneOpening:
    """Opens one lane of a dataset, in one epoch.

    Args:
        dataset: that has no count.
        address: of what is asked; its draw says which lane, of how many, and whether rows are shuffled.
        init: `worker_init_fn`.
        shown: whether the dataset sees the lane as a worker.
        source: where it is a source of a mixture.

    Attributes:
        info: what the dataset is told of the lane.
        skipped: rows that were left out because they raised, and why; None where they are not left out.
        asking: what datasets that are not headrace's own were told, where they should have asked.
    """

    def __init__(
        self,
        dataset: Any,
        address: LaneAddress,
        init: Callable[[int], None] | None,
        *,
        shown: bool,
        source: _MixedSource | None = None,
    ) -> None:
        epoch, seed, draw = address
        within, self._name, self._passes = source or _MixedSource(None, "", 0)
        self._dataset, self._epoch, self._seed = dataset, epoch, seed
        self._draw, self._init, self._shown = draw, init, shown
        self._key = seeds.stream_key(seed, epoch, draw.lane, _OPENING)
        inner = dataset
        while isinstance(inner, Packed):
            inner = inner.documents
        self._leaf: Any = None if isinstance(inner, (Stream, MixedStream)) else own_copy(inner)
        told = self._leaf if self._leaf is not None else dataset
        self.info = LaneInfo(draw.lane, draw.lanes, int.from_bytes(self._key[:7], "little"), told, shown=shown)
        outer = within.skipped if within is not None else None
        self.skipped: LeftOut | None = (
            (outer.of_source(self._name) if outer is not None else LeftOut()) if draw.skip else None
        )
        self.asking: dict[int, LaneInfo] = within.asking if within is not None else {}
        if self._leaf is not None and within is None:
            self.asking[0] = self.info

    def key(self, purpose: bytes, number: int) -> bytes:
        """Returns the key of the generators for an output of this lane, or for a document or a sequence of it."""
        place = number * self._draw.lanes + self._draw.lane
        return seeds.stream_key(self._seed, self._epoch, place, purpose)

    def set(self, purpose: bytes, number: int) -> None:
        """Sets the generators."""
        seeds.set_generators(self.key(purpose, number))

    def opened(self, start: Restart) -> Lane:
        """Opens the lane at a `restart` of it.

        Raises:
            PipelineError: a counted source has no rows here.
            Exception: whatever the dataset raises.
        """
        with WorkingFor(self.info):
            seeds.set_generators(self._key)
            return self._open(self._dataset, start)

    def _open(self, dataset: Any, start: Restart) -> Lane:
        draw = self._draw
        if isinstance(dataset, Packed):
            return dataset.lane(lambda start: self._open(dataset.documents, start), start, self.set, self.skipped)
        if isinstance(dataset, MixedStream):
            key = f"{self._seed}/{self._epoch}/{draw.lane}/mixture".encode()
            parts, names, stretch = dataset.parts, dataset.mixing.names, endless(dataset.mixing.weights, key)

            def turns(window: int) -> list[int]:
                found: list[int] = stretch.sources(np.array([window]))[0][0].tolist()
                return found

            return dataset.lane(
                turns,
                SLOTS,
                lambda number: self._source(parts[number], number, names[number]),
                start,
                self.set,
                self.skipped,
            )
        if isinstance(dataset, Stream):
            if draw.share is not None and self._name and not dataset.rows:
                raise PipelineError(f"the source {self._name!r} has no rows here", _EVERY_SOURCE)
            number, lanes = draw.share or (draw.lane, draw.lanes)
            order = _order(dataset, draw.shuffle, self._seed, self._epoch)
            return dataset.lane(number, lanes, order, start, self.skipped)
        if self._init is not None:
            self._init(draw.lane)
        if callable(getattr(self._leaf, "set_epoch", None)):
            self._leaf.set_epoch(self._epoch + self._passes)
        return DatasetLane(self._leaf, start)

    def _source(self, part: Any, number: int, name: str) -> OpenSource:
        def opened(passes: int, start: Restart) -> OpenedSource:
            own = seeds.stream_key(self._seed, passes, number, SOURCE)
            address = LaneAddress(self._epoch, int.from_bytes(own[:7], "little"), self._draw)
            source = _MixedSource(self, name, self._passes + passes)
            opening = LaneOpening(part, address, self._init, shown=self._shown, source=source)
            lane = opening.opened(start)
            found = lane if opening._leaf is None else _ShownLane(lane, opening, id(part))
            return OpenedSource(found, lambda output: opening.set(SOURCE, output))

        return opened


class _ShownLane(Lane):
    """A source of a mixture that is not headrace's own: it sees itself as the dataset of `get_worker_info()`."""

    def __init__(self, lane: Lane, opening: LaneOpening, key: int) -> None:
        self._lane, self._opening, self._key = lane, opening, key

    def __next__(self) -> Any:
        with WorkingFor(self._opening.info):
            output = next(self._lane)
        self._opening.asking[self._key] = self._opening.info
        self.tokens, self.padding = self._lane.tokens, self._lane.padding
        return output

    @property
    def restart(self) -> Restart:  # type: ignore[override]
        """That of the lane."""
        return self._lane.restart


def _order(stream: Stream, shuffle: bool | tuple[int, int], seed: int, epoch: int) -> Order:
    """Returns the order of an epoch's rows: as `EpochPlan` has it, or that of the mixture.

    Raises:
        PipelineError: a source of the mixture has no rows here.
    """
    chosen = Window(*shuffle) if isinstance(shuffle, tuple) else shuffle
    mixing: Mixing | None = stream.mixing
    if mixing is None and not chosen:
        return Order(stream.rows)
    if mixing is None:
        found: RowOrder | MixedOrder = RowOrder(stream.rows, seed, chosen)
        places = stream.rows
    else:
        for name, rows in zip(mixing.names, mixing.rows, strict=True):
            if not rows:
                raise PipelineError(f"the source {name!r} has no rows here", _EVERY_SOURCE)
        found = mixed = MixedOrder(mixing, seed, chosen)
        places = mixed.rows(epoch)

    def rows_at(wanted: range) -> list[int]:
        rows: list[int] = found.rows_at(epoch, np.arange(wanted.start, wanted.stop, dtype=np.int64)).tolist()
        return rows

    return Order(places, rows_at)
