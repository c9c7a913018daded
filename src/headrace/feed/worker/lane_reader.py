"""Readers of lanes: what makes the outputs (epoch, lane, k), k = first, first + 1, ...

A reader is an iterator over a lane's own copy of the dataset, that stands before one output. Readers are kept as a
cache: a lane that no reader stands in is opened at the token of the request, or at its beginning, and what lies before
is replayed. So a reader, and a token, decide how long an answer takes, never what it holds.

Before every output the generators are set from (seed, epoch, lane, k), as for a sample of a counted dataset, and as
there only those that are drawn from (see `pipelines.seeds`): a lane that draws from another one is opened again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from headrace.errors import INTERRUPTIONS, PipelineError, text_of
from headrace.feed.pipelines.lane_datasets import WorkingFor
from headrace.feed.pipelines.seeds import DrewUnset, SampleSeeds
from headrace.feed.streams.steps import BEGINNING, Restart
from headrace.feed.wire.messages import MAX_TOKEN, Draw, Drawn
from headrace.feed.worker.dataset_lane import DatasetLane, packed, unpacked
from headrace.feed.worker.lane_opening import LaneAddress, LaneOpening

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
        try:
            return self._seeded(epoch, seed, draw, fresh=fresh)
        except LaneFailed as failed:
            if not failed.opening:
                raise
            told = f"{type(failed.__cause__).__name__}: {text_of(failed.__cause__ or failed)}"
        whole = msgspec.structs.replace(draw, at=0, token=b"")
        outputs, drawn = self._seeded(epoch, seed, whole, fresh=fresh)  # raises again if the token was not to blame
        note = f"the dataset cannot go on from its own state, and a lane was replayed instead: {told}"
        return outputs, msgspec.structs.replace(drawn, note=note)

    def _seeded(self, epoch: int, seed: int, draw: Draw, *, fresh: bool) -> tuple[list[Any], Drawn]:
        while True:
            try:
                return self._draw(epoch, seed, draw, fresh=fresh)
            except DrewUnset:  # each generator once
                continue

    def _draw(self, epoch: int, seed: int, draw: Draw, *, fresh: bool) -> tuple[list[Any], Drawn]:
        try:
            reader = self._open(epoch, seed, draw) if fresh else self._reader(epoch, seed, draw)
        except PipelineError:
            raise
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise LaneFailed(-1, opening=bool(draw.token)) from error
        outputs: list[Any] = []
        end = time.monotonic() + REPLAY_SECONDS
        try:
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
        except (PipelineError, DrewUnset):
            self._forget(draw.lane, reader)
            raise
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            self._forget(draw.lane, reader)
            row = len(outputs) if reader.at >= draw.first else -1
            raise LaneFailed(row, opening=reader.untried) from error
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

    def _forget(self, lane: int, reader: _Reader) -> None:
        self._readers[lane] = [each for each in self._readers.get(lane, ()) if each is not reader]

    def _open(self, epoch: int, seed: int, draw: Draw) -> _Reader:
        return _Reader(self._dataset, LaneAddress(epoch, seed, draw), self._init, self._seeds, shown=self._shown)

    def _reader(self, epoch: int, seed: int, draw: Draw) -> _Reader:
        """Returns the reader that stands nearest before what is asked for; opens one if the token is nearer."""
        address, held = _address(epoch, seed, draw), self._readers.setdefault(draw.lane, [])
        held[:] = [reader for reader in held if reader.address == address]
        nearest: _Reader | None = None
        for reader in held:
            if reader.at <= draw.first and (reader.ended or reader.at >= draw.at):
                nearest = reader if nearest is None or reader.at > nearest.at else nearest
        if nearest is None:
            nearest = self._open(epoch, seed, draw)
        else:
            held.remove(nearest)
        held.append(nearest)
        del held[:-_READERS]
        return nearest


def _next(iterator: Iterator[Any]) -> Any:
    return next(iterator, _END)


def _address(epoch: int, seed: int, draw: Draw) -> tuple[object, ...]:
    """Returns what decides the outputs of a lane of this number, but for the dataset."""
    return epoch, seed, draw.lanes, draw.shuffle, draw.skip, draw.share


class _Reader:
    """An open lane.

    Attributes:
        at: number of the output that comes next.
        ended: whether there is none.
        address: what decides the lane's outputs, but for the dataset.
        opening: how it was opened.
        seeds: outputs are made within it.
        untried: whether it was opened at a token, and has made nothing since.
        tokens, padding, sources: of every output that was wanted, since these were set to []: see `Lane`.
        skipped: see `Drawn`, since this was set to [].
    """

    def __init__(
        self,
        dataset: Any,
        address: LaneAddress,
        init: Callable[[int], None] | None,
        seeds: SampleSeeds,
        *,
        shown: bool,
    ) -> None:
        self._seeds, draw = seeds, address.draw
        self.at, self.ended, self.untried = draw.at, False, bool(draw.token)
        self.tokens, self.padding, self.sources = list[int](), list[int](), list[str]()
        self.skipped = list[tuple[int | str, str, int]]()
        self.address = _address(*address)
        self.opening = LaneOpening(dataset, address, init, shown=shown)
        start = Restart(unpacked(draw.token), draw.at) if draw.token else BEGINNING
        self._iterator = self.opening.opened(start)
        self.seeds: AbstractContextManager[None] = nullcontext() if self._iterator.seeds_itself else seeds
        self._left_out = self.opening.skipped.rows if self.opening.skipped is not None else []
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
