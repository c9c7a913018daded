"""A loader's bookmark: how far its latest pass is, and where the next one begins.

It makes the `Position` that `DataLoader.state_dict()` returns, and keeps one that was loaded until a pass takes it up.
After a complete pass the next one begins a new epoch; after an interrupted one it begins where that one stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import PositionError
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.lane_pass import LanePass
from headrace.feed.plan.pass_progress import Place, Progress, packed_steps
from headrace.feed.plan.state_dict import Position, TakenAhead
from headrace.feed.plan.torch_samplers import SampledPass, SamplerSource, waiting_state


class Bookmark:
    """See the module.

    Attributes:
        epoch: number of the next epoch.
        loaded: where the next pass begins, if not at the epoch's beginning.
        loads: how often a position was loaded, or an earlier epoch set: what was planned does not hold any more.
        rank: whose bookmark it is.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.loaded: Position | None = None
        self.loads = 0
        self.rank = 0
        self._taken: Position | None = None  # what the latest pass took up
        self._progress: Progress | None = None
        self._order: EpochPlan | SampledPass | LanePass | None = None

    def begin(self) -> tuple[Progress, Position | None]:
        """A pass begins. Returns its progress, and the position that it takes up."""
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

    def untouched(self, progress: Progress) -> None:
        """A pass was dropped before its first batch, as by a check that a loader can be iterated: it was none."""
        if self._progress is progress and self.loaded is None:
            self.epoch, self.loaded = progress.epoch, self._taken
            self._progress = self._order = None

    def follow(self, progress: Progress, order: EpochPlan | SampledPass | LanePass) -> None:
        """The pass that has begun goes through this order."""
        self._progress, self._order = progress, order

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch. A position that was loaded in another epoch is left, with a warning."""
        if self.loaded is not None and self.loaded.epoch != epoch:
            if self.loaded.step:
                warnings.warn(
                    f"set_epoch({epoch}) leaves the position that was loaded: "
                    f"step {self.loaded.step} of epoch {self.loaded.epoch}",
                    stacklevel=3,
                )
            self.loaded = None
        if self._progress is not None and not self._progress.ended:
            self._progress = self._order = None
        self.loads += epoch < self.epoch
        self.epoch = epoch

    def reached(self) -> tuple[int, int]:
        """Returns the epoch of the latest pass in headrace's own order, and the plan position that it has reached."""
        progress, order = self._progress, self._order
        if progress is not None and isinstance(order, EpochPlan):
            return progress.epoch, order.consumed(progress.step)
        return (self.loaded.epoch, self.loaded.samples) if self.loaded is not None else (self.epoch, 0)

    def given(self) -> tuple[int, int] | None:
        """Returns the epoch of the latest pass, and the number of its first batch that was not given; None before."""
        return (self._progress.epoch, self._progress.step) if self._progress is not None else None

    def under_way(self) -> tuple[Progress, EpochPlan] | None:
        """Returns the progress and the plan of a pass in headrace's own order that has steps left; None without."""
        progress, order = self._progress, self._order
        if progress is None or progress.ended or not isinstance(order, EpochPlan) or progress.step >= order.end_step:
            return None
        return progress, order

    def load(self, state: Mapping[str, Any], loader: Position) -> None:
        """Takes what `position` was saved as; an empty state for the beginning.

        Raises:
            PositionError: it does not fit the loader.
        """
        loaded = None if isinstance(state, Mapping) and not state else Position.from_state(state)
        if loaded is not None:
            loaded.require_fits(loader)
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
        progress, order = self._progress, self._order
        if progress is not None and isinstance(order, LanePass):
            step = batches + (self._taken.step if self._taken is not None else 0)
            found = order.position(loader, step) if step <= progress.step else None
            if found is None:
                raise PositionError(f"the place behind {batches} batches of {progress.step} is not known")
            return found
        if progress is None or not isinstance(order, EpochPlan):
            raise PositionError(
                f"the place behind {batches} batches is not known: no pass in headrace's own order has begun"
            )
        if progress.strayed:
            raise PositionError(
                f"the place behind {batches} batches is not known: they did not come in their order",
                'order="window:k" knows the latest place only; use order="exact"',
            )
        step = order.first_step + batches
        if not order.first_step <= step <= progress.step:
            taken = progress.step - order.first_step
            raise PositionError(f"batches must lie in [0, {taken}], as many as the pass has returned, got {batches}")
        if step == order.end_step:
            return msgspec.structs.replace(loader, epoch=progress.epoch + 1)
        return msgspec.structs.replace(loader, epoch=progress.epoch, step=step, samples=order.consumed(step))

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
            sampler = order.state()[1] if isinstance(order, SampledPass) else None
            return msgspec.structs.replace(loader, epoch=self.epoch, sampler=sampler)
        if isinstance(order, LanePass):
            found = order.position(loader, progress.step)
            assert found is not None, "the latest place is always known"
            return found
        if isinstance(order, EpochPlan):
            samples = order.consumed(progress.step)
            found = msgspec.structs.replace(loader, epoch=progress.epoch, step=progress.step, samples=samples)
        else:
            samples, sampler = order.state()
            found = msgspec.structs.replace(
                loader, epoch=progress.epoch, step=progress.step, samples=samples, seed=order.seed, sampler=sampler
            )
        if progress.ahead:
            ahead = TakenAhead(packed_steps(progress.step, progress.ahead), self.rank)
            found = msgspec.structs.replace(found, ahead=ahead)
        return found
