"""A draw: outputs of a lane that are asked for together, and what is known of the lane by then."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.feed.plan.lane_state import LaneToken
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
    """

    count: int
    shuffle: bool | tuple[int, int] = False
    drop_last: bool = False
    slots: int = 0
    skip: bool = False


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

    def request(self) -> Draw:
        """Returns what a worker is asked, with the token that saves it the most."""
        token, lanes = self._nearest(), self.lanes
        return Draw(
            self.cursor.lane, lanes.count, self.first, self.count, lanes.shuffle, lanes.drop_last, token.at,
            token.token, self.part, lanes.skip,
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
