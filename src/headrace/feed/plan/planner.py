"""A loader's planner: which batches the next pass has, and where the trainer is in the latest.

`Planner` is all that a loader and its adapters ask of one. `CountedPlanner` plans data whose rows have numbers: either
headrace's own plan decides the order, or a torch sampler does. `LanePlanner` plans data without a count: which lanes
are this rank's, and where a pass over them is. The seeds are the user's, or drawn from torch just when its DataLoader
would draw them, so that the trainer's generators stand where torch would leave them.
"""

from __future__ import annotations

import abc
import itertools
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from headrace.errors import PipelineError, PositionError
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.pipelines.factory import Pipeline, encoded
from headrace.feed.pipelines.lane_datasets import is_uncounted, refuse_own_ranks, require_openable
from headrace.feed.plan.bookmark import Bookmark, OwnPass, PlannedPass, Progress, without
from headrace.feed.plan.epoch import EpochPlan, Shard
from headrace.feed.plan.lane_pass import LanePass, Lanes
from headrace.feed.plan.orders.length_buckets import Bucketing
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.plan.orders.order import Order, RowOrder, Window
from headrace.feed.plan.shard_map import in_key_order
from headrace.feed.plan.state_dict import LaneState, Position, pipeline_name
from headrace.feed.plan.torch_samplers import LoaderSeeds, SampledPass, SamplerSource, order_seed, waiting_state
from headrace.feed.wire.messages import Mixing

if TYPE_CHECKING:
    from headrace.feed.loader.loader_options import Options


class DataFacts(NamedTuple):
    """What is known of a dataset so far.

    Attributes:
        length: rows of what a pipeline makes, -1 where it has no `__len__`; None before it was opened.
        digest: of its shards; empty while, or if, it is not known.
        mixing: what it is a mixture of; None for no mixture. It is known when the length is.
    """

    length: int | None = None
    digest: str = ""
    mixing: Mixing | None = None


class Planner(abc.ABC):
    """What a loader asks, whatever its data are.

    Args:
        options: of the loader.
        shard: which part of the data this rank takes; None for everything.
        batch_size: rows a rank and step; None without batching.
        seeds: of the loader.

    Attributes:
        counted: whether the rows have numbers: then the data must be opened before a pass is planned.
        data: what is known of the data; the loader sets it.
        bookmark: where the loader is.
        shuffle: of the loader; an adapter may set it.
        mixed: the order of a mixture of counted sources, once it is known what the dataset is; None without one.
        bucketing: the buckets, if there are; their lengths must be known before a pass is planned.
    """

    counted: ClassVar[bool]
    bucketing: Bucketing | None = None

    def __init__(self, options: Options, shard: Shard | None, batch_size: int | None, seeds: LoaderSeeds) -> None:
        self._options, self._dataset = options, options.dataset
        self._shard, self._batch_size = shard, batch_size
        self._seeds, self.data = seeds, DataFacts()
        self.bookmark = Bookmark()
        self.bookmark.steps = options.steps_per_epoch
        self.shuffle = options.shuffle if isinstance(options.shuffle, Window) else bool(options.shuffle)
        self.mixed: MixedOrder | None = None
        self._pipeline = pipeline_name(options.dataset)

    @property
    def seed(self) -> int:
        """The seed of the own order, and of lanes' random numbers."""
        return self._seeds.of_order(sharded=self._shard is not None)

    @property
    def worker_seed(self) -> int:
        """The seed of local workers, to which each adds its number: that of the epoch in torch's order."""
        drawn = self._seeds.drawn
        return drawn if drawn is not None else self._seeds.own or 0

    @property
    def rank(self) -> int:
        """This rank, of `world_size`."""
        return self._shard.rank if self._shard is not None else 0

    @property
    def world_size(self) -> int:
        """Ranks that share the data."""
        return self._shard.world_size if self._shard is not None else 1

    @property
    def end_is_known(self) -> bool:
        """Whether it is known before the data are read how many steps a pass has."""
        return True

    @property
    def ranks_differ(self) -> bool:
        """Whether the states of the ranks differ, so that one does not do for all."""
        return False

    @property
    def _global_batch(self) -> int:
        return (self._batch_size or 1) * self.world_size

    @abc.abstractmethod
    def plan(self) -> EpochPlan:
        """Returns the own plan of the next epoch. Raises TypeError where nothing is known of what will come."""

    @abc.abstractmethod
    def steps(self) -> int:
        """Returns the steps of the epoch under way, or else of the next. Raises TypeError if nobody knows them."""

    def lanes_and_ranks(self) -> tuple[int, int]:
        """Returns in how many lanes the data are read, over how many ranks: counted data in none."""
        return 0, 1

    def require_numbers(self) -> None:
        """Raises PipelineError where samples have no numbers."""
        if not self.counted:
            raise PipelineError("check() makes samples by number, and lanes have none", "set verify=1 for an epoch")

    @abc.abstractmethod
    def opened(self, dataset: Any) -> Any:
        """Returns the dataset that was made here, as it is read. Raises PipelineError if it cannot be read so."""

    def fingerprint(self) -> str:
        """Returns what the ranks' plans over a pipeline must agree in; empty where nothing is shared."""
        if self._shard is None or not isinstance(self._dataset, Pipeline):
            return ""
        loaded = self.bookmark.loaded
        begins = (loaded.epoch, loaded.samples or loaded.step) if loaded is not None else (0, 0)
        return plan_fingerprint(encoded(self._dataset) + self._told(), self._beginning(self.seed, own=True), begins)

    @abc.abstractmethod
    def _told(self) -> str:
        """Returns more that the ranks must agree in."""

    def settle(self, shard: Shard | None, batch_size: int | None) -> None:
        """Takes the part of this rank, which was not known before."""
        self._shard, self._batch_size = shard, batch_size

    @abc.abstractmethod
    def begin(self, source: SamplerSource | None) -> PlannedPass:
        """A pass begins.

        Args:
            source: the torch sampler that decides the order, if one does.

        Raises:
            PositionError: a position that was loaded does not fit.
            PipelineError: the data cannot be read so.
        """

    def state(self, source: SamplerSource | None, batches: int | None = None) -> dict[str, Any]:
        """Returns where the trainer is, or was after so many batches of the latest pass."""
        beginning = self._beginning(self._seeds.given if source is not None else self.seed, own=source is None)
        if batches is not None:
            place = self.bookmark.position_after(beginning, batches)
        else:
            place = self.bookmark.position(beginning)
        return self._noted(place).to_state()

    def _noted(self, place: Position) -> Position:
        """Returns a position with what else a pass from there needs."""
        return place

    def load(self, state: Mapping[str, Any], *, own: bool) -> None:
        """Begins the next pass where a state was taken, in the own order or a sampler's.

        Raises:
            PositionError: it does not fit.
        """
        self.bookmark.load(state, self._beginning(self._seeds.given, own=own))
        self._seeds.ahead = self._seeds.order_ahead = None
        loaded = self.bookmark.loaded
        if loaded is not None and loaded.order != "torch":
            self._seeds.own = loaded.seed

    @abc.abstractmethod
    def _beginning(self, seed: int | None, *, own: bool) -> Position:
        """Returns the position where epochs begin, in the own order or a sampler's."""


def plan_fingerprint(pipeline: str, loader: Position, begins: tuple[int, int] = (0, 0)) -> str:
    """Returns a hash of all that must be equal on every rank, but for the dataset's length: 32 hex digits.

    Args:
        pipeline: canonical text of the pipeline.
        loader: the beginning of an epoch: global batch, ranks, seed and order count.
        begins: epoch and plan position where a resumed loader begins.
    """
    shared = [pipeline, loader.global_batch, loader.world_size, loader.seed, loader.shuffle, loader.drop_last]
    return digest_of([*shared, *begins, *(loader.window or ())], b"plan", 16)


class CountedPlanner(Planner):
    """See the module."""

    counted = True

    def __init__(self, options: Options, shard: Shard | None, batch_size: int | None, seeds: LoaderSeeds) -> None:
        super().__init__(options, shard, batch_size, seeds)
        self.bucketing = Bucketing(options.buckets) if options.buckets is not None else None

    def plan(self, epoch: int | None = None) -> EpochPlan:
        """Returns the own plan of an epoch, by default the next one."""
        seed, rows, world = self.seed, self._batch_size or 1, self.world_size
        samples = len(self._dataset) if self.data.length is None else self.data.length
        if samples < 0:
            raise TypeError(
                f"what {self._dataset.factory} makes has no len(): add __len__, or give the loader a sampler"
            )
        mixed = self.mixed_order()
        order: Order | None = mixed
        if self.bucketing is not None:
            inner = mixed or RowOrder(samples, seed, self.shuffle)
            order = self.bucketing.order(inner, samples, rows * world, seed, shuffled=bool(self.shuffle))
        if mixed is not None:
            samples = mixed.rows(self.bookmark.epoch if epoch is None else epoch)
        length = samples
        even, drop_last = self._options.even_batches, self._options.drop_last
        if even and not drop_last:
            multiple = world * (rows if even == "full" else 1)
            length = -(-length // multiple) * multiple
        return EpochPlan(
            length, rows, seed, self.shuffle, drop_last, self.rank, world, self._batch_size is not None,
            samples, order=order,
        )  # fmt: skip

    def mixed_order(self) -> MixedOrder | None:
        """Returns the order of a mixture, when it is known what the dataset is; None for no mixture."""
        mixing = self.data.mixing
        if mixing is None:
            return None
        empty = next((name for name, rows in zip(mixing.names, mixing.rows, strict=True) if not rows), "")
        if empty:
            raise PipelineError(f"no host has rows of the source {empty!r}", "look where its data are, or leave it out")
        if self.mixed is None or (self.mixed.mixing, self.mixed.seed) != (mixing, self.seed):
            self.mixed = MixedOrder(mixing, self.seed, self.shuffle)
        return self.mixed

    def steps(self) -> int:
        """See `Planner`: in the own plan."""
        return self.plan(self.bookmark.epoch_under_way).steps

    def opened(self, dataset: Any) -> Any:
        """See `Planner`."""
        if self._pipeline and is_uncounted(dataset):
            raise PipelineError(
                f"{self._dataset.factory} made a {type(dataset).__name__}, which has no count",
                hint="it is read in lanes: give the loader num_shards=",
            )
        return in_key_order(dataset)[0]

    def _told(self) -> str:
        bucketing = self.bucketing
        return f" {bucketing.buckets.name} {bucketing.digest}" if bucketing is not None else ""

    def begin(self, source: SamplerSource | None) -> PlannedPass:
        """See `Planner`."""
        self.bookmark.rank = self.rank
        progress, loaded = self.bookmark.begin()
        if loaded is not None:
            loaded.require_same_cut(self._global_batch, self.world_size, self.rank)
        begun = self._begin_own(progress, loaded) if source is None else self._begin_sampled(source, progress, loaded)
        if progress.ahead:
            begun.plans = without(begun.plans, progress.epoch, progress.ahead)
        self.bookmark.follow(begun)
        return begun

    def _begin_sampled(self, source: SamplerSource, progress: Progress, loaded: Position | None) -> PlannedPass:
        if self.data.mixing is not None:
            raise PipelineError("a mixture decides the order by its weights, and a sampler does", "leave one out")
        if loaded is not None and loaded.shards:
            loaded.require_fits(self._beginning(loaded.seed, own=False))
        every = self._options.snapshot_every_n_steps
        sampled = SampledPass(source, self._seeds, progress, every, loaded, warns=self._options.sampled)
        self._seeds.drawn = sampled.seed
        return sampled

    def _begin_own(self, progress: Progress, loaded: Position | None) -> PlannedPass:
        plan = first = self.plan(progress.epoch)
        if not plan.steps:
            return OwnPass(progress, plan, iter(()))
        if loaded is not None:
            loaded.require_fits(self._beginning(plan.seed, own=True))  # by now the length is known
            if self.bucketing is not None:
                self.bucketing.require_fits(loaded, plan.global_batch)
            if self.mixed is not None:
                self.mixed.require_fits(loaded.weights, loaded.epoch, self._decided(loaded))
            filled = loaded.samples >= (plan.samples or plan.length)  # what is left, if anything, fills the end up
            try:
                first = replace(plan, offset=plan.length if filled else loaded.samples, first_step=loaded.step)
            except ValueError as error:
                hint = "resume on fewer ranks, or leave them out: loader.set_epoch() with the next epoch"
                raise PositionError(str(error), hint) from error
        mixed = plan.order is not None  # then epochs of a mixture may differ in length
        epochs = itertools.count(progress.epoch + 1)
        later = ((self.plan(epoch) if mixed else plan).epoch(epoch) for epoch in epochs)
        plans = itertools.chain(first.epoch(progress.epoch), itertools.chain.from_iterable(later))
        return OwnPass(progress, first, plans)

    def state(self, source: SamplerSource | None, batches: int | None = None) -> dict[str, Any]:
        """See `Planner`."""
        if source is not None and batches is None:
            with self._seeds.unmoved():
                return self._sampled_state(source)
        return super().state(source, batches)

    def _noted(self, place: Position) -> Position:
        if self.mixed is not None and place is not self.bookmark.loaded:
            weights = self.mixed.state(place.epoch, self._decided(place))
            place = msgspec.structs.replace(place, weights=weights)
        if self.bucketing is not None:
            place = msgspec.structs.replace(place, bucket_rows=self._global_batch)
        return place

    def _decided(self, place: Position) -> int:
        """Returns the position before which the weights of a mixture have decided what was given."""
        early = max(place.taken_ahead, default=place.step - 1) + 1 - place.step
        end = place.samples + early * place.global_batch
        return self.bucketing.end_of(end) if self.bucketing is not None else end

    def _sampled_state(self, source: SamplerSource) -> dict[str, Any]:
        """Returns the state in a sampler's order. What torch will draw for the next pass is drawn ahead."""
        if not self.bookmark.waits:
            return self.bookmark.position(self._beginning(self._seeds.given, own=False)).to_state()
        beginning = self._beginning(self._seeds.of_next_epoch(), own=False)
        if self._seeds.order_ahead is None:
            self._seeds.order_ahead = order_seed(source)
        sampler = waiting_state(source, self._seeds.order_ahead)
        return self.bookmark.position(msgspec.structs.replace(beginning, sampler=sampler)).to_state()

    def _beginning(self, seed: int | None, *, own: bool) -> Position:
        shuffle, mixing = self.shuffle, self.data.mixing
        length = len(self._dataset) if hasattr(self._dataset, "__len__") else max(0, self.data.length or 0)
        return Position(
            0, 0, 0, "headrace" if own else "torch", bool(shuffle), self._options.drop_last,
            length, seed, self._global_batch, self.world_size, self._pipeline,
            window=(shuffle.run, shuffle.runs) if isinstance(shuffle, Window) else None,
            shards=self.data.digest, mixture=mixing.name if mixing is not None else "",
            buckets=self.bucketing.buckets.name if self.bucketing is not None else "",
            lengths=self.bucketing.digest if self.bucketing is not None else "",
        )  # fmt: skip


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
        return Lanes(count, shuffle, options.drop_last, slots, options.on_error == "skip", options.steps_per_epoch)

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

    def begin(self, source: SamplerSource | None) -> PlannedPass:
        """See `Planner`. Ranks that share lanes must know how many steps they have."""
        del source
        steps, world = self._options.steps_per_epoch, self.world_size
        if world > 1 and steps is None and not self._options.uneven:
            raise PipelineError(
                f"the {world} ranks cannot know how many batches the others have: the dataset has no count",
                hint="give steps_per_epoch=, the same on all ranks; or uneven=True, where ranks may end at different "
                "times (with torch's Join, say)",
            )
        progress, loaded = self.bookmark.begin()
        lanes, begins = self.lanes, self._beginning(self.seed, own=True)
        own, replays = range(self.rank, lanes.count, world), False
        if loaded is not None and loaded.lanes is not None:
            loaded.require_fits(begins)
            replays = bool(loaded.step and loaded.lanes.missing(own))
            if replays:
                self._require_replayable(loaded, lanes)
        begins = msgspec.structs.replace(loaded or begins, epoch=progress.epoch, seed=begins.seed)
        begun = LanePass(progress, lanes, own, begins, self._batch_size, replays=replays)
        self.bookmark.follow(begun)
        return begun

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
            shards=self.data.digest, num_shards=lanes.count, lanes=LaneState(lanes.count, slots=lanes.slots),
        )  # fmt: skip
