"""How far a pass over a loader is, also when batches leave it out of their order (``in_order=False``)."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.epoch import BatchPlan, EpochPlan

if TYPE_CHECKING:
    from headrace.feed.plan.lane_pass import LanePass
    from headrace.feed.plan.state_dict import Position


class Place(NamedTuple):
    """How far a pass is.

    Attributes:
        step: number of the first batch that is still to come.
        ahead: numbers of those behind it that have left the loader already.
    """

    step: int
    ahead: frozenset[int] = frozenset()


@dataclass
class Progress:
    """How far a pass is.

    Attributes:
        epoch: number of the epoch.
        step: number of the next batch; those before it have left the loader, or ended in an error of the dataset.
        ended: whether the pass came to the epoch's end.
        ahead: numbers of batches after `step` that have left the loader already.
        strayed: whether a batch left the loader before its turn.
        begun: whether a batch was asked for.
        broken_off: whether nobody can ask for more.
        stepped_back: whether it was planned, and must be planned again before its first batch.
    """

    epoch: int
    step: int = 0
    ended: bool = False
    ahead: frozenset[int] = frozenset()
    strayed: bool = False
    begun: bool = False
    broken_off: bool = False
    stepped_back: bool = False

    @property
    def over(self) -> bool:
        """Whether no batch of it can come any more."""
        return self.ended or self.broken_off

    @property
    def place(self) -> Place:
        """Where the pass is."""
        return Place(self.step, self.ahead)

    def took(self, step: int) -> None:
        """Notes that a batch has left the loader."""
        if step == self.step and not self.ahead:
            self.step += 1
            return
        ahead = self.ahead | {step}
        self.strayed |= step != self.step
        while self.step in ahead:
            ahead -= {self.step}
            self.step += 1
        self.ahead = ahead

    def move(self, place: Place) -> None:
        """Goes to where another progress of the same pass was."""
        self.strayed |= bool(place.ahead)
        self.step, self.ahead = place


class Followed(abc.ABC):
    """What a pass goes through, as far as its bookmark asks.

    Attributes:
        drawn: whether it draws when it begins, so that a pass that was planned stays.
        end_step: number of the step after its last; 0 where that is not known.
        empty: whether it is known to have no steps.
    """

    drawn = False
    end_step = 0
    empty = False

    @abc.abstractmethod
    def position(self, beginning: Position, progress: Progress) -> Position:
        """Returns where the pass is, which has not ended."""

    def position_after(self, beginning: Position, progress: Progress, step: int) -> Position:
        """Returns where the pass was when `step` was its next step. Raises PositionError if that is not known."""
        del beginning, progress
        raise PositionError(f"the place at step {step} is not known: the order is not headrace's own")

    def consumed(self, step: int) -> int:
        """Returns the plan position that the ranks together have reached; 0 where there are no plan positions."""
        del step
        return 0

    def ended_position(self, beginning: Position) -> Position:
        """Returns where the pass is that has ended: the beginning of another epoch."""
        return beginning


@dataclass(frozen=True)
class CountedEpoch(Followed):
    """headrace's own plan of an epoch."""

    plan: EpochPlan

    @property
    def end_step(self) -> int:  # type: ignore[override]
        """See `Followed`."""
        return self.plan.end_step

    @property
    def empty(self) -> bool:  # type: ignore[override]
        """See `Followed`."""
        return not self.plan.steps

    def consumed(self, step: int) -> int:
        """See `Followed`."""
        return self.plan.consumed(step)

    def position(self, beginning: Position, progress: Progress) -> Position:
        """See `Followed`. Samples that fill the epoch's end up are none."""
        samples = min(self.plan.consumed(progress.step), self.plan.samples or self.plan.length)
        return msgspec.structs.replace(beginning, epoch=progress.epoch, step=progress.step, samples=samples)

    def position_after(self, beginning: Position, progress: Progress, step: int) -> Position:
        """See `Followed`."""
        taken, batches = progress.step - self.plan.first_step, step - self.plan.first_step
        if progress.strayed:
            raise PositionError(
                f"the place behind {batches} batches is not known: they did not come in their order",
                "in_order=False knows the latest place only; use in_order=True",
            )
        if not 0 <= batches <= taken:
            raise PositionError(f"batches must lie in [0, {taken}], as many as the pass has returned, got {batches}")
        if step == self.plan.end_step:
            return msgspec.structs.replace(beginning, epoch=progress.epoch + 1)
        return self.position(beginning, Progress(progress.epoch, step))


class Begun(NamedTuple):
    """A pass that begins.

    Attributes:
        plans: what is asked for; may go on with later epochs.
        end_step: the number after the pass's last step, if those of later epochs follow.
        lanes: where it is one over lanes.
    """

    progress: Progress
    plans: Iterator[BatchPlan]
    end_step: int | None = None
    lanes: LanePass | None = None


def without(plans: Iterator[BatchPlan], epoch: int, taken: frozenset[int]) -> Iterator[BatchPlan]:
    """Leaves batches of an epoch out that have left the loader. The one that follows is always looked up already."""
    held: BatchPlan | None = None
    for plan in plans:
        if plan.epoch == epoch and plan.step in taken:
            continue
        if held is not None:
            yield held
        held = plan
    if held is not None:
        yield held
