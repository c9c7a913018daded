"""The planner of a loader whose dataset has no count: which lanes are this rank's, and where a pass over them is."""

from __future__ import annotations

import math
import warnings
from typing import Any

import msgspec

from headrace.errors import PipelineError, PositionError
from headrace.feed.pipelines.lane_datasets import refuse_own_ranks, require_openable
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.plan.lane_draw import Lanes
from headrace.feed.plan.lane_pass import LanePass
from headrace.feed.plan.lane_state import LaneState
from headrace.feed.plan.orders.window import Window
from headrace.feed.plan.pass_progress import Begun
from headrace.feed.plan.planner import Planner
from headrace.feed.plan.state_dict import Position
from headrace.feed.plan.torch_samplers import SamplerSource


class LanePlanner(Planner):
    """See the module."""

    counted = False

    @property
    def end_is_known(self) -> bool:
        """See `Planner`: where the user says it."""
        return self._options.steps_per_epoch is not None

    @property
    def ranks_differ(self) -> bool:
        """See `Planner`: each rank has lanes of its own."""
        return self.world_size > 1

    @property
    def lanes(self) -> Lanes:
        """The lanes. Raises ValueError if the ranks cannot share them."""
        options, world = self._options, self.world_size
        shared = options.global_batch_size is not None  # a global batch is the same for any number of ranks
        count = options.num_shards or max(1, options.most_workers) * world
        if count < world or (count % world and (shared or not options.uneven)):
            raise ValueError(f"num_shards={count} must be a multiple of the {world} ranks, which share the lanes")
        window = self.shuffle
        shuffle = (window.run, window.runs) if isinstance(window, Window) else window
        slots = math.gcd(count, self._global_batch) if shared else 0
        return Lanes(count, shuffle, options.drop_last, slots, options.on_error == "skip")

    def plan(self) -> EpochPlan:
        """See `Planner`."""
        raise TypeError(
            f"object of type {type(self._dataset).__name__!r} has no len(): how many batches its rows make is not "
            "known before they are read; say it yourself: DataLoader(..., steps_per_epoch=)"
        )

    def steps(self) -> int:
        """See `Planner`."""
        if self._options.steps_per_epoch is not None:
            return self._options.steps_per_epoch
        if not hasattr(self._dataset, "__len__") or self.world_size > 1:
            self.plan()
        rows = self._batch_size or 1
        return len(self._dataset) // rows if self._options.drop_last else -(-len(self._dataset) // rows)

    def _told(self) -> str:
        lanes = self.lanes
        return f" {lanes.count} lanes in {lanes.slots} slots"

    def lanes_and_ranks(self) -> tuple[int, int]:
        """See `Planner`."""
        return self.lanes.count, self.world_size

    def opened(self, dataset: Any) -> Any:
        """See `Planner`: not what can be read once only, or divides its data among ranks by itself."""
        require_openable(dataset)
        if self.world_size > 1:
            refuse_own_ranks(dataset)
        return dataset

    def begin(self, source: SamplerSource | None) -> Begun:
        """See `Planner`. Ranks that share lanes must know how many steps they have."""
        del source
        steps, world = self._options.steps_per_epoch, self.world_size
        if world > 1 and steps is None and not self._options.uneven:
            raise PipelineError(
                f"the {world} ranks cannot know how many batches the others have: the dataset has no count",
                hint="give steps_per_epoch=, the same on all ranks; or uneven=True, where ranks may end at different "
                "times (with torch's Join, say)",
            )
        if self.bookmark.loaded is not None and self.bookmark.loaded.shards:
            self._known.opened_data()  # else nobody would compare them
        progress, loaded = self.bookmark.begin()
        lanes, begins = self.lanes, self._beginning(self.seed, own=True)
        own, replays = range(self.rank, lanes.count, world), False
        if loaded is not None and loaded.lanes is not None:
            loaded.require_fits(begins)
            replays = bool(loaded.step and loaded.lanes.missing(own))
            if replays:
                self._require_replayable(loaded, lanes)
        begins = msgspec.structs.replace(loaded or begins, epoch=progress.epoch, seed=begins.seed)
        followed = LanePass(lanes, own, begins, self._batch_size, steps, replays=replays)
        self.bookmark.follow(progress, followed)
        return Begun(progress, followed, lanes=followed)

    def _require_replayable(self, loaded: Position, lanes: Lanes) -> None:
        """Warns of a state that does not know all lanes of the rank, whose batches are made again and passed over.

        Raises:
            PositionError: this rank cannot make them.
        """
        slots = loaded.lanes.slots if loaded.lanes is not None else 0
        alike = loaded.global_batch == self._global_batch and slots == lanes.slots
        if not alike or not (slots or loaded.world_size == self.world_size):
            raise PositionError(
                f"the state is that of one of {loaded.world_size} ranks with a global batch of {loaded.global_batch}; "
                f"there are {self.world_size} now, with {self._global_batch}, and it does not know the lanes of this "
                "one",
                hint="load feed.merge_states(the states of all ranks)",
            )
        warnings.warn(
            f"the state is another rank's: this rank makes and passes over {loaded.step} batches again. Save and load "
            "the state of every rank, or feed.merge_states(states), to go on at once",
            stacklevel=4,
        )

    def _beginning(self, seed: int | None, *, own: bool) -> Position:
        del own
        window, lanes = self.shuffle, self.lanes
        return Position(
            0, 0, 0, "lanes", bool(window), self._options.drop_last, 0, seed, self._global_batch, self.world_size,
            self._pipeline, window=(window.run, window.runs) if isinstance(window, Window) else None,
            shards=self._known.data(), num_shards=lanes.count, lanes=LaneState(lanes.count, slots=lanes.slots),
        )  # fmt: skip
