"""A loader's bookmark: how far its latest pass is, and where the next one begins.

It makes the `Position` that `DataLoader.state_dict()` returns, and keeps one that was loaded until a pass takes it up.

Which epoch a pass has is settled when its first batch is asked for. Before that it is planned, so that workers begin,
and steps back when another epoch is set, a position is loaded or another pass begins: it is planned again then. In the
order of a torch sampler, which draws when a pass begins, it does not. From its first batch to its end a pass stays what
it is: an epoch that is set meanwhile is that of the next one.
"""

from __future__ import annotations

import abc
import enum
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.epoch import BatchPlan, EpochPlan
from headrace.feed.plan.state_dict import MAX_WINDOW, Position, TakenAhead, packed_steps

if TYPE_CHECKING:
    from headrace.feed.plan.lane_pass import LanePass


class Place(NamedTuple):
    """How far a pass is.

    Attributes:
        step: number of the first batch that is still to come.
        ahead: numbers of those behind it that have left the loader already.
    """

    step: int
    ahead: frozenset[int] = frozenset()


class Stage(enum.Enum):
    """What has become of a pass."""

    PLANNED = enum.auto()  # no batch was asked for
    BEGUN = enum.auto()
    BROKEN_OFF = enum.auto()  # nobody can ask for more
    ENDED = enum.auto()  # it came to the epoch's end
    LEFT = enum.auto()  # the loader does not stand in it any more: it must be planned again before its first batch


@dataclass
class Progress:
    """How far a pass is, also when batches leave it out of their order (``in_order=False``).

    Attributes:
        epoch: number of the epoch.
        step: number of the next batch; those before it have left the loader, or ended in an error of the dataset.
        ahead: numbers of batches after `step` that have left the loader already.
        strayed: whether a batch left the loader before its turn.
        stage: see `Stage`.
    """

    epoch: int
    step: int = 0
    ahead: frozenset[int] = frozenset()
    strayed: bool = False
    stage: Stage = Stage.PLANNED

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


class PlannedPass(abc.ABC):
    """One pass over the data, as its planner makes it: what is asked for, and where it is.

    Args:
        progress: how far it is.

    Attributes:
        progress: as above.
        plans: what is asked for; may go on with later epochs.
        end_step: the number after the pass's last step, where those of later epochs follow; else None.
        window: batches from the first that is still to come, of which any may be taken without `in_order`.
        lanes: where it is one over lanes.
        drawn: whether it draws when it begins, so that a pass that was planned stays.
        empty: whether it is known to have no steps.
    """

    plans: Iterator[BatchPlan]
    end_step: int | None = None
    window: int = MAX_WINDOW
    lanes: LanePass | None = None
    drawn = False
    empty = False

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the loader knows the place only."""
        return {**vars(self), "plans": iter(())}

    def position(self, beginning: Position) -> Position:
        """Returns where the pass is, which has not ended."""
        return self._position(beginning, self.progress.step)

    @abc.abstractmethod
    def _position(self, beginning: Position, step: int) -> Position:
        """Returns where the pass was when `step`, now or before, was its next step."""

    def position_after(self, beginning: Position, step: int) -> Position:
        """Returns where the pass was when `step` was its next step. Raises PositionError if that is not known."""
        del beginning
        raise PositionError(f"the place at step {step} is not known: the order is not headrace's own")

    def consumed(self, step: int) -> int:
        """Returns the plan position that the ranks together have reached; 0 where there are no plan positions."""
        del step
        return 0

    def ended_position(self, beginning: Position) -> Position:
        """Returns where the pass is that has ended: the beginning of another epoch."""
        return beginning


class OwnPass(PlannedPass):
    """A pass in headrace's own order.

    Args:
        progress: of it.
        plan: of its epoch.
        plans: of the epoch, and of later ones.
    """

    def __init__(self, progress: Progress, plan: EpochPlan, plans: Iterator[BatchPlan]) -> None:
        super().__init__(progress)
        self._plan, self.plans, self.empty = plan, plans, not plan.steps
        self.end_step = plan.end_step if plan.steps else None

    def consumed(self, step: int) -> int:
        """See `PlannedPass`."""
        return self._plan.consumed(step)

    def _position(self, beginning: Position, step: int) -> Position:
        """See `PlannedPass`. Samples that fill the epoch's end up are none."""
        samples = min(self._plan.consumed(step), self._plan.samples or self._plan.length)
        return msgspec.structs.replace(beginning, epoch=self.progress.epoch, step=step, samples=samples)

    def position_after(self, beginning: Position, step: int) -> Position:
        """See `PlannedPass`."""
        taken, batches = self.progress.step - self._plan.first_step, step - self._plan.first_step
        if self.progress.strayed:
            raise PositionError(
                f"the place behind {batches} batches is not known: they did not come in their order",
                "in_order=False knows the latest place only; use in_order=True",
            )
        if not 0 <= batches <= taken:
            raise PositionError(f"batches must lie in [0, {taken}], as many as the pass has returned, got {batches}")
        if step == self._plan.end_step:
            return msgspec.structs.replace(beginning, epoch=self.progress.epoch + 1)
        return self._position(beginning, step)


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


class Bookmark:
    """See the module.

    Attributes:
        epoch: number of the next epoch.
        loaded: where the next pass begins, if not at the epoch's beginning.
        loads: how often a position was loaded, or an earlier epoch set: what was planned does not hold any more.
        rank: whose bookmark it is.
        steps: batches of an epoch, where the user said how many there are.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.loaded: Position | None = None
        self.loads = 0
        self.rank = 0
        self.steps: int | None = None
        self._taken: Position | None = None  # what the latest pass took up
        self._latest: PlannedPass | None = None

    @property
    def _pass(self) -> PlannedPass | None:
        """The pass that the loader stands in, or behind."""
        return None if self._latest is None or self._latest.progress.stage is Stage.LEFT else self._latest

    @property
    def _alive(self) -> PlannedPass | None:
        """That pass, if more batches of it may be asked for."""
        latest = self._latest
        return latest if latest is not None and latest.progress.stage in (Stage.PLANNED, Stage.BEGUN) else None

    def begin(self) -> tuple[Progress, Position | None]:
        """A pass begins. Returns its progress, and the position that it takes up."""
        if not self._step_back() and (alive := self._alive) is not None:
            self.loads += self.epoch == alive.progress.epoch  # the epoch under way was set: it begins anew
        self._taken = loaded = self.loaded
        self.loaded = None
        progress = Progress(self.epoch)
        if loaded is not None:
            progress.move(Place(loaded.step, loaded.taken_ahead))
        self.epoch += 1
        return progress, loaded

    def follow(self, latest: PlannedPass) -> None:
        """The pass that has begun is planned."""
        self._latest = latest

    @property
    def waits(self) -> bool:
        """Whether the loader stands before an epoch, and no position was loaded."""
        return self.loaded is None and (self._pass is None or self._pass.progress.stage is Stage.ENDED)

    @property
    def compares(self) -> bool:
        """Whether the position that was loaded names its data, which must be compared with those that there are."""
        return self.loaded is not None and bool(self.loaded.shards)

    def _step_back(self) -> bool:
        """Forgets the latest pass if it was planned only. Returns whether it was."""
        latest = self._latest
        if latest is None or latest.progress.stage is not Stage.PLANNED or latest.drawn:
            return False
        latest.progress.stage = Stage.LEFT
        if self.loaded is None:
            self.epoch, self.loaded = latest.progress.epoch, self._taken
        return True

    def complete(self, progress: Progress) -> None:
        """A pass has come to its epoch's end: the next one is another epoch's."""
        progress.stage = Stage.ENDED
        latest = self._latest
        if latest is not None and latest.progress is progress and self.loaded is None and self.epoch == progress.epoch:
            self.epoch += 1

    def broken_off(self, progress: Progress) -> None:
        """Nobody can ask for more of a pass. If nobody has asked for anything, it was none."""
        latest = self._pass
        if progress.stage is Stage.PLANNED and self.loaded is None and latest and latest.progress is progress:
            self.epoch, self.loaded, progress.stage = progress.epoch, self._taken, Stage.LEFT
        elif progress.stage is not Stage.LEFT:
            progress.stage = Stage.BROKEN_OFF

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which is that of a pass whose first batch was not asked for.

        A position that was loaded in another epoch is left, with a warning if some of that epoch is left out so.
        """
        latest, empty = self._latest, self._pass is not None and self._pass.empty
        if (alive := self._alive) is not None:
            if epoch == alive.progress.epoch:
                # where that pass is broken off, the next one begins it anew
                self.epoch = epoch + (alive.progress.stage is Stage.PLANNED)
                return
            if not self._step_back():
                self.loads += epoch < self.epoch
                self.epoch = epoch
                return
        if self.loaded is not None and self.loaded.epoch != epoch:
            if self.loaded.step not in (0, self.steps) and not self.loaded.at_end and not empty:
                warnings.warn(
                    f"set_epoch({epoch}) leaves the position that was loaded: "
                    f"step {self.loaded.step} of epoch {self.loaded.epoch}",
                    stacklevel=3,
                )
            self.loaded = None
        if latest is not None and latest.progress.stage is Stage.BROKEN_OFF:
            latest.progress.stage = Stage.LEFT
        self.loads += epoch < self.epoch
        self.epoch = epoch

    def reached(self) -> tuple[int, int]:
        """Returns the epoch of the latest pass, and the plan position that it has reached."""
        if (latest := self._pass) is not None:
            return latest.progress.epoch, latest.consumed(latest.progress.step)
        return (self.loaded.epoch, self.loaded.samples) if self.loaded is not None else (self.epoch, 0)

    def given(self) -> tuple[int, int] | None:
        """Returns the epoch of the latest pass, and the number of its first batch that was not given; None before."""
        return (self._latest.progress.epoch, self._latest.progress.step) if self._latest is not None else None

    @property
    def first_step(self) -> int:
        """The step of its epoch at which the latest pass began."""
        return self._taken.step if self._taken is not None else 0

    def behind(self, step: int) -> int | None:
        """Returns how many batches the latest pass had given before a step of its epoch; None if it is there.

        A step that it has not come to counts as its beginning.
        """
        latest = self._pass
        if latest is None or self.loaded is not None or latest.progress.stage is Stage.PLANNED:
            return None
        here = latest.progress.step
        return None if step == here else max(0, step - self.first_step) if step < here else 0

    @property
    def epoch_under_way(self) -> int | None:
        """The epoch of a pass in headrace's own order that has steps left; None without."""
        latest = self._pass
        if latest is None or latest.progress.stage is Stage.ENDED or latest.progress.step >= (latest.end_step or 0):
            return None
        return latest.progress.epoch

    def load(self, state: Mapping[str, Any], loader: Position) -> None:
        """Takes what `position` was saved as; an empty state for the beginning.

        Raises:
            PositionError: it does not fit the loader.
        """
        loaded = None if isinstance(state, Mapping) and not state else Position.from_state(state)
        if loaded is not None:
            loaded.require_fits(loader)
        self._step_back()
        self.epoch = loaded.epoch if loaded is not None else 0
        self.loaded, self._latest = loaded, None
        self.loads += 1

    def position_after(self, loader: Position, batches: int) -> Position:
        """Returns where the loader was after so many batches of the latest pass.

        Args:
            loader: as for `position`.
            batches: of the pass, not counting those before the position that it took up.

        Raises:
            PositionError: there is no such place, or a sampler decides the order.
        """
        if self._pass is None:
            raise PositionError(f"the place behind {batches} batches is not known: no pass has begun")
        return self._pass.position_after(loader, self.first_step + batches)

    def position(self, loader: Position) -> Position:
        """Returns where the loader is.

        Args:
            loader: all that does not change from batch to batch, and what a sampler needs that waits for its pass.
        """
        latest = self._pass
        if self.loaded is not None:
            return self.loaded
        if latest is None:
            return msgspec.structs.replace(loader, epoch=self.epoch)
        progress = latest.progress
        if progress.stage is Stage.ENDED:
            return latest.ended_position(msgspec.structs.replace(loader, epoch=self.epoch))
        position = latest.position(loader)
        if progress.ahead:
            ahead = TakenAhead(packed_steps(progress.step, progress.ahead), self.rank)
            position = msgspec.structs.replace(position, ahead=ahead)
        return position
