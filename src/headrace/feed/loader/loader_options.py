"""The options of a DataLoader: what it was given, what may be combined by torch's rules and headrace's own, and what a
user is warned of."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.errors import PipelineError
from headrace.feed.client.policy import NumericsPolicy, Policy
from headrace.feed.identifiers import one_of, positive, ranks_of_torch, real, this_rank, whole
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.lane_datasets import is_uncounted, leaves_of, require_openable
from headrace.feed.pipelines.mixture import Mixture
from headrace.feed.plan.epoch import Shard
from headrace.feed.plan.orders.length_buckets import Buckets
from headrace.feed.plan.orders.order import Window
from headrace.feed.plan.torch_samplers import batched, torch_sampler
from headrace.feed.streams.stream import Stream
from headrace.feed.tuning.executor_rule import Auto, asked_workers
from headrace.feed.wire.endpoints import Endpoints, find
from headrace.feed.wire.remote_errors import warn_user

if TYPE_CHECKING:
    import torch

MAX_LANES = 65_536
Check = Callable[[str, Any], Any]
_UNSPECIFIED = "DataLoader with IterableDataset: expected unspecified {0} option, but got {0}={1}"  # torch's words


def _must_be(what: str, accepts: Callable[[Any], bool]) -> Check:
    """Returns what raises TypeError, which names the option, for a value of another type."""

    def check(name: str, value: Any) -> Any:
        if not accepts(value):
            raise TypeError(f"{name} must be {what}, got {value!r}")
        return value

    return check


def _flag(words: str = "True or False", accepts: Callable[[Any], bool] = lambda _: False) -> Check:
    """Returns what makes a bool of a bool, also NumPy's, 0 and 1, and refuses others than it accepts besides."""
    other = _must_be(words, accepts)

    def check(name: str, value: Any) -> Any:
        return bool(value) if isinstance(value, (int, np.bool_)) and value in (0, 1) else other(name, value)

    return check


def _seconds(name: str, value: Any) -> float:
    number = real(name, value)
    if not number:
        raise ValueError(f"{name} must be more than 0 seconds, got {value!r}")
    return number


def _is_generator(value: Any) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Generator)


_FUNCTION = _must_be("a function", callable)
_ITERABLE = _must_be("an iterable", lambda value: hasattr(value, "__getitem__") or hasattr(value, "__iter__"))
_TEXT = _must_be("a text", lambda value: isinstance(value, str))
_PATH = _must_be("a path", lambda value: isinstance(value, (str, os.PathLike)))

# What one option must be, whatever the others are. What a check returns is the option: a Python number for NumPy's.
_CHECKS: dict[str, Check] = {
    "pin_memory": _flag(),
    "drop_last": _flag(),
    "timeout": partial(real, least=-math.inf),
    "persistent_workers": _flag(),
    "pin_memory_device": _TEXT,
    "in_order": _flag(),
    "even_batches": _flag('True, False or "full"', lambda value: isinstance(value, str) and value == "full"),
    "name": _TEXT,
    "memory": positive,
    "stall_timeout": _seconds,
    "slice_timeout": _seconds,
    "on_error": partial(one_of, choices=("raise", "skip")),
    "verify": partial(real, most=1),
    "numerics": partial(one_of, choices=("warn", "refuse")),
    "hedge": _flag(),
    "uneven": _flag(),
}
_CHECKS_BUT_NONE: dict[str, Check] = {
    "batch_size": positive,
    "shuffle": _flag("True, False or a feed.Window(run, runs)", lambda value: isinstance(value, Window)),
    "sampler": _ITERABLE,
    "batch_sampler": _ITERABLE,
    "collate_fn": _FUNCTION,
    "worker_init_fn": _FUNCTION,
    "generator": _must_be("a torch.Generator", _is_generator),
    "prefetch_factor": whole,
    "seed": whole,
    "global_batch_size": positive,
    "rank": whole,
    "world_size": positive,
    "secret_file": _PATH,
    "tls_ca": _PATH,
    "snapshot_every_n_steps": positive,
    "num_shards": positive,
    "steps_per_epoch": positive,
}


@dataclass(frozen=True, eq=False)
class Options:
    """What a DataLoader was given, checked when it is made; each field is the argument of that name.

    Attributes:
        endpoints: of the feed servers; None for workers of its own.
        auto: what limits the number of local workers, where the loader chooses it.
        most_workers: local workers, or the most that there will be.
        rows: a rank and step, before it is known how many ranks share a global batch; None without batching.
        counted: whether rows have numbers; else the data are read in lanes.
        policy: how failures are dealt with.
    """

    dataset: Any
    batch_size: int | None
    shuffle: bool | Window | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[list[Any]] | None
    num_workers: int | Auto | Literal["auto"]
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: str | BaseContext | None
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None
    global_batch_size: int | None
    rank: int | None
    world_size: int | None
    even_batches: bool | Literal["full"]
    workers: str | None
    secret_file: str | None
    tls_ca: str | None
    name: str
    memory: int
    stall_timeout: float
    slice_timeout: float
    on_error: Literal["raise", "skip"]
    verify: float
    numerics: NumericsPolicy
    hedge: bool
    device: str | torch.device | None
    snapshot_every_n_steps: int | None
    num_shards: int | None
    steps_per_epoch: int | None
    uneven: bool
    buckets: Buckets | None

    def __post_init__(self) -> None:
        for name, check in (_CHECKS | _CHECKS_BUT_NONE).items():
            value = getattr(self, name)
            if value is not None or name in _CHECKS:
                object.__setattr__(self, name, check(name, value))
        _ = self.endpoints
        _check_own(self)
        _ = self.most_workers, self.counted, self.policy
        _check_torch(self)
        _check_buckets(self)

    @cached_property
    def endpoints(self) -> Endpoints | None:
        """See the class."""
        return find(self.workers, self.secret_file, self.tls_ca)

    @property
    def remote(self) -> bool:
        """Whether the workers are on other hosts."""
        return self.endpoints is not None

    @property
    def sampled(self) -> bool:
        """Whether the user's sampler decides the order."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def auto(self) -> Auto | None:
        """See the class."""
        return self._asked[1]

    @property
    def most_workers(self) -> int:
        """See the class."""
        return self._asked[0]

    @cached_property
    def _asked(self) -> tuple[int, Auto | None]:
        return asked_workers(self.num_workers)

    @property
    def rows(self) -> int | None:
        """See the class."""
        return None if self.batch_sampler is not None else self.batch_size

    @cached_property
    def counted(self) -> bool:
        """See the class."""
        return _is_counted(self)

    @cached_property
    def policy(self) -> Policy:
        """See the class."""
        return _policy_of(self)


def _check_own(options: Options) -> None:
    """Checks more of what is headrace's own.

    Raises:
        ValueError: a seed out of range.
        PipelineError: a pipeline that feed servers cannot import.
    """
    if options.seed is not None and not -(2**63) <= options.seed < 2**64:
        raise ValueError(f"seed must lie in [-2**63, 2**64), got {options.seed}")
    if options.remote and not isinstance(options.dataset, Pipeline):
        raise PipelineError(
            f"the workers are on other hosts and cannot be given a {type(options.dataset).__name__} object",
            hint="write a function in a module of source_dir that makes the dataset, mark it with "
            "@headrace.feed.pipeline, and pass its call: DataLoader(train_set(), ...); "
            'or keep the workers here with workers="local"',
        )
    if options.remote and options.dataset.factory.startswith("__main__:"):
        raise PipelineError(
            f"the pipeline {options.dataset.factory} is defined in the script itself, which feed servers cannot import",
            hint="move the function and its dataset to a module beside the script, and import it from there",
        )


def _check_torch(options: Options) -> None:
    """Checks the arguments, in torch's words where torch checks them.

    Raises:
        ValueError: arguments that exclude each other, or out of range.
        TypeError: no dataset.
    """
    workers, context = options.most_workers, options.multiprocessing_context
    indexed = hasattr(options.dataset, "__getitem__") or hasattr(options.dataset, "__getitems__")
    if not isinstance(options.dataset, Pipeline) and not indexed and not is_uncounted(options.dataset):
        raise TypeError(
            "headrace.feed.DataLoader takes datasets with __getitem__ and __len__, and what can be iterated, "
            f"got one of type {type(options.dataset).__name__}"
        )
    if workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {workers}; use num_workers=0 to disable multiprocessing."
        )
    if options.timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {options.timeout}")
    if workers == 0 and not options.remote:
        if options.prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing: "
                "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if options.persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if context is not None:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
                "num_workers=0"
            )
    if isinstance(context, str) and context not in multiprocessing.get_all_start_methods():
        raise ValueError(
            "multiprocessing_context option should specify a valid start method in "
            f"{multiprocessing.get_all_start_methods()!r}, but got multiprocessing_context={context!r}"
        )
    if context is not None and not isinstance(context, (str, BaseContext)):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={context}"
        )
    if options.prefetch_factor is not None and options.prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be non-negative and not 0, got {options.prefetch_factor}")
    if options.sampler is not None and options.shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if options.generator is not None and options.seed is not None:
        raise ValueError("seed and generator exclude each other: both decide the order and the random numbers")
    if options.batch_sampler is not None:
        if options.batch_size != 1 or options.shuffle or options.sampler is not None or options.drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
    elif options.batch_size is None and options.drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")


def _is_counted(options: Options) -> bool:
    """Checks what is different for datasets without a count. Returns whether this one has one.

    Raises:
        ValueError: arguments that exclude each other, or out of range.
        PipelineError: a dataset that can be read once only.
    """
    named = isinstance(options.dataset, Pipeline)
    if options.num_shards is not None and options.num_shards > MAX_LANES:
        raise ValueError(f"num_shards must be at most {MAX_LANES}, got {options.num_shards}")
    if not (options.num_shards is not None if named else is_uncounted(options.dataset)):
        for name in ("num_shards", "steps_per_epoch", "uneven"):
            if getattr(options, name):
                told = "; a Pipeline needs num_shards= too" if named else ""
                raise ValueError(f"{name}= is for datasets without a count, this one has rows by number{told}")
        return True
    if not named:
        require_openable(options.dataset)
    streams = named or any(isinstance(leaf, Stream) for leaf in leaves_of(options.dataset))
    if options.shuffle and not streams:
        raise ValueError(_UNSPECIFIED.format("shuffle", options.shuffle))
    for name, other in (("sampler", options.sampler), ("batch_sampler", options.batch_sampler)):
        if other is not None:
            raise ValueError(_UNSPECIFIED.format(name, other))
    if options.even_batches:
        raise ValueError("even_batches needs a count; steps_per_epoch= gives all ranks the same number of batches")
    if options.on_error != "raise" and not streams:
        raise ValueError(
            'on_error="skip" leaves out rows that .map, .filter or .flat_map raise over; when a dataset of your own '
            "raises, its lane has ended: catch the exception in it, where it goes on"
        )
    if options.uneven and options.steps_per_epoch is not None:
        raise ValueError("steps_per_epoch and uneven exclude each other")
    if options.auto is not None and options.num_shards is None and not options.remote:
        raise ValueError('num_workers="auto" needs num_shards=: the lanes of a dataset without a count')
    if options.remote and options.num_shards is None:
        raise ValueError("num_shards= says in how many lanes workers on other hosts read a dataset without a count")
    return False


def _check_buckets(options: Options) -> None:
    """Checks what buckets go with.

    Raises:
        TypeError: something else than `feed.Buckets`.
        ValueError: arguments that exclude each other.
    """
    if options.buckets is None:
        return
    if not isinstance(options.buckets, Buckets):
        raise TypeError(f"buckets must be a feed.Buckets, got {options.buckets!r}")
    if options.sampled:
        raise ValueError("buckets decide the order, and so does a sampler: leave one out")
    if options.rows is None:
        raise ValueError("batch_size=None switches batching off and excludes buckets")
    if not options.counted:
        raise ValueError("buckets need rows by number; data without a count have none")


def _policy_of(options: Options) -> Policy:
    on_error = options.on_error if options.counted else "raise"
    return Policy(
        on_error, options.slice_timeout, options.numerics, options.verify, options.hedge, options.stall_timeout,
        options.memory,
    )  # fmt: skip


def orders_itself(options: Options, *, sharded: bool) -> bool:
    """Returns whether the order is headrace's own; else it is that of torch's samplers.

    Args:
        options: of the loader.
        sharded: whether this rank takes a part.

    Raises:
        ValueError: a torch generator shall decide an order that only a seed can.
    """
    ordered = isinstance(options.shuffle, Window) or isinstance(options.dataset, Mixture)
    seeded = sharded or ordered or options.buckets is not None
    if options.generator is not None and seeded:
        raise ValueError("generator excludes sharding, a Window, a mixture and buckets: their order is made from seed=")
    if not options.counted:
        return True
    seeded = seeded or options.seed is not None or isinstance(options.dataset, Pipeline)
    return seeded and options.generator is None and not options.sampled


def samplers_of(
    options: Options, sized: Callable[[], Any], rows: int | None
) -> tuple[Iterable[Any] | None, Iterable[list[Any]] | None]:
    """Returns the samplers of keys, and of batches, whose order a loader follows; either may be None.

    Args:
        options: of the loader.
        sized: returns what has the dataset's length, where torch's own samplers need it.
        rows: a rank and step.
    """
    if options.batch_sampler is not None:
        return None, options.batch_sampler
    sampler = options.sampler
    if sampler is None:
        sampler = torch_sampler(sized(), options.generator, shuffle=bool(options.shuffle))
    return batched(sampler, rows, drop_last=options.drop_last)


def find_shard(options: Options, *, always: bool = False, known: bool = False) -> tuple[Shard | None, int | None]:
    """Decides which part of the data this rank takes. Returns (shard or None, rows a rank and step).

    Args:
        options: of the loader.
        always: whether the data is shared although none of them says so.
        known: whether the rank must be known by now.

    Raises:
        ValueError: a sampler together with sharding, or numbers that do not fit.
    """
    rank, world_size, global_batch = options.rank, options.world_size, options.global_batch_size
    if global_batch is None and rank is None and world_size is None and not always:
        return None, options.rows
    if options.sampled:
        raise ValueError("a sampler decides what this rank loads; global_batch_size, rank and world_size exclude it")
    if options.rows is None:
        raise ValueError("batch_size=None cannot be sharded: give batch_size or global_batch_size")
    if known:
        _require_rank(rank, world_size)
    known_rank, known_world = this_rank()
    shard = Shard(known_rank if rank is None else rank, known_world if world_size is None else world_size)
    if not 0 <= shard.rank < shard.world_size:
        raise ValueError(f"rank must lie in [0, {shard.world_size}), got {shard.rank}")
    if global_batch is None:
        return shard, options.rows
    if global_batch < 1 or global_batch % shard.world_size:
        raise ValueError(f"global_batch_size={global_batch} must be a multiple of the {shard.world_size} ranks")
    if options.rows not in (1, global_batch // shard.world_size):
        raise ValueError(
            f"batch_size={options.rows} is the rows of one rank, and global_batch_size={global_batch} those of all "
            f"{shard.world_size} ranks: give one of the two"
        )
    return shard, global_batch // shard.world_size


def _require_rank(rank: int | None, world_size: int | None) -> None:
    """Raises ValueError when there are several ranks, and nothing says which one this is."""
    known = ranks_of_torch() is not None
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
    if not known and rank is None and "RANK" not in os.environ and ranks > 1:
        raise ValueError(
            f"there are {ranks} ranks, and nothing says which one this is: give rank=, set RANK, "
            "or set up torch.distributed before the first pass"
        )


def _warn_of_whole_data(*, counted: bool) -> None:
    """Warns when every rank loads all.

    Data without a count may divide themselves; there it warns under a framework that divides torch's loaders only.
    """
    _, ranks = ranks_of_torch() or (0, 1)
    if ranks == 1:
        return
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    found = [
        name
        for name, live in (
            ("accelerate", state is not None and bool(state._shared_state)),
            ("lightning", "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules),
        )
        if live
    ]
    if found or counted:
        why = "give the samples of all ranks together as global_batch_size="
        if found:
            why = (
                f"{found[0]} divides the data of torch's DataLoader among them, not of this one. "
                f"Use headrace.adapters.{found[0]}.DataLoader, or give global_batch_size="
            )
        said = f"each of the {ranks} ranks loads the whole dataset: {why}; rank=0, world_size=1 says that it is meant"
        warnings.warn(said, stacklevel=4)


def _warn_of_pinning(device: str) -> None:
    """Warns of what `pin_memory=True` cannot do here, in torch's own words."""
    import torch

    if device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            stacklevel=4,
        )
    if not torch.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )


def warn_of_workers(workers: int) -> None:
    """Warns, in torch's words, of more local workers than the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        warn_user(
            f"This DataLoader will create {workers} worker processes in total. Our suggested max number of worker in "
            f"current system is {cores}, which is smaller than what this DataLoader is going to create. Please be "
            "aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker "
            "number to avoid potential slowness/freeze if necessary.",
            UserWarning,
        )


def warn_of_pass(*, divided: bool, counted: bool, pin: bool, device: str) -> None:
    """Warns, when a pass begins, of what it will not do.

    Args:
        divided: whether the ranks share the data, or the user's sampler decides.
        counted: whether the data have a length.
        pin, device: `pin_memory` and `pin_memory_device`.
    """
    if not divided:
        _warn_of_whole_data(counted=counted)
    if pin:
        _warn_of_pinning(device)
