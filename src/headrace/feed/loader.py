"""`DataLoader`: torch's DataLoader, with workers anywhere.

The arguments that torch has mean what they mean there. Beyond them: batches arrive exactly once, in order, bit-
identical, with any number of workers, wherever they are and whatever dies; see the package's docstring for how.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from headrace.errors import PipelineError
from headrace.feed import messages, naming
from headrace.feed.arguments import Shard, check_arguments, find_shard
from headrace.feed.compute import Built, Slice, make_whole
from headrace.feed.executor import standard_collate
from headrace.feed.meter import StepMeter
from headrace.feed.naming import Pipeline
from headrace.feed.places import find
from headrace.feed.plan import BatchPlan, EpochPlan, plan_fingerprint, sampled_epoch
from headrace.feed.seeds import preserved_generators
from headrace.feed.session import Session, SessionStats
from headrace.feed.supply import LocalSupply, RemoteSupply, Supply
from headrace.feed.tree import bytes_of

if TYPE_CHECKING:
    import torch

MEMORY = 512 << 20
STALL_SECONDS = 300.0


class DataLoader:
    """Loads batches of a map-style dataset.

    Args:
        dataset: a map-style dataset, or a `Pipeline` (a call of a function marked with `feed.pipeline`), which
            workers on other hosts need.
        batch_size: rows of a batch, per rank; None for single samples that are not stacked.
        shuffle: whether every epoch has another order.
        sampler, batch_sampler: as in torch; they run in the trainer.
        num_workers: local worker processes when there are no remote workers; 0 loads in this process.
        collate_fn: makes a batch of a list of samples; by default torch's `default_collate`.
        pin_memory: whether batches are copied to page-locked memory (with CUDA).
        drop_last: whether an incomplete last batch is left out.
        timeout: seconds to wait for a batch before RuntimeError; 0 for `stall_timeout`.
        worker_init_fn: called in every worker with its number.
        multiprocessing_context: start method of local workers.
        generator: torch generator for order and seed, as in torch.
        prefetch_factor: batches on their way per worker; None to choose.
        persistent_workers: keep local workers of a dataset object over epochs; those of a `Pipeline` are always kept.
        pin_memory_device: as in torch; deprecated there.
        in_order: batches always come in order.
        seed: seed of order and random numbers. With it, an epoch is a pure function of (seed, epoch).
        global_batch_size: rows of a step over all ranks; this rank gets its part.
        rank, world_size: which part; by default those of torch.distributed, or RANK and WORLD_SIZE.
        workers: ``"local"``, ``"tcp://h1:7070,h2:7070"``, or None for what the job provides (HEADRACE_FEED).
        secret_file: the secret of the feed servers named in `workers`.
        name: name of the loader in metrics and messages.
        memory: limit of the slabs that batches arrive in, bytes.
        stall_timeout: seconds after which a batch that does not come is an error.

    Raises:
        ValueError: arguments that exclude each other, as in torch.
        PipelineError: something that remote workers cannot be given; the hint says how to write it.
        FeedError: HEADRACE_FEED cannot be read.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
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
        workers: str | None = None,
        secret_file: str | None = None,
        name: str = "train",
        memory: int = MEMORY,
        stall_timeout: float = STALL_SECONDS,
    ) -> None:
        self._places = find(workers, secret_file)
        batch_size, drop_last = check_arguments(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, drop_last, timeout,
            prefetch_factor, persistent_workers, generator, seed, remote=self._places is not None,
        )  # fmt: skip
        self._shard, batch_size = find_shard(
            batch_size, global_batch_size, rank, world_size, sampled=sampler is not None or batch_sampler is not None
        )
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.name = name
        self._shuffle = bool(shuffle)
        self._memory = memory
        self._stall_timeout = stall_timeout
        self._seed = seed
        self._epoch = 0
        self._length: int | None = None
        self._built: Built | None = None
        self._session: Session | None = None
        self._expected: tuple[int, int] | None = None  # where an idle session stands in the endless plan
        self._stats = SessionStats()
        self._meter = StepMeter(name)
        if self._places is not None and not isinstance(dataset, Pipeline):
            raise PipelineError(
                f"the workers are on other hosts and cannot be given a {type(dataset).__name__} object",
                hint="write a function in a module of source_dir that makes the dataset, mark it with "
                "@headrace.feed.pipeline, and pass its call: DataLoader(train_set(), ...); "
                'or keep the workers here with workers="local"',
            )
        self._batched = batch_size is not None or batch_sampler is not None
        self._opening = self._make_opening()
        self.sampler, self.batch_sampler = self._torch_samplers(sampler, batch_sampler)

    # What torch's DataLoader has

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        if self.sampler is not None:
            return len(self.sampler)  # type: ignore[arg-type]
        plan = self._plan()
        return plan.steps

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self._places is None and self.num_workers == 0:
            return self._measured(self._inline(epoch), epoch)
        return self._measured(self._served(epoch), epoch)

    # What is headrace's

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; without it epochs count from 0."""
        self._epoch = epoch

    def stats(self) -> dict[str, float]:
        """Returns sums since the loader was made: steps, samples, bytes, seconds, retries, bytes copied."""
        totals, feed = self._meter.totals, self._stats
        return {
            "steps": totals.steps,
            "samples": totals.samples,
            "bytes": totals.bytes,
            "wait_seconds": totals.wait,
            "step_seconds": totals.step,
            "stall_fraction": totals.wait / totals.step if totals.step else 0.0,
            "bytes_copied": feed.bytes_copied,
            "retries": feed.retries,
            "workers_lost": feed.workers_lost,
            "duplicates_dropped": feed.duplicates_dropped,
            "worker_cpu_seconds": feed.worker_cpu_seconds,
        }

    def close(self) -> None:
        """Ends the workers of this loader. It can be used again; a new session is made then."""
        if self._session is not None:
            self._session.close()
            self._finalizer.detach()
            self._session = self._expected = None

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Plans

    def _torch_samplers(
        self, sampler: Iterable[Any] | None, batch_sampler: Iterable[list[Any]] | None
    ) -> tuple[Iterable[Any] | None, Iterable[list[Any]] | None]:
        """Returns the torch samplers that decide the order, or (None, None) when headrace's own plan does."""
        from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

        if batch_sampler is not None:
            return None, batch_sampler
        own = self._seed is not None or self._shard is not None or isinstance(self.dataset, Pipeline)
        if sampler is None:
            if own and self.generator is None and self.batch_size is not None:
                return None, None
            source = range(self._dataset_length()) if isinstance(self.dataset, Pipeline) else self.dataset
            sampler = RandomSampler(source, generator=self.generator) if self._shuffle else SequentialSampler(source)
        if self.batch_size is None:
            return sampler, None
        return sampler, BatchSampler(sampler, self.batch_size, self.drop_last)

    def _dataset_length(self) -> int:
        if self._length is None:
            if not isinstance(self.dataset, Pipeline):
                self._length = len(self.dataset)
            elif self._places is None and self.num_workers == 0:
                self._length = len(self._local().dataset)
            else:
                self._length = self._started().wait_for_length(self.timeout or None)
        return self._length

    def _plan(self) -> EpochPlan:
        assert self.batch_size is not None
        shard = self._shard or Shard(0, 1)
        return EpochPlan(
            self._dataset_length(), self.batch_size, self._base_seed(), self._shuffle, self.drop_last, shard.rank,
            shard.world_size,
        )  # fmt: skip

    def _base_seed(self) -> int:
        """Returns the seed of the own plan: given, or drawn once from torch as its DataLoader does, 0 for a shard."""
        if self._seed is None:
            self._seed = 0 if self._shard is not None else self._draw_seed()
        return self._seed

    def _draw_seed(self) -> int:
        import torch

        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _plans(self, epoch: int) -> tuple[Iterator[BatchPlan], bool]:
        """Returns the batches of an epoch, and whether those of the following epochs are known already."""
        if self.batch_sampler is not None:
            return sampled_epoch(self.batch_sampler, epoch, self._draw_seed(), batched=True), False
        if self.sampler is not None:
            return sampled_epoch(self.sampler, epoch, self._draw_seed(), batched=False), False
        plan = self._plan()
        return itertools.chain.from_iterable(plan.epoch(later) for later in itertools.count(epoch)), True

    # Loading in this process

    def _local(self) -> Built:
        if self._built is None:
            dataset = self.dataset.build() if isinstance(self.dataset, Pipeline) else self.dataset
            collate = self.collate_fn or standard_collate(batched=self._batched)
            self._built = Built(dataset, collate, self.collate_fn is None, self._batched)
        return self._built

    def _inline(self, epoch: int) -> Iterator[tuple[Any, int]]:
        plans, _ = self._plans(epoch)
        for plan in plans:
            if plan.epoch != epoch:
                return
            with preserved_generators():
                part = Slice(plan.epoch, plan.seed, plan.position, plan.rows, 0, plan.keys)
                batch = make_whole(self._local(), part)
            yield batch, plan.rows

    # Loading by workers

    def _make_opening(self) -> messages.Open:
        if self._places is None:
            return messages.Open(1, "", {}, "", "", self._batched, self.name)
        collate = naming.function_name(self.collate_fn, "collate_fn") if self.collate_fn else ""
        init = naming.function_name(self.worker_init_fn, "worker_init_fn") if self.worker_init_fn else ""
        plan = ""
        if self._shard is not None and self.batch_size is not None:
            world = self._shard.world_size
            plan = plan_fingerprint(
                naming.encoded(self.dataset), self.batch_size * world, world, self._base_seed(),
                shuffle=self._shuffle, drop_last=self.drop_last,
            )  # fmt: skip
        named = self.dataset
        return messages.Open(1, named.factory, named.arguments, collate, init, self._batched, self.name, plan)

    def _supply(self) -> Supply:
        if self._places is not None:
            shard = self._shard or Shard(0, 1)
            return RemoteSupply(self._places, f"{self.name} loader of rank {shard.rank}", shard.rank, shard.world_size)
        return LocalSupply(self.num_workers, self.multiprocessing_context, {1: self._local()}, self.worker_init_fn)

    def _started(self) -> Session:
        if self._session is None:
            session = Session(
                self._supply(),
                self._opening,
                memory=self._memory,
                window=self._window(),
                stall_timeout=self._stall_timeout,
                stats=self._stats,
                warn=lambda text: warnings.warn(text, stacklevel=2),
            )
            self._finalizer = weakref.finalize(self, session.close)
            self._session = session
        return self._session

    def _window(self) -> int | None:
        if self.prefetch_factor is None:
            return None
        return max(1, self.prefetch_factor) * max(1, self.num_workers)

    def _served(self, epoch: int) -> Iterator[tuple[Any, int]]:
        plans, endless = self._plans(epoch)
        session = self._started()
        finalizer, expected = self._finalizer, self._expected
        self._expected = self._session = None  # ours while we iterate
        steps = self._plan().steps if endless else -1
        if not endless or expected != (epoch, 0):
            session.begin(plans)
        step = 0
        complete = False
        try:
            while step != steps:
                item = session.next_batch(epoch, step, self.timeout or None)
                if item is None:
                    break
                step += 1
                yield item
            complete = True
        finally:
            self._keep(session, finalizer, (epoch + 1, 0) if complete and endless else None)

    def _keep(
        self, session: Session, finalizer: weakref.finalize[[], DataLoader], expected: tuple[int, int] | None
    ) -> None:
        """Keeps a session for the next epoch, or ends it."""
        keeps = isinstance(self.dataset, Pipeline) or self.persistent_workers
        if keeps and self._session is None and not session.closed:
            self._session, self._finalizer, self._expected = session, finalizer, expected
        else:
            session.close()
            finalizer.detach()

    # Measuring

    def _measured(self, batches: Iterator[tuple[Any, int]], epoch: int) -> Iterator[Any]:
        meter = self._meter
        while True:
            meter.waiting()
            item = next(batches, None)
            if item is None:
                meter.ended()
                return
            batch = self._pinned(item[0]) if self.pin_memory else item[0]
            meter.got(item[1], bytes_of(batch), epoch)
            yield batch

    @staticmethod
    def _pinned(batch: Any) -> Any:
        import torch
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(batch) if torch.cuda.is_available() else batch  # type: ignore[no-untyped-call]
