"""The plan of a pass over lanes: which outputs of which lane make the next batch.

Lanes are what has no count: generators, filters. An address is (epoch, lane, k).

By default a batch comes from one lane, as in torch, where it comes from one worker; and lanes take turns, the one next
of which the fewest outputs were asked, then the one of the smallest number. With ranks, rank r has the lanes r, r + W,
r + 2 W, ...

Where the ranks share a global batch, there are A slots, a multiple of every number of ranks that can share it. Slot a
has the lanes a, a + A, a + 2 A, ..., which take turns; at a turn a lane gives at least `TURN` outputs. A global batch
takes a part of every slot, of equal size, and rank r has the slots r, r + W, ... So what a global batch holds does not
depend on the number of ranks. At a lane's end a part may be smaller.

Where a lane ends is learned only when it has ended, so a few draws are asked for behind its end. They hold nothing and
give no batch. What a slot gives does not depend on when that is learned.
"""

from __future__ import annotations

import base64
import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.bookmark import PlannedPass, Progress, Stage
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.state_dict import LaneState, LaneToken, Position
from headrace.feed.wire.messages import Draw, Drawn

_TOKENS = 4  # of a lane: an older one is needed while later outputs are on their way


@dataclass(frozen=True)
class Lanes:
    """The lanes of a loader.

    Attributes:
        count: how many, over all ranks.
        shuffle: of a stream over counted shards; run and runs of a `feed.Window`.
        drop_last: whether a lane's last, incomplete batch, or part of one, is left out.
        slots: that every global batch takes a part of; 0 where a batch comes from one lane.
        skip: whether rows that a stream's steps raise over are left out.
        steps: batches of an epoch; None for as many as there are.
    """

    count: int
    shuffle: bool | tuple[int, int] = False
    drop_last: bool = False
    slots: int = 0
    skip: bool = False
    steps: int | None = None


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
    """Outputs of a lane that were asked for: what a `BatchPlan` of a lane refers to, without the outputs.

    Attributes:
        first, count: which ones.
        part: outputs of it in a batch that takes of other lanes too; 0 where they are a batch by themselves.
        drawn: what came; None before.
        failed: whether the dataset raised.
        given: outputs that were handed out.
    """

    cursor: LaneCursor
    lanes: Lanes
    first: int
    count: int
    part: int = 0
    drawn: Drawn | None = None
    failed: bool = False
    given: int = 0

    @property
    def rows(self) -> int:
        """Outputs that came."""
        return self.drawn.rows if self.drawn is not None and not self.failed else 0

    def request(self, share: tuple[int, int] | None = None) -> Draw:
        """Returns what a worker is asked, with the token that saves it the most; `share`: see `Draw`."""
        token, lanes = self._nearest(), self.lanes
        return Draw(
            self.cursor.lane, lanes.count, self.first, self.count, lanes.shuffle, lanes.drop_last, token.at,
            token.token, self.part, lanes.skip, share,
        )  # fmt: skip

    def cheap(self) -> bool:
        """Whether another worker could make it without a long replay."""
        return self.replayed <= 4 * self.count

    @property
    def replayed(self) -> int:
        """Outputs that another worker would have to make and drop before it."""
        return self.first - self._nearest().at

    def _nearest(self) -> LaneToken:
        near = [token for token in self.cursor.tokens if token.at <= self.first]
        return near[-1] if near else LaneToken(0, b"")

    def answered(self, drawn: Drawn) -> None:
        """Notes what came of it."""
        self.drawn = drawn
        cursor = self.cursor
        cursor.ended = cursor.ended or drawn.ended
        if drawn.token and (not cursor.tokens or cursor.tokens[-1].at < drawn.at):
            cursor.tokens.append(LaneToken(drawn.at, drawn.token))
            del cursor.tokens[:-_TOKENS]


KEPT_STEPS = 256  # how far behind the latest batch a position can be told
TURN = 8  # outputs of a lane at a turn, at least, where a global batch takes of several slots


class LanePart(NamedTuple):
    """Outputs of a draw that go into one batch, from number `first` of the draw on; or the batch that they are."""

    draw: LaneDraw
    first: int
    last: int
    outputs: Any


class _Taken(NamedTuple):
    step: int  # batches of the pass that were handed out with it
    lane: int
    taken: int
    ended: bool
    token: LaneToken | None


@dataclass(eq=False)
class _Slot:
    """Lanes that take turns.

    Attributes:
        turns: a heap of the lanes; the first is asked next.
        asked: parts that were asked for, as far as is known.
        owed: draws that were asked for and have not come.
        held: draws that have come, in order, with their outputs, which were not all handed out. The first is not empty.
            Nothing else has outputs: requests and plans live on for a while, and what the user let go of would, too.
    """

    number: int
    turns: list[tuple[int, int]]
    asked: int = 0
    owed: int = 0
    held: deque[tuple[LaneDraw, Any]] = field(default_factory=deque)


class LanePass(PlannedPass, Iterator[BatchPlan]):
    """One pass over the lanes of a rank: it iterates over what is asked for. See the module.

    Args:
        progress: of the pass.
        lanes: of the loader.
        own: the rank's lanes.
        begins: where the pass begins.
        batch_size: outputs of a batch; None for a loader that does not batch.
        replays: whether all batches before that place are made and passed over first, because it does not know the
            rank's lanes.

    Attributes:
        draws: those that were asked for and have not come, by their numbers.
        epoch, seed: of the pass.
        step: batches of the epoch that were taken, those that were passed over too.
        steps: of `lanes`.
        slots: the rank's; 1 where a batch comes from one lane.
        drop_last: whether batches that are not whole are left out.
        replay: batches that are still to be passed over.
    """

    window = 1

    def __init__(
        self,
        progress: Progress,
        lanes: Lanes,
        own: Sequence[int],
        begins: Position,
        batch_size: int | None,
        *,
        replays: bool = False,
    ) -> None:
        super().__init__(progress)
        self.plans, self.lanes = self, self
        assert begins.seed is not None, "the loader has one by now"
        self._lanes, self.epoch, self.seed, self._batched = lanes, begins.epoch, begins.seed, batch_size is not None
        start = begins.lanes if begins.lanes is not None and not replays else LaneState(lanes.count)
        step, rows = 0 if replays else begins.step, batch_size or 1
        taken, ended, tokens = dict(start.taken), set(start.ended), start.by_lane()
        self._base = {lane: _Taken(step, lane, taken.get(lane, 0), lane in ended, tokens.get(lane)) for lane in own}
        self._latest = dict(self._base)
        self._cursors = {
            lane: LaneCursor(
                lane,
                base.taken,
                base.ended,
                tokens=[base.token] if base.token is not None else [],
            )
            for lane, base in self._base.items()
        }
        numbers = sorted({lane % (lanes.slots or 1) for lane in own})
        self.slots = len(numbers)
        self._part = rows // self.slots
        self._turn = -(-TURN // self._part) * self._part if lanes.slots else rows
        self._slots = {number: _Slot(number, []) for number in numbers}
        for lane, cursor in self._cursors.items():
            if not cursor.ended:
                self._slot_of(lane).turns.append((cursor.asked // self._turn, lane))
        for slot in self._slots.values():
            heapq.heapify(slot.turns)
        self._next = [(0, number) for number in numbers]  # a heap of the slots; those of an old `asked` do not count
        self.steps, self.drop_last = lanes.steps, lanes.drop_last
        self._number = 0
        self.replay, self._before = begins.step if replays else 0, begins
        self._log: deque[_Taken] = deque()
        self.step = step
        self.draws: dict[int, LaneDraw] = {}

    def __next__(self) -> BatchPlan:
        while self._next:
            asked, number = heapq.heappop(self._next)
            slot = self._slots[number]
            if asked == slot.asked and self._open(slot):
                return self._ask(slot)
        raise StopIteration

    def _slot_of(self, lane: int) -> _Slot:
        return self._slots[lane % (self._lanes.slots or 1)]

    def _open(self, slot: _Slot) -> bool:
        """Returns whether something can be asked of a slot: one of its lanes is not known to have ended."""
        while slot.turns and self._cursors[slot.turns[0][1]].ended:
            heapq.heappop(slot.turns)
        return bool(slot.turns)

    def _ask(self, slot: _Slot) -> BatchPlan:
        _, lane = heapq.heappop(slot.turns)
        cursor, part = self._cursors[lane], self._part
        first, count = cursor.asked, part
        if self.slots > 1:  # the rest of its turn
            count = -(-(self._turn - first % self._turn) // part) * part
        cursor.asked = first + count
        heapq.heappush(slot.turns, (cursor.asked // self._turn, lane))
        draw = LaneDraw(cursor, self._lanes, first, count, part if self.slots > 1 else 0)
        self._asked(slot, count // part)
        slot.owed += 1
        number, self._number = self._number, self._number + 1
        self.draws[number] = draw
        keys = range(first, first + count)
        seed, epoch, position = self.address_of(draw, 0)
        return BatchPlan(epoch, number, position, keys, seed, self._batched, draw)

    def _asked(self, slot: _Slot, parts: int) -> None:
        slot.asked += parts
        heapq.heappush(self._next, (slot.asked, slot.number))

    def plans_for(self, batches: int) -> int:
        """Returns how many draws some batches are made of; of several slots, whole turns of them."""
        return batches if self.slots == 1 else -(-batches * self._part // self._turn) * self.slots

    def address_of(self, draw: LaneDraw, number: int) -> tuple[int, int, int]:
        """Returns seed, epoch and plan position of an output of a draw."""
        return self.seed, self.epoch, (draw.first + number) * self._lanes.count + draw.cursor.lane

    @property
    def awaited(self) -> int:
        """The number of the draw that comes next."""
        return next(iter(self.draws), self._number)

    def keep(self, number: int, outputs: Any) -> bool:
        """Draw `number` has come, was empty or failed; its outputs are for the batches that follow.

        Returns:
            Whether it is passed over at once. Else an empty one comes with the last batch before it, see `take`.
        """
        draw = self.draws.pop(number)
        cursor, slot = draw.cursor, self._slot_of(draw.cursor.lane)
        slot.owed -= 1
        if draw.rows < draw.count:
            self._asked(slot, -(-draw.rows // self._part) - draw.count // self._part)
        if draw.drawn is None or draw.failed:
            cursor.ended = cursor.failed = True
        if draw.rows or slot.held:
            slot.held.append((draw, outputs))
            return False
        self._pass_over(draw, self.step)
        return True

    def _pass_over(self, draw: LaneDraw, step: int) -> None:
        """What is behind a lane's end was consumed: everything before it was."""
        self._note(_Taken(step, draw.cursor.lane, 0, True, None))

    def lacking(self) -> int:
        """Returns of how many slots nothing is here, and something may come."""
        return sum(not slot.held and (slot.owed > 0 or self._open(slot)) for slot in self._slots.values())

    def ended(self) -> int:
        """Returns of how many slots nothing is here, if nothing more can come of these."""
        return sum(not slot.held for slot in self._slots.values())

    def held(self) -> int:
        """Returns how many batches can be made of what is here."""
        parts = [
            sum(-(-(draw.rows - draw.given) // self._part) for draw, _ in slot.held) for slot in self._slots.values()
        ]
        return min(parts, default=0)

    def take(self) -> list[LanePart]:
        """Takes a part of every slot that has one: the next batch.

        Behind the last part of a draw come those that were empty behind it, as parts without outputs.
        """
        step, parts = self.step + 1, list[LanePart]()
        for slot in self._slots.values():
            if not slot.held:
                continue
            draw, outputs = slot.held[0]
            drawn, first = draw.drawn, draw.given
            assert drawn is not None, "it has come"
            last = draw.given = min(drawn.rows, first + self._part)
            parts.append(LanePart(draw, first, last, outputs[first:last] if draw.part else outputs))
            taken, through = draw.first + last, last == drawn.rows
            token = LaneToken(drawn.at, drawn.token) if through and drawn.token else None
            self._note(_Taken(step, draw.cursor.lane, taken, through and drawn.ended, token))
            if through:
                slot.held.popleft()
            while slot.held and not slot.held[0][0].rows:
                empty, _ = slot.held.popleft()
                self._pass_over(empty, step)
                if empty.drawn is not None:
                    parts.append(LanePart(empty, 0, 0, ()))
        self.step = step
        while self._log and self._log[0].step <= step - KEPT_STEPS:
            self._fold(self._base, self._log.popleft())
        return parts

    def _note(self, taken: _Taken) -> None:
        self._log.append(taken)
        self._fold(self._latest, taken)

    @staticmethod
    def _fold(base: dict[int, _Taken], taken: _Taken) -> None:
        before = base[taken.lane]
        token = taken.token or (None if taken.ended else before.token)
        reached, ended = max(before.taken, taken.taken), before.ended or taken.ended
        base[taken.lane] = _Taken(taken.step, taken.lane, reached, ended, token)

    def position_after(self, beginning: Position, step: int) -> Position:
        """See `PlannedPass`."""
        if self.progress.stage is Stage.ENDED and step == self.progress.step:
            return msgspec.structs.replace(beginning, epoch=self.epoch + 1)
        if step > self.progress.step:
            raise PositionError(f"the place at step {step} is not known: the pass is at step {self.progress.step}")
        return self._position(beginning, step)

    def _position(self, beginning: Position, step: int) -> Position:
        """See `PlannedPass`."""
        if self.replay:
            return self._before
        oldest = max((base.step for base in self._base.values()), default=0)
        if not oldest <= step <= self.step:
            raise PositionError(f"the place at step {step} is not known: the pass is at step {self.step}")
        return msgspec.structs.replace(beginning, epoch=self.epoch, step=step, lanes=self._state(step))

    def _state(self, step: int) -> LaneState:
        reached = self._latest
        if step < self.step:
            reached = dict(self._base)
            for taken in self._log:
                if taken.step <= step:
                    self._fold(reached, taken)
        lanes = sorted(reached.values(), key=lambda base: base.lane)
        tokens = [(base.lane, *base.token) for base in lanes if base.token is not None]
        return LaneState(
            self._lanes.count,
            [(base.lane, base.taken) for base in lanes],
            [base.lane for base in lanes if base.ended],
            [(lane, at, base64.b64encode(token).decode()) for lane, at, token in tokens],
            self._lanes.slots,
        )
