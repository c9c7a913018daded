"""The planner of a loader whose dataset has no count: which lanes are this rank's, and where a pass over them is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.errors import PipelineError, PositionError
from headrace.feed.pipelines.factory import Pipeline, encoded
from headrace.feed.pipelines.lane_datasets import refuse_own_ranks, require_openable
from headrace.feed.plan.bookmark import Bookmark
from headrace.feed.plan.epoch import EpochPlan, Shard, plan_fingerprint
from headrace.feed.plan.lane_draw import Lanes
from headrace.feed.plan.lane_pass import LanePass
from headrace.feed.plan.lane_state import LaneState
from headrace.feed.plan.loader_seeds import LoaderSeeds
from headrace.feed.plan.orders.window import Window
from headrace.feed.plan.pass_progress import Begun
from headrace.feed.plan.planner import KnownFacts
from headrace.feed.plan.state_dict import Position, pipeline_name
from headrace.feed.plan.torch_samplers import SamplerSource


class LaneOptions(NamedTuple):
    """What a user says of lanes.

    Attributes:
        num_shards: lanes over all ranks; None for one a worker.
        workers: of a rank; None where that number may change.
        steps_per_epoch: batches of every rank in an epoch; None for as many as there are.
        uneven: whether ranks may have different numbers of batches.
        global_batch: whether `global_batch_size` says what the ranks share: then a global batch is the same for any
            number of them.
        skip: whether rows that a stream's steps raise over are left out.
    """

    num_shards: int | None
    workers: int | None
    steps_per_epoch: int | None = None
    uneven: bool = False
    global_batch: bool = False
    skip: bool = False


class LanePlanner:
    """See the module. It has the face of `Planner`.

    Args:
        dataset: of the loader.
        shard: which part of the lanes this rank takes; None for all.
        batch_size: outputs a rank and step; None without batching.
        seeds: of the loader.
        known: of the data.
        options: see `LaneOptions`.
        shuffle, drop_last: of the loader.
    """

    def __init__(
        self,
        dataset: Any,
        shard: Shard | None,
        batch_size: int | None,
        seeds: LoaderSeeds,
        known: KnownFacts,
        options: LaneOptions,
        *,
        shuffle: bool | Window,
        drop_last: bool,
    ) -> None:
        self.mixed = None
        self.bookmark = Bookmark()
        self.bookmark.steps = options.steps_per_epoch
        self.shuffle = shuffle
        self.options = options
        self._dataset, self._seeds, self._known = dataset, seeds, known
        self._shard, self._batch_size = shard, batch_size
        self._drop_last = drop_last
        self._pipeline = pipeline_name(dataset)

    @property
    def seed(self) -> int:
        """The seed of random numbers, and of a stream's order."""
        return self._seeds.of_order(sharded=self._shard is not None)

    @property
    def worker_seed(self) -> int:
        """The seed of local workers."""
        return self._seeds.own or 0

    @property
    def world_size(self) -> int:
        """Ranks that share the lanes."""
        return self._shard.world_size if self._shard is not None else 1

    @property
    def lanes(self) -> Lanes:
        """The lanes. Raises ValueError if the ranks cannot share them."""
        world = self.world_size
        count = self.options.num_shards or max(1, self.options.workers or 1) * world
        if count < world or (count % world and (self.options.global_batch or not self.options.uneven)):
            raise ValueError(f"num_shards={count} must be a multiple of the {world} ranks, which share the lanes")
        window = self.shuffle
        shuffle = (window.run, window.runs) if isinstance(window, Window) else window
        slots = math.gcd(count, self._global_batch) if self.options.global_batch else 0
        return Lanes(count, shuffle, self._drop_last, slots, self.options.skip)

    @property
    def _global_batch(self) -> int:
        return (self._batch_size or 1) * self.world_size

    def plan(self) -> EpochPlan:
        """Raises TypeError: nothing is known of what will come."""
        raise TypeError(
            f"object of type {type(self._dataset).__name__!r} has no len(): how many batches its rows make is not "
            "known before they are read; say it yourself: DataLoader(..., steps_per_epoch=)"
        )

    def steps(self) -> int:
        """Returns the batches of an epoch. Raises TypeError if nobody says how many there are."""
        if self.options.steps_per_epoch is not None:
            return self.options.steps_per_epoch
        if not hasattr(self._dataset, "__len__") or self.world_size > 1:
            self.plan()
        rows = self._batch_size or 1
        return len(self._dataset) // rows if self._drop_last else -(-len(self._dataset) // rows)

    def fingerprint(self) -> str:
        """Returns what the ranks' plans over a pipeline must agree in; empty where nothing is shared."""
        if self._shard is None or not isinstance(self._dataset, Pipeline):
            return ""
        loaded, world, lanes = self.bookmark.loaded, self.world_size, self.lanes
        begins = (loaded.epoch, loaded.step) if loaded is not None else (0, 0)
        told = f"{encoded(self._dataset)} {lanes.count} lanes in {lanes.slots} slots"
        return plan_fingerprint(
            told, self._global_batch, world, self.seed, shuffle=self.shuffle, drop_last=self._drop_last, begins=begins
        )

    def settle(self, shard: Shard | None, batch_size: int | None) -> None:
        """Takes the part of this rank, which was not known before."""
        self._shard, self._batch_size = shard, batch_size

    def lanes_and_ranks(self) -> tuple[int, int]:
        """Returns in how many lanes the data are read, over how many ranks."""
        return self.lanes.count, self.world_size

    def require_numbers(self) -> None:
        """Raises PipelineError: lanes have none."""
        raise PipelineError("check() makes samples by number, and lanes have none", "set verify=1 for an epoch")

    def opened(self, dataset: Any) -> Any:
        """Returns the dataset that was made here, as it is read.

        Raises:
            PipelineError: it can be read once only, or divides its data among ranks by itself.
        """
        require_openable(dataset)
        if self.world_size > 1:
            refuse_own_ranks(dataset)
        return dataset

    def begin(self, source: SamplerSource | None = None) -> Begun:
        """A pass begins.

        Raises:
            PositionError: a position that was loaded does not fit.
            PipelineError: ranks share the lanes, and nothing says how many steps they have.
        """
        del source
        if self.world_size > 1 and self.options.steps_per_epoch is None and not self.options.uneven:
            raise PipelineError(
                f"the {self.world_size} ranks cannot know how many batches the others have: the dataset has no count",
                hint="give steps_per_epoch=, the same on all ranks; or uneven=True, where ranks may end at different "
                "times (with torch's Join, say)",
            )
        if self.bookmark.loaded is not None and self.bookmark.loaded.shards:
            self._known.opened_data()  # else nobody would compare them
        progress, loaded = self.bookmark.begin()
        shard, lanes = self._shard or Shard(0, 1), self.lanes
        own = range(shard.rank, lanes.count, shard.world_size)
        start, replay = loaded.lanes if loaded is not None else None, 0
        if loaded is not None and start is not None:
            loaded.require_fits(self._beginning(self.seed))
            if loaded.step and start.missing(own):
                replay, start = self._replay(loaded, lanes), None
        followed = LanePass(
            lanes, self.options.steps_per_epoch, own, progress.epoch, self.seed, self._batch_size or 1, start,
            0 if replay else progress.step, batched=self._batch_size is not None, replay=replay,
            before=loaded if replay else None,
        )  # fmt: skip
        self.bookmark.follow(progress, followed)
        return Begun(progress, followed, lanes=followed)

    def _replay(self, loaded: Position, lanes: Lanes) -> int:
        """Returns how many batches a rank passes over that was given a state which does not know all of its lanes."""
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
        return loaded.step

    def state(self, source: SamplerSource | None, batches: int | None = None) -> dict[str, Any]:
        """Returns where the trainer is, or was after so many batches of the latest pass."""
        del source
        if batches is not None:
            return self.bookmark.position_after(self._beginning(self.seed), batches).to_state()
        return self.bookmark.position(self._beginning(self.seed), None).to_state()

    def load(self, state: Mapping[str, Any], source: SamplerSource | None) -> None:
        """Begins the next pass where a state was taken. Raises PositionError if it does not fit."""
        del source
        self.bookmark.load(state, self._beginning(self._seeds.given))
        if self.bookmark.loaded is not None:
            self._seeds.own = self.bookmark.loaded.seed

    def _beginning(self, seed: int | None) -> Position:
        window, world = self.shuffle, self.world_size
        lanes = self.lanes
        return Position(
            0, 0, 0, "lanes", bool(window), self._drop_last, 0, seed, self._global_batch, world, self._pipeline,
            window=(window.run, window.runs) if isinstance(window, Window) else None,
            shards=self._known.data(), num_shards=lanes.count, lanes=LaneState(lanes.count, slots=lanes.slots),
        )  # fmt: skip
