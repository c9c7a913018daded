"""A loader's planner: which batches the next pass has, and where the trainer is in the latest.

Either headrace's own plan decides the order, or a torch sampler does. The seeds are the user's, or drawn from torch
just when its DataLoader would draw them, so that the trainer's generators stand where torch would leave them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from numpy.typing import NDArray

from headrace.errors import PipelineError, PositionError
from headrace.feed.pipelines.factory import encoded
from headrace.feed.pipelines.lane_datasets import is_uncounted
from headrace.feed.plan.bookmark import Bookmark
from headrace.feed.plan.epoch import BatchPlan, EpochPlan, Shard, plan_fingerprint
from headrace.feed.plan.loader_seeds import LoaderSeeds
from headrace.feed.plan.orders.length_buckets import Bucketing, Buckets
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.plan.orders.order import Order, RowOrder
from headrace.feed.plan.orders.window import Window
from headrace.feed.plan.pass_progress import Begun, CountedEpoch, without
from headrace.feed.plan.shard_map import in_key_order
from headrace.feed.plan.state_dict import Position, SamplerState, pipeline_name
from headrace.feed.plan.torch_samplers import BOTH, SampledPass, SamplerSource, order_seed
from headrace.feed.wire.messages import Mixing

if TYPE_CHECKING:
    pass


class KnownFacts(NamedTuple):
    """What is known of a dataset.

    Attributes:
        length: returns the dataset's length; may wait for a worker to open the pipeline.
        data: returns the digest of its shards, empty while, or if, it is not known; never waits.
        opened_data: the same; waits for a worker to open the pipeline where only workers know it.
        mixing: returns what it is a mixture of, None for no mixture; it is known when the length is.
        lengths: returns those of the rows, from the index.
    """

    length: Callable[[], int]
    data: Callable[[], str]
    opened_data: Callable[[], str]
    mixing: Callable[[], Mixing | None]
    lengths: Callable[[], NDArray[Any]]


class Planner:
    """See the module.

    Args:
        dataset: of the loader.
        shard: which part of every global batch this rank takes; None for everything.
        batch_size: rows a rank and step; None without batching.
        shuffle, drop_last: of the loader.
        seeds: of the loader.
        known: of the dataset.
        own_sampler: whether the order is torch's own at most, and no sampler of the user's.
        every: batches between two notes of a sampler's own state.
        even: whether the last step is filled up, so that all ranks have as many rows; ``"full"``: up to `batch_size`.
        buckets: of rows of similar length; None for none.

    Attributes:
        bookmark: where the loader is.
        shuffle: as given.
        mixed: the order of a mixture, once it is known what the dataset is; None without one.
    """

    def __init__(
        self,
        dataset: Any,
        shard: Shard | None,
        batch_size: int | None,
        seeds: LoaderSeeds,
        known: KnownFacts,
        *,
        shuffle: bool | Window,
        drop_last: bool,
        own_sampler: bool,
        every: int | None,
        even: bool | Literal["full"] = False,
        buckets: Buckets | None = None,
    ) -> None:
        self.bookmark = Bookmark()
        self._every, self._even = every, even
        self._sharded = shard is not None
        self._shard = shard or Shard(0, 1)
        self._batch_size = batch_size
        self._seeds = seeds
        self._known = known
        self.shuffle = shuffle if isinstance(shuffle, Window) else bool(shuffle)
        self._drop_last = drop_last
        self._own_sampler = own_sampler
        self._dataset = dataset
        self._drawn_ahead: int | None = None  # seed of a RandomSampler's next order, if a state holds it already
        self._told: int | None = None  # length of a pipeline's dataset
        self.mixed: MixedOrder | None = None
        self.bucketing = Bucketing(buckets, known.lengths) if buckets is not None else None
        self._pipeline = pipeline_name(dataset)

    @property
    def seed(self) -> int:
        """The seed of the own order."""
        return self._seeds.of_order(sharded=self._sharded)

    @property
    def worker_seed(self) -> int:
        """The seed of local workers, to which each adds its number: that of the epoch in torch's order."""
        drawn = self._seeds.drawn
        return drawn if drawn is not None else self._seeds.own or 0

    @property
    def begins(self) -> tuple[int, int]:
        """Epoch and plan position of a position that was loaded and not yet taken up; zeros without."""
        loaded = self.bookmark.loaded
        return (loaded.epoch, loaded.samples) if loaded is not None else (0, 0)

    def plan(self, epoch: int | None = None) -> EpochPlan:
        """Returns the own plan of an epoch, by default the next one."""
        seed, rows, world = self.seed, self._batch_size or 1, self._shard.world_size
        self._told = samples = self._known.length()
        mixed = self.mixed_order()
        order: Order | None = mixed
        if self.bucketing is not None:
            inner = mixed or RowOrder(samples, seed, self.shuffle)
            order = self.bucketing.order(inner, samples, rows * world, seed, shuffled=bool(self.shuffle))
        if mixed is not None:
            samples = mixed.rows(self.bookmark.epoch if epoch is None else epoch)
        length = samples
        if self._even and not self._drop_last:
            multiple = world * (rows if self._even == "full" else 1)
            length = -(-length // multiple) * multiple
        return EpochPlan(
            length, rows, seed, self.shuffle, self._drop_last, self._shard.rank, world, self._batch_size is not None,
            samples, order=order,
        )  # fmt: skip

    def mixed_order(self) -> MixedOrder | None:
        """Returns the order of a mixture, when it is known what the dataset is; None for no mixture."""
        mixing = self._known.mixing()
        if mixing is None:
            return None
        empty = next((name for name, rows in zip(mixing.names, mixing.rows, strict=True) if not rows), "")
        if empty:
            raise PipelineError(f"no host has rows of the source {empty!r}", "look where its data are, or leave it out")
        if self.mixed is None or (self.mixed.mixing, self.mixed.seed) != (mixing, self.seed):
            self.mixed = MixedOrder(mixing, self.seed, self.shuffle)
        return self.mixed

    def steps(self) -> int:
        """Returns the steps of the epoch under way, or else of the next, in the own plan."""
        return self.plan(self.bookmark.epoch_under_way).steps

    def lanes_and_ranks(self) -> tuple[int, int]:
        """Returns in how many lanes the data are read, over how many ranks: in none."""
        return 0, 1

    def require_numbers(self) -> None:
        """Raises PipelineError where samples have no numbers."""

    def opened(self, dataset: Any) -> Any:
        """Returns the dataset that was made here, as it is read. Raises PipelineError if it cannot be read so."""
        if self._pipeline and is_uncounted(dataset):
            raise PipelineError(
                f"{self._dataset.factory} made a {type(dataset).__name__}, which has no count",
                hint="it is read in lanes: give the loader num_shards=",
            )
        return in_key_order(dataset)[0]

    def fingerprint(self) -> str:
        """Returns what the ranks' plans over a pipeline must agree in; empty where nothing is sharded."""
        if not self._sharded or self._batch_size is None:
            return ""
        world = self._shard.world_size
        bucketing = self.bucketing
        buckets = f" {bucketing.buckets.name} {bucketing.digest}" if bucketing is not None else ""
        return plan_fingerprint(
            encoded(self._dataset) + buckets, self._batch_size * world, world, self.seed,
            shuffle=self.shuffle, drop_last=self._drop_last, begins=self.begins,
        )  # fmt: skip

    def settle(self, shard: Shard | None, batch_size: int | None) -> None:
        """Takes the part of this rank, which was not known before."""
        self._shard, self._batch_size = shard or Shard(0, 1), batch_size

    def begin(self, source: SamplerSource | None) -> Begun:
        """A pass begins.

        Args:
            source: the torch sampler that decides the order, if one does.

        Raises:
            PositionError: a position that was loaded does not fit.
        """
        self.bookmark.rank, world = self._shard.rank, self._shard.world_size
        progress, loaded = self.bookmark.begin()
        if loaded is not None:
            loaded.require_same_cut((self._batch_size or 1) * world, world, self._shard.rank)
        ahead = progress.ahead
        if source is not None:
            if self._known.mixing() is not None:
                raise PipelineError("a mixture decides the order by its weights, and a sampler does", "leave one out")
            if loaded is not None and loaded.shards:
                if self._pipeline:  # another dataset has its length, or none: its sampler knows the keys
                    self._told = self._known.length()  # by now the shards are known too
                loaded.require_fits(self._beginning(loaded.seed, own=False))
            told = None if self._own_sampler else _warn
            ahead_drawn, self._drawn_ahead = self._drawn_ahead, None
            sampled = SampledPass(source, self._seeds.of_epoch, progress, self._every, loaded, told, ahead_drawn)
            self._seeds.drawn = sampled.seed
            self.bookmark.follow(progress, sampled)
            sampled_plans = sampled.plans()
            return Begun(progress, without(sampled_plans, progress.epoch, ahead) if ahead else sampled_plans)
        plan = first = self.plan(progress.epoch)
        if not plan.steps:
            self.bookmark.follow(progress, CountedEpoch(plan))
            return Begun(progress, iter(()))
        if loaded is not None:
            loaded.require_fits(self._beginning(plan.seed, own=True))  # by now the length is known
            if self.bucketing is not None:
                self.bucketing.require_fits(loaded, plan.global_batch)
            if self.mixed is not None:
                self.mixed.schedule.require_fits(loaded.weights, loaded.epoch, self._decided(loaded))
            filled = loaded.samples >= (plan.samples or plan.length)  # what is left, if anything, fills the end up
            try:
                first = replace(plan, offset=plan.length if filled else loaded.samples, first_step=loaded.step)
            except ValueError as error:
                hint = "resume on fewer ranks, or leave them out: loader.set_epoch() with the next epoch"
                raise PositionError(str(error), hint) from error
        self.bookmark.follow(progress, CountedEpoch(first))
        mixed = plan.order is not None  # then epochs of a mixture may differ in length
        epochs = itertools.count(progress.epoch + 1)
        later = ((self.plan(epoch) if mixed else plan).epoch(epoch) for epoch in epochs)
        plans: Iterator[BatchPlan] = itertools.chain(first.epoch(progress.epoch), itertools.chain.from_iterable(later))
        return Begun(progress, without(plans, progress.epoch, ahead) if ahead else plans, first.end_step)

    def state(self, source: SamplerSource | None, batches: int | None = None) -> dict[str, Any]:
        """Returns where the trainer is, or was after so many batches of the latest pass."""
        if source is not None and batches is None:
            with self._seeds.unmoved():
                return self._sampled_state(source)
        beginning = self._beginning(self._seeds.given if source is not None else self.seed, own=source is None)
        if batches is not None:
            found = self.bookmark.position_after(beginning, batches)
        else:
            found = self.bookmark.position(beginning, source)
        if self.bucketing is not None:
            found = msgspec.structs.replace(found, bucket_rows=beginning.global_batch)
        if self.mixed is not None and found is not self.bookmark.loaded:
            weights = self.mixed.schedule.state(found.epoch, self._decided(found))
            found = msgspec.structs.replace(found, weights=weights)
        return found.to_state()

    def _decided(self, place: Position) -> int:
        """Returns the position before which the weights of a mixture have decided what was given."""
        early = max(place.taken_ahead, default=place.step - 1) + 1 - place.step
        end = place.samples + early * place.global_batch
        return self.bucketing.end_of(end) if self.bucketing is not None else end

    def _sampled_state(self, source: SamplerSource) -> dict[str, Any]:
        """Returns the state in a sampler's order. What torch will draw for the next pass is drawn ahead."""
        waits = self.bookmark.waits
        beginning = self._beginning(self._seeds.of_next_epoch() if waits else self._seeds.given, own=False)
        drawn = order_seed(source) if waits else None
        found = self.bookmark.position(beginning, source)
        if drawn is not None:
            self._drawn_ahead = drawn if self._drawn_ahead is None else self._drawn_ahead
        if waits:
            held = found.sampler or SamplerState()
            ahead = self._drawn_ahead if held.drawn is None else held.drawn
            found = msgspec.structs.replace(found, sampler=msgspec.structs.replace(held, drawn=ahead, undrawn=BOTH))
        return found.to_state()

    def _mixture_name(self) -> str:
        mixing = self._known.mixing()
        return mixing.name if mixing is not None else ""

    def load(self, state: Mapping[str, Any], source: SamplerSource | None) -> None:
        """Begins the next pass where a state was taken. Raises PositionError if it does not fit."""
        self.bookmark.load(state, self._beginning(self._seeds.given, own=source is None))
        self._seeds.ahead = self._drawn_ahead = None
        loaded = self.bookmark.loaded
        if loaded is not None and loaded.order == "headrace":
            self._seeds.own = loaded.seed

    def _beginning(self, seed: int | None, *, own: bool) -> Position:
        """Returns the position where epochs begin."""
        world, shuffle = self._shard.world_size, self.shuffle
        length = len(self._dataset) if hasattr(self._dataset, "__len__") else self._told or 0
        return Position(
            0, 0, 0, "headrace" if own else "torch", bool(shuffle), self._drop_last, length, seed,
            (self._batch_size or 1) * world, world, self._pipeline,
            window=(shuffle.run, shuffle.runs) if isinstance(shuffle, Window) else None,
            shards=self._known.data(), mixture=self._mixture_name(),
            buckets=self.bucketing.buckets.name if self.bucketing is not None else "",
            lengths=self.bucketing.digest if self.bucketing is not None else "",
        )  # fmt: skip


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
