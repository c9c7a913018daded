"""Readers of lanes: what makes the outputs (epoch, lane, k), k = first, first + 1, ...

A reader is an iterator over a lane's own copy of the dataset, that stands before one output. Readers are kept as a
cache: a lane that no reader stands in is opened at the token of the request, or at its beginning, and what lies before
is replayed. So a reader, and a token, decide how long an answer takes, never what it holds.

Before every output the generators are set from (seed, epoch, lane, k), as for a sample of a counted dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from headrace.errors import PipelineError
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.lane_datasets import documents_of, own_copy
from headrace.feed.pipelines.lane_info import LaneInfo, working_for
from headrace.feed.plan.mixed_order import MixedOrder
from headrace.feed.plan.order import RowOrder
from headrace.feed.plan.window import Window
from headrace.feed.streams.open_lane import BEGINNING, Lane, Restart
from headrace.feed.streams.packing import Packed
from headrace.feed.streams.stream import Order, Stream
from headrace.feed.wire.draws import MAX_TOKEN, Draw, Drawn
from headrace.feed.wire.mixing import Mixing
from headrace.feed.worker.dataset_lane import DatasetLane, packed, unpacked

REPLAY_SECONDS = 5.0  # of replay in one answer; then it is told how much is left, as a sign of life
_READERS = 2  # of one lane: the one that goes on, and one that makes an earlier place again
_OUTPUT, _OPENING = b"lane output", b"lane opening"


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
        try:
            return self._draw(epoch, seed, draw, fresh=fresh)
        except LaneFailed as failed:
            if not failed.opening:
                raise
            told = f"{type(failed.__cause__).__name__}: {failed.__cause__}"
        whole = msgspec.structs.replace(draw, at=0, token=b"")
        outputs, drawn = self._draw(epoch, seed, whole, fresh=fresh)  # it raises again if the token was not to blame
        note = f"the dataset cannot go on from its own state, and a lane was replayed instead: {told}"
        return outputs, msgspec.structs.replace(drawn, note=note)

    def _draw(self, epoch: int, seed: int, draw: Draw, *, fresh: bool) -> tuple[list[Any], Drawn]:
        try:
            reader = self._open(epoch, seed, draw) if fresh else self._reader(epoch, seed, draw)
        except PipelineError:
            raise
        except Exception as error:
            raise LaneFailed(-1, opening=bool(draw.token)) from error
        outputs: list[Any] = []
        reader.tokens, reader.padding = [], []
        end = time.monotonic() + REPLAY_SECONDS
        try:
            with working_for(reader.info):
                while reader.at < draw.first and not reader.ended:
                    reader.next()
                    if time.monotonic() > end:
                        return [], Drawn(0, behind=max(1, draw.first - reader.at))
                while len(outputs) < draw.count and not reader.ended:
                    reader.next(outputs)
                if reader.ended and draw.drop_last:
                    del outputs[len(outputs) - len(outputs) % (draw.part or draw.count) :]
                at, token = (0, b"") if reader.ended else reader.token()
        except PipelineError:
            self._forget(draw.lane, reader)
            raise
        except Exception as error:
            self._forget(draw.lane, reader)
            row = len(outputs) if reader.at >= draw.first else -1
            raise LaneFailed(row, opening=reader.untried) from error
        note = ""
        if len(token) > MAX_TOKEN:
            note = f"the dataset's state has {len(token)} bytes, and {MAX_TOKEN} are kept: lanes are replayed"
            at, token = 0, b""
        if draw.lanes > 1 and not reader.info.asked and outputs:
            note = note or (
                f"the dataset did not ask get_worker_info() which of the {draw.lanes} lanes it works for: "
                "if it gives every lane the same rows, each comes as many times; divide by get_worker_info(), or "
                "set num_shards=1"
            )
        rows = len(outputs)
        tokens, padding = (told[:rows] if any(told) else [] for told in (reader.tokens, reader.padding))
        return outputs, Drawn(rows, reader.ended, at, token, note=note, tokens=tokens, padding=padding)

    def _forget(self, lane: int, reader: _Reader) -> None:
        self._readers[lane] = [each for each in self._readers.get(lane, ()) if each is not reader]

    def _open(self, epoch: int, seed: int, draw: Draw) -> _Reader:
        return _Reader(self._dataset, epoch, seed, draw, self._init, shown=self._shown)

    def _reader(self, epoch: int, seed: int, draw: Draw) -> _Reader:
        """Returns the reader that stands nearest before what is asked for; opens one if the token is nearer."""
        held = self._readers.setdefault(draw.lane, [])
        held[:] = [each for each in held if each.address == (epoch, seed, draw.lanes, draw.shuffle)]
        able = [each for each in held if draw.at <= each.at <= draw.first or (each.ended and each.at <= draw.first)]
        if able:
            found = max(able, key=lambda each: each.at)
            held.remove(found)
        else:
            found = self._open(epoch, seed, draw)
        held.append(found)
        del held[:-_READERS]
        return found


class _Reader:
    """An open lane.

    Attributes:
        at: number of the output that comes next.
        ended: whether there is none.
        address: what decides the lane's outputs, but for the dataset.
        untried: whether it was opened at a token, and has made nothing since.
        tokens, padding: of every output that was wanted, if they are packed sequences, since these were set to [].
    """

    def __init__(
        self, dataset: Any, epoch: int, seed: int, draw: Draw, init: Callable[[int], None] | None, *, shown: bool
    ) -> None:
        self.at, self.ended, self.untried = draw.at, False, bool(draw.token)
        self.tokens, self.padding = list[int](), list[int]()
        self.address = (epoch, seed, draw.lanes, draw.shuffle)
        self._epoch, self._seed, self._lane, self._lanes = epoch, seed, draw.lane, draw.lanes
        key = seeds.stream_key(seed, epoch, draw.lane, _OPENING)
        copy = own_copy(documents_of(dataset))
        self.info = LaneInfo(draw.lane, draw.lanes, int.from_bytes(key[:7], "little"), copy, shown=shown)
        with working_for(self.info):
            seeds.set_generators(key)
            start = Restart(unpacked(draw.token), draw.at) if draw.token else BEGINNING
            if isinstance(dataset, Packed):
                self._iterator: Lane = dataset.lane(lambda start: self._open(draw, init, start), start, self._set)
            else:
                self._iterator = self._open(draw, init, start)

    def _open(self, draw: Draw, init: Callable[[int], None] | None, start: Restart) -> Lane:
        dataset = self.info.dataset
        if isinstance(dataset, Stream):
            self.info.asked = True
            order = _order(dataset, draw.shuffle, self._seed, self._epoch)
            return dataset.lane(draw.lane, draw.lanes, order, start)
        if init is not None:
            init(draw.lane)
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(self._epoch)
        return DatasetLane(dataset, start)

    def _set(self, purpose: bytes, number: int) -> None:
        """Sets the generators for an output of this lane, or for a document or a sequence of it."""
        place = number * self._lanes + self._lane
        seeds.set_generators(seeds.stream_key(self._seed, self._epoch, place, purpose))

    def next(self, outputs: list[Any] | None = None) -> None:
        """Makes the next output, and puts it to the others if it is wanted."""
        iterator = self._iterator
        self._set(_OUTPUT, self.at)
        try:
            output = next(iterator)
        except StopIteration:
            self.ended = True
            return
        self.at += 1
        self.untried = False
        if outputs is not None:
            outputs.append(output)
            self.tokens.append(iterator.tokens)
            self.padding.append(iterator.padding)

    def token(self) -> tuple[int, bytes]:
        """Returns where this lane can be opened again, and the token for it; no token if the dataset has no state.

        Raises:
            PipelineError: the state holds what cannot be kept; names its place.
        """
        restart = self._iterator.restart
        return (0, b"") if restart.place is None else (restart.made, packed(restart.place))


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
                raise PipelineError(f"the source {name!r} has no rows here", "every host must hold all of the data")
        found = mixed = MixedOrder(mixing, seed, chosen)
        places = mixed.rows(epoch)

    def rows_at(wanted: range) -> list[int]:
        rows: list[int] = found.rows_at(epoch, np.arange(wanted.start, wanted.stop, dtype=np.int64)).tolist()
        return rows

    return Order(places, rows_at)
