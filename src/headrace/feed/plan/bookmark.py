"""A loader's bookmark: how far its latest pass is, and where the next one begins.

It makes the `Position` that `DataLoader.state_dict()` returns, and keeps one that was loaded until a pass takes it up.

Which epoch a pass has is settled when its first batch is asked for. Before that it is planned, so that workers begin,
and steps back when another epoch is set, a position is loaded or another pass begins: it is planned again then. In the
order of a torch sampler, which draws when a pass begins, it does not. From its first batch to its end a pass stays what
it is: an epoch that is set meanwhile is that of the next one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.pass_progress import Followed, Place, Progress
from headrace.feed.plan.state_dict import Position, TakenAhead, packed_steps
from headrace.feed.plan.torch_samplers import SamplerSource, waiting_state


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
        self._progress: Progress | None = None
        self._order: Followed | None = None

    def begin(self) -> tuple[Progress, Position | None]:
        """A pass begins. Returns its progress, and the position that it takes up."""
        if not self._step_back() and self._alive and self._progress is not None:
            self.loads += self.epoch == self._progress.epoch  # the epoch under way was set: it begins anew
        self._taken = loaded = self.loaded
        self.loaded = None
        progress = Progress(self.epoch)
        if loaded is not None:
            progress.move(Place(loaded.step, loaded.taken_ahead))
        self.epoch += 1
        return progress, loaded

    @property
    def waits(self) -> bool:
        """Whether the loader stands before an epoch, and no position was loaded."""
        begun = self._progress is not None and self._order is not None and not self._progress.ended
        return self.loaded is None and not begun

    @property
    def _alive(self) -> bool:
        """Whether more batches of the latest pass may be asked for."""
        return self._progress is not None and self._order is not None and not self._progress.over

    def _step_back(self) -> bool:
        """Forgets the latest pass if it was planned only. Returns whether it was."""
        progress = self._progress
        if progress is None or progress.begun or not self._alive or self._order is None or self._order.drawn:
            return False
        progress.stepped_back, self._order = True, None
        if self.loaded is None:
            self.epoch, self.loaded = progress.epoch, self._taken
        return True

    def complete(self, progress: Progress) -> None:
        """A pass has come to its epoch's end: the next one is another epoch's."""
        progress.ended = True
        if self._progress is progress and self.loaded is None and self.epoch == progress.epoch:
            self.epoch += 1

    def broken_off(self, progress: Progress) -> None:
        """Nobody can ask for more of a pass. If nobody has asked for anything, it was none."""
        if self._progress is progress and not progress.begun and self._order is not None and self.loaded is None:
            self.epoch, self.loaded, self._order = progress.epoch, self._taken, None
        progress.broken_off = True

    def follow(self, progress: Progress, order: Followed) -> None:
        """The pass that has begun goes through this order."""
        self._progress, self._order = progress, order

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which is that of a pass whose first batch was not asked for.

        A position that was loaded in another epoch is left, with a warning if some of that epoch is left out so.
        """
        progress, order = self._progress, self._order
        if progress is not None and self._alive:
            if epoch == progress.epoch:
                self.epoch = epoch + (not progress.begun)  # where that pass is broken off, the next one begins it anew
                return
            if not self._step_back():
                self.loads += epoch < self.epoch
                self.epoch = epoch
                return
        if self.loaded is not None and self.loaded.epoch != epoch:
            empty = order is not None and order.empty
            if self.loaded.step not in (0, self.steps) and not self.loaded.at_end and not empty:
                warnings.warn(
                    f"set_epoch({epoch}) leaves the position that was loaded: "
                    f"step {self.loaded.step} of epoch {self.loaded.epoch}",
                    stacklevel=3,
                )
            self.loaded = None
        if progress is not None and not progress.ended:
            self._order = None
        self.loads += epoch < self.epoch
        self.epoch = epoch

    def reached(self) -> tuple[int, int]:
        """Returns the epoch of the latest pass, and the plan position that it has reached."""
        progress, order = self._progress, self._order
        if progress is not None and order is not None:
            return progress.epoch, order.consumed(progress.step)
        return (self.loaded.epoch, self.loaded.samples) if self.loaded is not None else (self.epoch, 0)

    def given(self) -> tuple[int, int] | None:
        """Returns the epoch of the latest pass, and the number of its first batch that was not given; None before."""
        return (self._progress.epoch, self._progress.step) if self._progress is not None else None

    @property
    def first_step(self) -> int:
        """The step of its epoch at which the latest pass began."""
        return self._taken.step if self._taken is not None else 0

    def behind(self, step: int) -> int | None:
        """Returns how many batches the latest pass had given before a step of its epoch; None if it is there.

        A step that it has not come to counts as its beginning.
        """
        progress = self._progress
        if progress is None or self._order is None or self.loaded is not None:
            return None
        if step == progress.step or not progress.begun:
            return None
        return max(0, step - self.first_step) if step < progress.step else 0

    @property
    def epoch_under_way(self) -> int | None:
        """The epoch of a pass in headrace's own order that has steps left; None without."""
        progress, order = self._progress, self._order
        if progress is None or progress.ended or order is None or progress.step >= order.end_step:
            return None
        return progress.epoch

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
        self.loaded, self._progress, self._order = loaded, None, None
        self.loads += 1

    def position_after(self, loader: Position, batches: int) -> Position:
        """Returns where the loader was after so many batches of the latest pass.

        Args:
            loader: as for `position`.
            batches: of the pass, not counting those before the position that it took up.

        Raises:
            PositionError: there is no such place, or a sampler decides the order.
        """
        if self._progress is None or self._order is None:
            raise PositionError(f"the place behind {batches} batches is not known: no pass has begun")
        return self._order.position_after(loader, self._progress, self.first_step + batches)

    def position(self, loader: Position, source: SamplerSource | None) -> Position:
        """Returns where the loader is.

        Args:
            loader: all that does not change from batch to batch.
            source: the torch sampler that decides the order, if one does.
        """
        if self.loaded is not None:
            return self.loaded
        progress, order = self._progress, self._order
        if progress is None or order is None:
            waiting = waiting_state(source) if source is not None else None
            return msgspec.structs.replace(loader, epoch=self.epoch, sampler=waiting)
        if progress.ended:
            return order.ended_position(msgspec.structs.replace(loader, epoch=self.epoch))
        found = order.position(loader, progress)
        if progress.ahead:
            ahead = TakenAhead(packed_steps(progress.step, progress.ahead), self.rank)
            found = msgspec.structs.replace(found, ahead=ahead)
        return found
