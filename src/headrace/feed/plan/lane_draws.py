"""The plan of a pass over lanes: which outputs of which lane make the next batch.

Lanes are what has no count: generators, filters. An address is (epoch, lane, k). A batch comes from one lane, as in
torch, where it comes from one worker; and lanes take turns, the one next of which the fewest outputs were asked, then
the one of the smallest number. With ranks, rank r has the lanes r, r + W, r + 2 W, ...

Where a lane ends is learned only when it has ended, so a few draws are asked for behind its end. They hold nothing and
give no batch. The sequence of batches does not depend on when that is learned.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.lane_state import LaneState, LaneToken
from headrace.feed.plan.state_dict import Position
from headrace.feed.wire.draws import Draw, Drawn

KEPT_STEPS = 256  # how far behind the latest batch a position can be told
_TOKENS = 4  # of a lane: an older one is needed while later outputs are on their way


@dataclass(frozen=True)
class Lanes:
    """The lanes of a loader.

    Attributes:
        count: how many, over all ranks.
        shuffle: of a stream over counted shards; run and runs of a `feed.Window`.
        drop_last: whether a lane's last, incomplete batch is left out.
    """

    count: int
    shuffle: bool | tuple[int, int] = False
    drop_last: bool = False


@dataclass(eq=False)
class LaneCursor:
    """How far a lane was asked for.

    Attributes:
        lane: its number.
        asked: number of the output that is asked for next.
        ended: whether it is known to have none left.
        failed: whether the dataset raised in it, and the user was told.
        tokens: where its readers can be opened, in order.
    """

    lane: int
    asked: int
    ended: bool = False
    failed: bool = False
    tokens: list[LaneToken] = field(default_factory=list)


@dataclass(eq=False)
class LaneDraw:
    """Outputs of a lane that were asked for: what a `BatchPlan` of a lane refers to."""

    cursor: LaneCursor
    lanes: Lanes
    first: int
    count: int
    drawn: Drawn | None = None
    failed: bool = False

    def request(self) -> Draw:
        """Returns what a worker is asked, with the token that saves it the most."""
        near = [token for token in self.cursor.tokens if token.at <= self.first]
        token = near[-1] if near else LaneToken(0, b"")
        lanes = self.lanes
        return Draw(
            self.cursor.lane, lanes.count, self.first, self.count, lanes.shuffle, lanes.drop_last, token.at, token.token
        )

    def cheap(self) -> bool:
        """Whether another worker could make it without a long replay."""
        return self.first - self.request().at <= 4 * self.count

    def answered(self, drawn: Drawn) -> None:
        """Notes what came of it."""
        self.drawn = drawn
        cursor = self.cursor
        cursor.ended = cursor.ended or drawn.ended
        if drawn.token and (not cursor.tokens or cursor.tokens[-1].at < drawn.at):
            cursor.tokens.append(LaneToken(drawn.at, drawn.token))
            del cursor.tokens[:-_TOKENS]


class _Taken(NamedTuple):
    step: int  # batches of the pass that were handed out with it
    lane: int
    taken: int
    ended: bool
    token: LaneToken | None


class LanePass(Iterator[BatchPlan]):
    """One pass over the lanes of a rank; see the module.

    Args:
        lanes: of the loader.
        steps: batches of the epoch; None for as many as there are.
        own: the rank's lanes.
        epoch, seed: of the pass.
        rows: outputs of a batch.
        batched: False for a loader that does not batch.
        start: where it begins; None for the lanes' beginning.
        step: batches of the epoch before.
        replay: batches that are made and passed over first.
        before: the position behind these.

    Attributes:
        draws: those that were asked for and not handed out, by their numbers.
        steps: batches of the epoch; None for as many as there are.
        replay: batches that are still to be passed over.
    """

    def __init__(
        self,
        lanes: Lanes,
        steps: int | None,
        own: Sequence[int],
        epoch: int,
        seed: int,
        rows: int,
        start: LaneState | None,
        step: int,
        *,
        batched: bool,
        replay: int = 0,
        before: Position | None = None,
    ) -> None:
        self._lanes, self._epoch, self._seed, self._rows, self._batched = lanes, epoch, seed, rows, batched
        taken = dict(start.taken) if start is not None else {}
        ended = set(start.ended) if start is not None else set()
        tokens = start.by_lane() if start is not None else {}
        self._base = {lane: _Taken(step, lane, taken.get(lane, 0), lane in ended, tokens.get(lane)) for lane in own}
        self._cursors = {
            lane: LaneCursor(lane, base.taken, base.ended, tokens=[base.token] if base.token is not None else [])
            for lane, base in self._base.items()
        }
        self._turns = [(cursor.asked, lane) for lane, cursor in self._cursors.items() if not cursor.ended]
        heapq.heapify(self._turns)
        self.steps = steps
        self._number = 0
        self.replay, self._before = replay, before
        self._log: deque[_Taken] = deque()
        self._step = step
        self.draws: dict[int, LaneDraw] = {}

    def __next__(self) -> BatchPlan:
        while self._turns:
            first, lane = heapq.heappop(self._turns)
            cursor = self._cursors[lane]
            if cursor.ended:
                continue
            cursor.asked = first + self._rows
            heapq.heappush(self._turns, (cursor.asked, lane))
            draw = LaneDraw(cursor, self._lanes, first, self._rows)
            number, self._number = self._number, self._number + 1
            self.draws[number] = draw
            position = first * self._lanes.count + lane
            keys = range(first, first + self._rows)
            return BatchPlan(self._epoch, number, position, keys, self._seed, self._batched, draw)
        raise StopIteration

    def handed(self, number: int, step: int) -> None:
        """Draw `number` was handed out, was empty or failed; with it the pass has given `step` batches."""
        draw = self.draws.pop(number)
        cursor, drawn = draw.cursor, draw.drawn
        if drawn is None or draw.failed:
            cursor.ended = cursor.failed = True
            taken, token = draw.first, None
        else:
            taken = draw.first + drawn.rows
            token = LaneToken(drawn.at, drawn.token) if drawn.token else None
        self._log.append(_Taken(step, cursor.lane, taken, drawn is None or drawn.ended or draw.failed, token))
        self._step = step
        while self._log and self._log[0].step <= step - KEPT_STEPS:
            self._fold(self._base, self._log.popleft())

    @staticmethod
    def _fold(base: dict[int, _Taken], taken: _Taken) -> None:
        before = base[taken.lane]
        token = taken.token or (None if taken.ended else before.token)
        base[taken.lane] = taken._replace(
            taken=max(before.taken, taken.taken), ended=before.ended or taken.ended, token=token
        )

    def position(self, beginning: Position, step: int) -> Position | None:
        """Returns the place behind so many batches of the epoch; None if that is not known any more."""
        if self.replay and self._before is not None:
            return self._before
        lanes = self._state(step)
        if lanes is None:
            return None
        return msgspec.structs.replace(beginning, epoch=self._epoch, step=step, lanes=lanes)

    def _state(self, step: int) -> LaneState | None:
        oldest = max((base.step for base in self._base.values()), default=0)
        if not oldest <= step <= self._step:
            return None
        found = dict(self._base)
        for taken in self._log:
            if taken.step <= step:
                self._fold(found, taken)
        return LaneState.of(
            self._lanes.count,
            {lane: taken.taken for lane, taken in found.items()},
            [lane for lane, taken in found.items() if taken.ended],
            {lane: taken.token for lane, taken in found.items() if taken.token is not None},
        )
