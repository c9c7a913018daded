"""Readers of lanes: what makes the outputs (epoch, lane, k), k = first, first + 1, ...

A reader is an iterator over a lane's own copy of the dataset, that stands before one output. Readers are kept as a
cache: a lane that no reader stands in is opened at the token of the request, or at its beginning, and what lies before
is replayed. So a reader, and a token, decide how long an answer takes, never what it holds.

Before every output the generators are set from (seed, epoch, lane, k), as for a sample of a counted dataset, and as
there only those that are drawn from (see `pipelines.seeds`): a lane that draws from another one is opened again.

A lane is of a stream, of what is packed or mixed, or of a dataset that is not headrace's own: an `IterableDataset`, a
function that makes an iterable. Where such a dataset can be opened again is told by torchdata's protocol `Stateful`:
`state_dict()` and `load_state_dict()` of the dataset, and of its iterator. The state is encoded at once, because a
dataset may go on changing what it returned. As with torchdata, `__iter__` is called once, and a dataset that is its own
iterator is given its state behind that call. A source of a mixture is opened like a dataset by itself, with a seed that
follows from the mixture's, from which source it is, and from how often it was used up: so its order and its random
numbers are others each time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.errors import PipelineError, interruptions, text_of
from headrace.feed.batch import pytree
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.lane_datasets import LaneInfo, WorkingFor, opened, own_copy
from headrace.feed.pipelines.seeds import DrewUnset, SampleSeeds
from headrace.feed.plan.orders.mixed_order import SLOTS, MixedOrder, endless
from headrace.feed.plan.orders.order import RowOrder, Window
from headrace.feed.plan.shard_map import Shards, declared
from headrace.feed.streams.mixed_stream import SOURCE, MixedStream, OpenedSource, OpenSource
from headrace.feed.streams.packing import Packed
from headrace.feed.streams.steps import BEGINNING, Lane, LeftOut, Restart, Stepped
from headrace.feed.streams.stream import Order, Stream
from headrace.feed.wire.messages import MAX_TOKEN, Draw, Drawn, Mixing


class DatasetLane(Lane):
    """See the module.

    Args:
        dataset: the lane's own copy.
        start: a `restart` of this lane.
    """

    def __init__(self, dataset: Any, start: Restart) -> None:
        states = unpacked(start.place) if start.place else [None, None]
        if states[0] is not None:
            dataset.load_state_dict(states[0])
        self._made = start.made
        self._iterator: Iterator[Any] = opened(dataset)
        if states[1] is not None:
            self._iterator.load_state_dict(states[1])  # type: ignore[attr-defined]
        own = None if self._iterator is dataset else dataset
        self._stateful: list[Any] = [thing if _is_stateful(thing) else None for thing in (own, self._iterator)]
        self._outputs = map(next, itertools.repeat(self._iterator))  # `iter` of this calls no `__iter__` of the user's

    def __next__(self) -> Any:
        output = next(self._iterator)
        self._made += 1
        return output

    def extend(self, outputs: list[Any], count: int) -> None:
        """Puts the next `count` outputs to the others, or as many as there are."""
        before = len(outputs)
        try:
            outputs.extend(itertools.islice(self._outputs, count))
        finally:
            self._made += len(outputs) - before

    @property
    def restart(self) -> Restart:  # type: ignore[override]
        """Where it can be opened again: behind the latest output, or at the beginning if the dataset has no state.

        Raises:
            PipelineError: the state holds what cannot be kept; names its place.
        """
        states = [thing.state_dict() if thing is not None else None for thing in self._stateful]
        return BEGINNING if all(state is None for state in states) else Restart(packed(states), self._made)


def packed(state: Any) -> bytes:
    """Encodes plain data, arrays and tensors. Raises PipelineError if there is anything else."""
    node, leaves, size = pytree.describe(state, "state_dict()")
    return msgspec.msgpack.encode([node, pytree.packed(leaves, size)])


def unpacked(token: bytes) -> Any:
    """Returns what `packed` was given."""
    node, block = msgspec.msgpack.decode(token)
    whole = np.frombuffer(bytearray(block), np.uint8)
    return pytree.rebuild(node, whole, pytree.copied(whole))


def _is_stateful(thing: Any) -> bool:
    """Returns whether a dataset or iterator follows torchdata's protocol `Stateful`.

    A dataset of Hugging Face's that has a shuffle buffer does not: the buffer is not in its state.
    """
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict") and not _has_buffer(thing)


def _has_buffer(dataset: Any) -> bool:
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None:
        if type(part).__name__.startswith("BufferShuffled"):
            return True
        part = getattr(part, "ex_iterable", None)
    return False


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

    @property
    def decisive(self) -> tuple[object, ...]:
        """What decides the outputs of a lane of this number, but for the dataset."""
        draw = self.draw
        return self.epoch, self.seed, draw.lanes, draw.shuffle, draw.skip, draw.share


@dataclass
class LaneOpening:
    """Opens one lane of a dataset, in one epoch.

    Attributes:
        dataset: that has no count.
        address: of what is asked; its draw says which lane, of how many, and whether rows are shuffled.
        init: `worker_init_fn`.
        shown: whether the dataset sees the lane as a worker.
        within, name, passes: of a source of a mixture: the opening of that, its name, and how often it was used up
            before in this epoch.
        info: what the dataset is told of the lane.
        skipped: rows that were left out because they raised, and why; None where they are not left out.
        asking: what datasets that are not headrace's own were told, where they should have asked.
    """

    dataset: Any
    address: LaneAddress
    init: Callable[[int], None] | None
    shown: bool
    within: LaneOpening | None = None
    name: str = ""
    passes: int = 0

    def __post_init__(self) -> None:
        draw = self.address.draw
        self._key = seeds.stream_key(self.address.seed, self.address.epoch, draw.lane, _OPENING)
        inner = self.dataset
        while isinstance(inner, Packed):
            inner = inner.documents
        self._leaf: Any = None if isinstance(inner, (Stream, MixedStream)) else own_copy(inner)
        seen = self._leaf if self._leaf is not None else self.dataset
        self.info = LaneInfo(draw.lane, draw.lanes, int.from_bytes(self._key[:7], "little"), seen, shown=self.shown)
        self.asking: dict[int, LaneInfo] = self.within.asking if self.within is not None else {}
        if self._leaf is not None and self.within is None:
            self.asking[0] = self.info
        outer = self.within.skipped if self.within is not None else None
        made = LeftOut() if outer is None else outer.of_source(self.name)
        self.skipped: LeftOut | None = made if draw.skip else None

    def key(self, purpose: bytes, number: int) -> bytes:
        """Returns the key of the generators for an output of this lane, or for a document or a sequence of it."""
        epoch, seed, draw = self.address
        return seeds.stream_key(seed, epoch, number * draw.lanes + draw.lane, purpose)

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
            return self._open(self.dataset, start)

    def _open(self, dataset: Any, start: Restart) -> Lane:
        epoch, seed, draw = self.address
        if isinstance(dataset, Packed):
            return dataset.lane(lambda start: self._open(dataset.documents, start), start, self.set, self.skipped)
        if isinstance(dataset, MixedStream):
            key = f"{seed}/{epoch}/{draw.lane}/mixture".encode()
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
            if draw.share is not None and self.name and not dataset.rows:
                raise PipelineError(f"the source {self.name!r} has no rows here", _EVERY_SOURCE)
            number, lanes = draw.share or (draw.lane, draw.lanes)
            order = _order(dataset, draw.shuffle, seed, epoch)
            return dataset.lane(number, lanes, order, start, self.skipped)
        if self.init is not None:
            self.init(draw.lane)
        if callable(getattr(self._leaf, "set_epoch", None)):
            self._leaf.set_epoch(epoch + self.passes)
        return DatasetLane(self._leaf, start)

    def _source(self, part: Any, number: int, name: str) -> OpenSource:
        def opened(passes: int, start: Restart) -> OpenedSource:
            own = seeds.stream_key(self.address.seed, passes, number, SOURCE)
            address = self.address._replace(seed=int.from_bytes(own[:7], "little"))
            opening = LaneOpening(part, address, self.init, self.shown, self, name, self.passes + passes)
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


REPLAY_SECONDS = 5.0  # of replay in one answer; then it is told how much is left, as a sign of life
_READERS = 2  # of one lane: the one that goes on, and one that makes an earlier place again
_OUTPUT = b"lane output"
_END = object()


class LaneFailed(Exception):
    """The dataset raised over an output; the cause is the user's exception.

    Attributes:
        row: number of the output in the draw.
        opening: whether it was the first one behind a token.
    """

    def __init__(self, row: int, *, opening: bool) -> None:
        super().__init__(row)
        self.row, self.opening = row, opening


class LaneReaders:
    """See the module.

    Args:
        dataset: that has no count.
        init: `worker_init_fn`, called with the lane's number before it is opened.
        shown: whether the dataset sees the lane as a worker; not where torch has none and no lanes were asked for.
    """

    def __init__(self, dataset: Any, init: Callable[[int], None] | None = None, *, shown: bool = True) -> None:
        self._dataset, self._init, self._shown = dataset, init if shown else None, shown
        self._readers: dict[int, list[_Reader]] = {}
        self._seeds = SampleSeeds()

    def draw(self, epoch: int, seed: int, draw: Draw, *, fresh: bool = False) -> tuple[list[Any], Drawn]:
        """Makes outputs of a lane.

        Args:
            epoch, seed: of the pass.
            draw: what is asked.
            fresh: whether a reader is opened at the token for this alone, to check it.

        Returns:
            The outputs, and what to tell of them.

        Raises:
            LaneFailed: the dataset raised.
            PipelineError: its state cannot be kept, or it cannot be copied.
        """
        note = ""
        while True:
            try:
                outputs, drawn = self._draw(LaneAddress(epoch, seed, draw), fresh=fresh)
            except DrewUnset:  # each generator once
                continue
            except LaneFailed as failed:
                if not failed.opening:
                    raise
                cause = failed.__cause__ or failed
                why = f"{type(cause).__name__}: {text_of(cause)}"
                note = f"the dataset cannot go on from its own state, and a lane was replayed instead: {why}"
                draw = msgspec.structs.replace(draw, at=0, token=b"")  # raises again if the token was not to blame
            else:
                return outputs, msgspec.structs.replace(drawn, note=note) if note else drawn

    def _draw(self, address: LaneAddress, *, fresh: bool) -> tuple[list[Any], Drawn]:
        draw, reader, outputs = address.draw, None, list[Any]()
        try:
            reader = self._open(address) if fresh else self._reader(address)
            end = time.monotonic() + REPLAY_SECONDS
            with WorkingFor(reader.opening.info), reader.seeds:
                while reader.at < draw.first and not reader.ended:
                    reader.next()
                    if time.monotonic() > end:
                        return [], Drawn(0, behind=max(1, draw.first - reader.at))
                reader.tokens, reader.padding, reader.sources = [], [], []
                reader.skipped = []  # those of a replay were told before
                reader.extend(outputs, draw.count)
                if reader.ended and draw.drop_last:
                    del outputs[len(outputs) - len(outputs) % (draw.part or draw.count) :]
                at, token = (0, b"") if reader.ended else reader.token()
        except interruptions():
            raise
        except BaseException as error:
            self._readers[draw.lane] = [held for held in self._readers.get(draw.lane, ()) if held is not reader]
            if isinstance(error, (PipelineError, DrewUnset)):
                raise
            row = len(outputs) if reader is not None and reader.at >= draw.first else -1
            raise LaneFailed(row, opening=bool(draw.token) if reader is None else reader.untried) from error
        note = ""
        if len(token) > MAX_TOKEN:
            note = f"the dataset's state has {len(token)} bytes, and {MAX_TOKEN} are kept: lanes are replayed"
            at, token = 0, b""
        if draw.lanes > 1 and outputs and not all(told.asked for told in reader.opening.asking.values()):
            note = note or (
                f"the dataset did not ask get_worker_info() which of the {draw.lanes} lanes it works for: "
                "if it gives every lane the same rows, each comes as many times; divide by get_worker_info(), or "
                "set num_shards=1"
            )
        rows = len(outputs)
        tokens, padding = (told[:rows] if any(told) else [] for told in (reader.tokens, reader.padding))
        sources = reader.sources[:rows] if any(reader.sources) else []
        return outputs, Drawn(rows, reader.ended, at, token, 0, note, tokens, padding, sources, reader.skipped)

    def _open(self, address: LaneAddress) -> _Reader:
        return _Reader(LaneOpening(self._dataset, address, self._init, self._shown), self._seeds)

    def _reader(self, address: LaneAddress) -> _Reader:
        """Returns the reader that stands nearest before what is asked for; opens one if the token is nearer."""
        draw, held = address.draw, self._readers.setdefault(address.draw.lane, [])
        held[:] = [reader for reader in held if reader.opening.address.decisive == address.decisive]
        nearest: _Reader | None = None
        for reader in held:
            if reader.at <= draw.first and (reader.ended or reader.at >= draw.at):
                nearest = reader if nearest is None or reader.at > nearest.at else nearest
        if nearest is None:
            nearest = self._open(address)
        else:
            held.remove(nearest)
        held.append(nearest)
        del held[:-_READERS]
        return nearest


def _next(iterator: Iterator[Any]) -> Any:
    return next(iterator, _END)


class _Reader:
    """An open lane.

    Attributes:
        at: number of the output that comes next.
        ended: whether there is none.
        opening: how it was opened.
        seeds: outputs are made within it.
        untried: whether it was opened at a token, and has made nothing since.
        tokens, padding, sources: of every output that was wanted, since these were set to []: see `Lane`.
        skipped: see `Drawn`, since this was set to [].
    """

    def __init__(self, opening: LaneOpening, seeds: SampleSeeds) -> None:
        self.opening, self._seeds, draw = opening, seeds, opening.address.draw
        self.at, self.ended, self.untried = draw.at, False, bool(draw.token)
        self.tokens, self.padding, self.sources = list[int](), list[int](), list[str]()
        self.skipped = list[tuple[int | str, str, int]]()
        start = Restart(unpacked(draw.token), draw.at) if draw.token else BEGINNING
        self._iterator = opening.opened(start)
        self.seeds: AbstractContextManager[None] = nullcontext() if self._iterator.seeds_itself else seeds
        self._left_out = opening.skipped.rows if opening.skipped is not None else []
        self._left_out.clear()  # before the place where it was opened: they were told

    def next(self, outputs: list[Any] | None = None) -> None:
        """Makes the next output, and puts it to the others if it is wanted."""
        iterator = self._iterator
        if self._iterator.seeds_itself or self._seeds.quiet:
            output = next(iterator, _END)
        else:
            output = self._seeds.call(self.opening.key(_OUTPUT, self.at), _next, iterator)
        if self._left_out:
            self.skipped += [(row, reason, self.at) for row, reason in self._left_out]
            self._left_out.clear()
        if output is _END:
            self.ended = True
            return
        self.at += 1
        self.untried = False
        if outputs is not None:
            outputs.append(output)
            self.tokens.append(iterator.tokens)
            self.padding.append(iterator.padding)
            self.sources.append(iterator.source)

    def extend(self, outputs: list[Any], count: int) -> None:
        """Puts outputs to the others until they are `count`, or the lane ends."""
        iterator = self._iterator
        if self._seeds.quiet and type(iterator) is DatasetLane and self.opening.skipped is None:
            before = len(outputs)
            try:
                iterator.extend(outputs, count - before)
            finally:
                self.at += len(outputs) - before
                self.untried = self.untried and len(outputs) == before
            self.ended = len(outputs) < count
            return
        while len(outputs) < count and not self.ended:
            self.next(outputs)

    def token(self) -> tuple[int, bytes]:
        """Returns where this lane can be opened again, and the token for it; no token if the dataset has no state.

        Raises:
            PipelineError: the state holds what cannot be kept; names its place.
        """
        restart = self._iterator.restart
        return (0, b"") if restart.place is None else (restart.made, packed(restart.place))
