"""`DataLoader`: torch's DataLoader, with workers anywhere.

The arguments that torch has mean what they mean there. Beyond them: batches arrive exactly once, in order, bit-
identical, with any number of workers, wherever they are and whatever dies; see the package's docstring for how.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from headrace.errors import PipelineError, PositionError
from headrace.feed.batch import pytree
from headrace.feed.client.local_pool import ExecutorInputs, LocalPool
from headrace.feed.client.policy import MEMORY, STALL_SECONDS, NumericsPolicy, SessionStats, Skipped
from headrace.feed.client.remote_pool import RemotePool
from headrace.feed.client.session import Session
from headrace.feed.client.worker_pool import WorkerPool
from headrace.feed.identifiers import require_count, whole
from headrace.feed.loader.device import DeviceBatches, find_device, find_pinning, open_device
from headrace.feed.loader.loader_options import (
    Options,
    find_shard,
    orders_itself,
    samplers_of,
    warn_of_pass,
    warn_of_workers,
)
from headrace.feed.loader.stats import LoaderStats, loader_stats
from headrace.feed.loader.supply import (
    PIPELINE,
    CountedPass,
    Inline,
    Iteration,
    LaneBatches,
    OpenSessions,
    Pass,
    Served,
    Supply,
    job_of,
    opening_by_name,
)
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built, stacks_rows, standard_collate
from headrace.feed.pipelines.purity import PurityReport, check, spread
from headrace.feed.pipelines.seeds import PreservedGenerators
from headrace.feed.plan.bookmark import Place, PlannedPass, Progress
from headrace.feed.plan.epoch import EpochPlan, PlanBatchSampler, PlanSampler, Shard, in_sequence
from headrace.feed.plan.orders.length_buckets import Buckets
from headrace.feed.plan.orders.order import Window
from headrace.feed.plan.planner import CountedPlanner, DataFacts, LanePlanner, Planner
from headrace.feed.plan.shard_map import data_digest
from headrace.feed.plan.torch_samplers import LoaderSeeds, SamplerSource, source_of, torch_sampler
from headrace.feed.tuning.executor_rule import Auto
from headrace.feed.tuning.loader_tuner import LoaderTuner
from headrace.feed.wire import messages
from headrace.feed.wire.messages import Mixing
from headrace.feed.wire.remote_errors import warn_user
from headrace.feed.worker.lane_reader import LaneReaders

if TYPE_CHECKING:
    import torch

H = TypeVar("H", bound="DataLoader")
FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Loads batches of a dataset.

    Args:
        dataset: a map-style dataset; or one without a count: an `IterableDataset`, an iterable, or a function that
            makes one. Or a `Pipeline` (a call of a function marked with `feed.pipeline`), which workers on other hosts
            need.
        batch_size: rows of a batch, per rank; None for single samples that are not stacked.
        shuffle: whether every epoch has another order; a `feed.Window` shuffles by windows, for shards.
        sampler, batch_sampler: as in torch; they run in the trainer.
        num_workers: local worker processes when there are no remote workers; 0 loads in this process. With ``"auto"``,
            or a `feed.Auto`, the loader chooses the number while it runs.
        collate_fn: makes a batch of a list of samples; by default torch's `default_collate`. `feed.stack_arrays` makes
            NumPy arrays, and needs no torch.
        pin_memory: whether batches lie in page-locked memory (with CUDA).
        drop_last: whether an incomplete last batch is left out.
        timeout: seconds to wait for a batch before RuntimeError; 0 for `stall_timeout`.
        worker_init_fn: called in every worker with its number.
        multiprocessing_context: start method of local workers.
        generator: torch generator for order and seed, as in torch.
        prefetch_factor: batches on their way per worker; None to choose.
        persistent_workers: keep local workers of a dataset object over epochs; those of a `Pipeline` are always kept.
        pin_memory_device: as in torch; deprecated there.
        in_order: False takes the first batch that is there, as in torch, so that a slow one holds nothing up: the order
            depends on the workers, each batch still comes once, also after a resume. Lanes keep their order.
        seed: seed of order and random numbers. With it, an epoch is a pure function of (seed, epoch).
        global_batch_size: rows of a step over all ranks; this rank gets its part.
        rank, world_size: which part; by default those of torch.distributed, or RANK and WORLD_SIZE, as they are when
            the first pass begins.
        even_batches: whether every rank gets as many rows in the last step, so that collectives can gather its batches:
            samples of the epoch's beginning fill it up; ``"full"`` up to `batch_size` rows. By default, and with
            `drop_last`, every sample is seen at most once.
        workers: ``"local"``, ``"tcp://h1:7070,h2:7070"``, or None for what the job provides (HEADRACE_FEED).
        secret_file: the secret of the feed servers named in `workers`.
        tls_ca: CA file; with it (or HEADRACE_FEED_TLS_CA) connections to ``tcp://`` servers are TLS.
        name: name of the loader in metrics and messages.
        memory: limit of the slabs that batches arrive in, bytes.
        stall_timeout: seconds after which a batch that does not come is an error.
        slice_timeout: seconds after which an executor that works on one slice is taken for hung: its stack goes to its
            log, it is killed and replaced, and the slice is asked for elsewhere.
        on_error: ``"skip"`` leaves a sample that raises, or over which two workers ended, out of its batch, and lists
            it in `skipped`; ``"raise"`` raises.
        verify: share of the slices after the first 8 that are made twice, on different workers, and compared; 0 for
            none, 1 for all that there is a worker for before the pass ends; of lanes, those that are made again without
            a long replay. A difference gives a `PurityWarning`. Nothing is compared when there is but one worker.
        numerics: what to do about workers with other libraries or instruction sets: ``"warn"``, or ``"refuse"`` them.
        hedge: whether a batch that is late is asked for a second time, of an idle worker.
        device: where batches arrive: their tensors are copied there on a side stream, one batch ahead; None for the
            host.
        snapshot_every_n_steps: as in torchdata's StatefulDataLoader: how often a sampler's own state is noted. The
            position is exact at every step all the same.
        num_shards: lanes that a dataset without a count is read in, over all ranks; by default one a worker, as in
            torch. They decide what the batches hold, the number of workers does not; nor does, with
            `global_batch_size`, the number of ranks.
        steps_per_epoch: batches of every rank in an epoch of such a dataset.
        uneven: whether the ranks may have different numbers of batches of such a dataset.
        buckets: a `feed.Buckets`: batches of rows of similar length.

    Raises:
        TypeError, ValueError: an argument of another type, out of range, or that excludes another, as in torch.
        PipelineError: something that remote workers cannot be given; the hint says how to write it.
        FeedError: HEADRACE_FEED cannot be read, or there is no such device.
    """

    _shards = False  # whether the ranks share the data without being told; a framework's adapter says so

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Window | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int | Auto | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        global_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        even_batches: bool | Literal["full"] = False,
        workers: str | None = None,
        secret_file: str | None = None,
        tls_ca: str | None = None,
        name: str = "train",
        memory: int = MEMORY,
        stall_timeout: float = STALL_SECONDS,
        slice_timeout: float = 120.0,
        on_error: Literal["raise", "skip"] = "raise",
        verify: float = 0.001,
        numerics: NumericsPolicy = "warn",
        hedge: bool = True,
        device: str | torch.device | None = None,
        snapshot_every_n_steps: int | None = 1,
        num_shards: int | None = None,
        steps_per_epoch: int | None = None,
        uneven: bool = False,
        buckets: Buckets | None = None,
    ) -> None:
        options = Options(**{name: value for name, value in locals().items() if name not in ("self", "__class__")})
        self._options, self._endpoints = options, options.endpoints
        always = self._shards and not options.sampled
        self._shard, self.batch_size = find_shard(options, always=always)
        self.dataset, self.num_workers = dataset, options.most_workers
        self._batched = options.rows is not None or batch_sampler is not None
        self.collate_fn = collate_fn or standard_collate(batched=self._batched)
        self.pin_memory, self.pin_memory_device = options.pin_memory, pin_memory_device
        self.device, self.name, self.timeout = find_device(device), name, options.timeout
        self.drop_last, self.in_order = options.drop_last, options.in_order
        self.worker_init_fn, self.generator = worker_init_fn, generator
        context = multiprocessing_context
        self.multiprocessing_context = multiprocessing.get_context(context) if isinstance(context, str) else context
        self.prefetch_factor, self.persistent_workers = options.prefetch_factor, options.persistent_workers
        self.snapshot_every_n_steps = options.snapshot_every_n_steps
        self._length: int | None = None
        self._digest = ""
        self._mixture: Mixing | None = None
        self._built: Built | None = None
        self._sessions = OpenSessions()
        weakref.finalize(self, self._sessions.close)
        self._stats, self._meter = SessionStats(), StepMeter(name)
        self._tuner: LoaderTuner | None = None
        if options.remote or options.auto is not None:
            auto, fixed = None if options.remote else options.auto, prefetch_factor is not None
            self._tuner = LoaderTuner(auto, self._meter, self._stats, options.memory, fixed_ahead=fixed)
        seeds = LoaderSeeds(options.seed, options.generator, once=persistent_workers)
        planner = CountedPlanner if options.counted else LanePlanner
        self._planner: Planner = planner(options, self._shard, self.batch_size, seeds)
        self._opening = self._make_opening()
        self._orders_itself = orders_itself(options, sharded=self._shard is not None)
        if not isinstance(dataset, Pipeline):
            _ = self._samplers  # torch looks at the length here
        self._ready = True
        if not options.remote and options.auto is None:
            warn_of_workers(self.num_workers)

    # What torch's DataLoader has

    def __iter__(self) -> Iterator[Any]:
        warn_of_pass(
            divided=self._shard is not None or self._options.sampled, counted=self._planner.counted,
            pin=self.pin_memory, device=self.pin_memory_device,
        )  # fmt: skip
        prepare = pinned if self.pin_memory and self.device is None else None
        return Iteration(self._begin_pass, self._planner.bookmark, self._meter, prepare, self.__len__)

    @property
    def sampler(self) -> Any:
        """The samples' order: the given sampler, torch's, or a view of headrace's own order for this rank."""
        if not self._orders_itself:
            return self._sequential if self._options.batch_sampler is not None else self._samplers[0]
        kind = PlanSampler if self._planner.shuffle else in_sequence()
        return kind(self._plan, self._next_epoch, self.set_epoch)

    @property
    def batch_sampler(self) -> Any:
        """The batches' order, as `sampler`; None for a loader that does not batch."""
        if self._orders_itself:
            return PlanBatchSampler(self.sampler) if self._batched else None
        return self._samplers[1]

    @cached_property
    def _samplers(self) -> tuple[Iterable[Any] | None, Iterable[list[Any]] | None]:
        """The samplers, and batch samplers, that decide the order; None, as where headrace's own does."""
        if self._orders_itself:
            return None, None
        return samplers_of(self._options, self._sized, self.batch_size)

    @cached_property
    def _sequential(self) -> Iterable[Any]:
        """What torch shows beside a `batch_sampler`."""
        return torch_sampler(self._sized())

    @property
    def _auto_collation(self) -> bool:
        """Whether batches are made; other libraries look it up, and the next."""
        return self._batched

    @property
    def _index_sampler(self) -> Any:
        """What gives the indices: of batches, or of samples."""
        return self.batch_sampler if self._batched else self.sampler

    def _next_epoch(self) -> int:
        return self._planner.bookmark.epoch

    def __len__(self) -> int:
        if self._orders_itself:
            self._settle()
            return self._known_planner(opened=self._planner.counted).steps()
        samplers: Any = self._samplers
        return len(samplers[0] if samplers[1] is None else samplers[1])

    def close(self) -> None:
        """Ends the workers of this loader, and every pass over it. It can be used again: new workers start then."""
        self._mixing()  # what workers have told of it: their sessions end
        self._sessions.close()
        self._meter.close()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def skipped(self) -> list[Skipped]:
        """The samples that were left out under ``on_error="skip"``."""
        return list(self._stats.skipped)

    def __class_getitem__(cls, item: object) -> GenericAlias:
        return GenericAlias(cls, item)  # `DataLoader[Batch]` in annotations

    def __setattr__(self, name: str, value: object) -> None:
        if name in FIXED and "_ready" in vars(self):
            raise ValueError(f"{name} cannot be set after the {type(self).__name__} was made")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_sessions": OpenSessions(), "_built": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        weakref.finalize(self, self._sessions.close)

    # What is headrace's

    def stats(self) -> LoaderStats:
        """Returns sums since the loader was made, and ratios of them: see `LoaderStats`."""
        sessions, mixing = list(self._sessions), self._mixing()
        return loader_stats(self._meter.totals, self._stats, sessions, self._planner, self._tuner, mixing)

    def check(self, samples: int = 32) -> PurityReport:
        """Makes samples twice, here, after different ones, and says what differs and which generator moved.

        Args:
            samples: how many, spread over the dataset.

        Raises:
            PipelineError: the dataset cannot be made here, or a sample cannot travel.
        """
        self._planner.require_numbers()
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        with PreservedGenerators():
            dataset = self._made()
        return check(self._unbuilt(dataset), self._planner.worker_seed, spread(len(dataset), samples))

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; without it epochs count from 0.

        A position that was loaded in that epoch stands; in another epoch it is left, with a warning.

        Raises:
            TypeError, ValueError: not a whole number, negative, or not below 2**63.
        """
        epoch = whole("epoch", epoch)
        require_count("epoch", epoch)
        self._planner.bookmark.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Returns the position in the latest pass, or the beginning of the next: numbers and strings, under 1 KB.

        Batches that `next()` has returned are consumed; those on their way are not. A torch sampler with a state or a
        generator of its own adds that.

        Args:
            batches: how many of the latest pass count as consumed, where something reads ahead of the training; by
                default all that `next()` has returned. With headrace's own order only.

        Raises:
            PositionError: `next()` has not returned as many, or the order is a sampler's.
            TypeError: not a whole number.
        """
        if batches is not None:
            batches = whole("batches", batches)
        return self._known_planner().state(self._source, batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next pass where a state was taken, also with another number of ranks, workers or rows a batch.

        Args:
            state: what `state_dict()` returned; empty for the beginning.

        Raises:
            PositionError: it does not fit this loader; names the field and both values. Or it is None, as a checkpoint
                gives that holds no state: it would begin at the beginning unnoticed. Or Lightning loads it, without the
                adapter, behind an epoch's last step.
        """
        if state is None:
            raise PositionError(
                "load_state_dict was given None",
                hint="the checkpoint holds no state of this loader; to begin at the beginning on purpose, load {}",
            )
        if not self._shards:
            _require_counted()
        self._known_planner().load(state, own=self._orders_itself)
        self._sessions.position_set()
        if not self._sessions:  # else the ranks, which load one after the other, would disagree for a while
            self._opening = self._make_opening()

    # What it knows of its data: with workers elsewhere, they know it

    def _known_planner(self, *, opened: bool = False) -> Planner:
        """Returns the planner, which has been told what is known of the data. Where they must be opened it may wait."""
        bucketing = self._planner.bucketing
        if opened and bucketing is not None and bucketing.buckets.lengths is None:
            bucketing.take(dataclasses.replace(bucketing.buckets, lengths=self._lengths()))
        if opened:
            self._open_data()
        self._planner.data = DataFacts(self._length, self._data_digest(), self._mixing())
        return self._planner

    def _open_data(self) -> None:
        """Has a pipeline opened: here, or by a worker on another host."""
        if self._endpoints is not None:
            if self._length is None or self._planner.bookmark.compares:  # with the data as they are now
                session = self._sessions.waiting(self._make_session)  # that of the next pass
                self._length = session.wait_for_length(self.timeout or None)
                self._digest = session.data
        elif isinstance(self.dataset, Pipeline):
            dataset = self._local().dataset
            self._length = len(dataset) if self._planner.counted and hasattr(dataset, "__len__") else -1

    def _sized(self) -> Any:
        """Returns what has the dataset's length."""
        if not isinstance(self.dataset, Pipeline):
            return self.dataset
        self._open_data()
        assert self._length is not None, "it is open"
        return range(self._length)

    def _mixing(self) -> Mixing | None:
        """Returns what the data are a mixture of; None for no mixture. It is known when the length is."""
        if self._built is not None or not isinstance(self.dataset, Pipeline):
            found: Mixing | None = getattr(self._built.dataset if self._built else self.dataset, "mixing", None)
            return found
        self._mixture = self._mixture or next((each.mixing for each in self._sessions if each.mixing), None)
        return self._mixture

    def _lengths(self) -> Any:
        """Returns the lengths of the rows, from the index. Raises PipelineError if it is not here, or has none."""
        if self._endpoints is not None:
            raise PipelineError(
                "the lengths of the rows are in the index, and that is with the workers on other hosts",
                hint="give them, one integer a row in the order of the data: feed.Buckets(lengths)",
            )
        held = self._local().dataset
        if not hasattr(held, "lengths"):
            raise PipelineError(
                f"the lengths of the rows of a {type(held).__name__} are not known",
                hint="give them, one integer a row: feed.Buckets(lengths)",
            )
        return held.lengths()

    def _data_digest(self) -> str:
        if self._built is None and isinstance(self.dataset, Pipeline):  # the workers know it, if one has opened it
            self._digest = next((each.data for each in self._sessions if each.data), self._digest)
            return self._digest
        held = self._built.dataset if self._built is not None else self.dataset
        return data_digest(getattr(held, "counts", ()), getattr(held, "shard_digests", ()))

    # Loading

    def _begin_pass(self) -> tuple[Supply, Progress]:
        """Plans a pass; workers begin it. Returns where its batches come from, and its progress."""
        self._settle()
        opened = self._planner.counted or self._planner.bookmark.compares
        begun = self._known_planner(opened=opened).begin(self._source)
        progress = begun.progress
        fetched = progress if self.device is None else dataclasses.replace(progress)
        here = self._endpoints is None and self.num_workers == 0
        if here:
            batches: Supply = Inline(self._pass(begun, fetched, self._local()), begun.plans)
        else:
            batches = self._serve(begun, fetched)
        if self.device is not None:
            timed = self.device.type == "cuda" and bool(self._meter.file)
            accelerator = open_device(self.device, timed=timed)
            batches = DeviceBatches(batches, fetched, progress, accelerator, self._meter.copied if timed else None)
        return batches, progress

    def _settle(self) -> None:
        """Looks again which part of the data is ours, where that was left open: it may be known only now."""
        given = self._options.rank, self._options.world_size
        if self._shard is None or None not in given:
            return
        shard, batch_size = find_shard(self._options, always=True, known=True)
        if shard != self._shard:
            self.close()
            self._shard, vars(self)["batch_size"] = shard, batch_size
            self._planner.settle(shard, batch_size)
            plan = self._planner.fingerprint() if self._endpoints is not None else ""
            job = job_of(plan) if self._endpoints is not None else ""
            self._opening = msgspec.structs.replace(self._opening, plan=plan, job=job)

    def _plan(self) -> EpochPlan:
        self._settle()
        return self._known_planner(opened=self._planner.counted).plan()

    @property
    def _source(self) -> SamplerSource | None:
        return source_of(*self._samplers)

    @property
    def _standard(self) -> bool:
        return stacks_rows(self.collate_fn, batched=self._batched)

    def _made(self) -> Any:
        return self.dataset.build() if isinstance(self.dataset, Pipeline) else self.dataset

    def _unbuilt(self, dataset: Any) -> Built:
        return Built(dataset, self.collate_fn, self._standard, self._batched)

    def _local(self) -> Built:
        if self._built is None:
            self._built = self._unbuilt(self._planner.opened(self._made()))
        elif self._built.collate is not self.collate_fn:  # the user has set another one
            self._built = dataclasses.replace(self._built, collate=self.collate_fn, default_collate=self._standard)
        return self._built

    def _make_opening(self) -> messages.Open:
        lanes, ranks = self._planner.lanes_and_ranks()
        if self._endpoints is None:
            return messages.Open(PIPELINE, "", {}, "", "", self._batched, self.name, lanes=lanes, ranks=ranks)
        return opening_by_name(
            self._unbuilt(self.dataset), self.worker_init_fn, self.name, self._planner.fingerprint(), lanes, ranks
        )

    def _worker_pool(self) -> WorkerPool:
        if self._endpoints is not None:
            rank, world = self._shard or Shard(0, 1)
            job = self._opening.job
            if self._shard is None:  # each rank is rank 0 of a world of its own
                job += f" {os.environ.get('RANK', '')}"
            return RemotePool(self._endpoints, f"{self.name} loader of rank {rank}", rank, world, job)
        built = dataclasses.replace(self._local(), seed=self._planner.worker_seed)
        choice = self._tuner.choice if self._tuner is not None else None
        now = choice.executors if choice is not None else self.num_workers  # and `num_workers` at most
        inputs = ExecutorInputs({PIPELINE: built}, self.worker_init_fn, self.num_workers)
        return LocalPool(now, self.multiprocessing_context, inputs, self._meter.file, self.name)

    def _make_session(self) -> Session:
        if self._tuner is not None and self._shard is not None:
            self._tuner.ranks = self._shard.world_size
        pinning = find_pinning(self.device, pin=self.pin_memory)
        policy = dataclasses.replace(self._options.policy, prefetch=self.prefetch_factor, pinning=pinning)
        tune = self._tuner.look if self._tuner is not None else None
        return Session(self._worker_pool(), self._opening, policy, self._stats, warn_user, tune)

    def _pass(self, begun: PlannedPass, progress: Progress, built: Built) -> Pass:
        if begun.lanes is None:
            skipped = self._stats.skipped if self._options.policy.on_error == "skip" else None
            return CountedPass(built, progress, begun.end_step, skipped)
        readers = LaneReaders(built.dataset, self.worker_init_fn, shown=self._options.num_shards is not None)
        shared = self._planner.world_size > 1
        return LaneBatches(built, begun.lanes, progress, self._stats, readers, shared=shared)

    def _serve(self, begun: PlannedPass, progress: Progress) -> Supply:
        endless, begins = begun.end_step is not None, progress.place != Place(0)
        session, epoch = self._sessions.take(self._make_session)
        batches = self._pass(begun, progress, self._unbuilt(None))
        if not endless or epoch != progress.epoch or begins:
            session.begin(begun.plans, batches.plans_for)
        follows, loads = progress.epoch + 1 if endless else None, self._planner.bookmark.loads
        keep = isinstance(self.dataset, Pipeline) or self.persistent_workers

        def give_back(session: Session, complete: bool) -> None:
            goes_on = complete and loads == self._planner.bookmark.loads
            self._sessions.give_back(session, follows if goes_on else None, keep=keep)

        window = 1 if self._options.in_order else begun.window
        return Served(batches, session, window, self.timeout or None, give_back)


def _require_counted() -> None:
    """Raises PositionError where Lightning goes on behind an epoch's last batch and does not count that epoch.

    Lightning tells a loader nothing, so its loop is looked up above. Behind the validation at an epoch's end, or at the
    end of an epoch without `max_steps`, it counts.
    """
    frame = sys._getframe(2)
    while frame.f_code.co_name != "_load_combined_loader_states":
        if frame.f_back is None:
            return
        frame = frame.f_back
    loop = frame.f_locals["self"]
    batches, epochs = loop.epoch_loop.batch_progress, loop.epoch_progress.total
    behind = batches.is_last_batch and batches.total.completed < batches.total.processed
    if behind or (loop.max_steps != -1 and epochs.completed < epochs.processed):
        raise PositionError(
            f"Lightning's checkpoint stands behind the last batch of epoch {epochs.ready - 1}, and Lightning does not "
            "count that epoch: a plain DataLoader would train on nothing, or on rows twice",
            hint="use headrace.adapters.lightning.DataLoader, which counts it: with this loader's seed= it goes on "
            "from this checkpoint. Without a seed, go on from one of another step",
        )


def pinned(batch: Any) -> Any:
    """Returns a batch in page-locked memory, with torch's means, also inside dataclasses; without CUDA, as it is."""
    import torch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pytree.mapped(batch, pin_memory) if torch.cuda.is_available() else batch
