"""What may be combined in a DataLoader's arguments: torch's rules, and headrace's own."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import BaseContext
from typing import Any, Literal

from headrace.errors import PipelineError
from headrace.feed.client.numerics import NumericsPolicy
from headrace.feed.client.policy import Policy
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.lane_datasets import is_uncounted, leaves_of, require_openable
from headrace.feed.pipelines.mixture import Mixture
from headrace.feed.plan.lane_planner import LaneOptions
from headrace.feed.plan.orders.length_buckets import Buckets
from headrace.feed.plan.orders.window import Window
from headrace.feed.plan.rank_share import Shard
from headrace.feed.streams.stream import Stream

MAX_LANES = 65_536
_UNSPECIFIED = "DataLoader with IterableDataset: expected unspecified {0} option, but got {0}={1}"  # torch's words


def check_arguments(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | Window | None,
    sampler: object,
    batch_sampler: object,
    num_workers: int,
    drop_last: bool,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool,
    generator: object,
    seed: int | None,
    context: object,
    *,
    remote: bool,
) -> tuple[int | None, bool]:
    """Checks the arguments, in torch's words where torch checks them. Returns what `batch_size` and `drop_last` mean.

    Raises:
        ValueError: arguments that exclude each other, or out of range.
        TypeError: no dataset.
    """
    indexed = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if not isinstance(dataset, Pipeline) and not indexed and not is_uncounted(dataset):
        raise TypeError(
            "headrace.feed.DataLoader takes datasets with __getitem__ and __len__, and what can be iterated, "
            f"got one of type {type(dataset).__name__}"
        )
    if isinstance(shuffle, str):
        raise TypeError(f"shuffle must be True, False or a feed.Window(run, runs), got {shuffle!r}")
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}; use num_workers=0 to disable "
            "multiprocessing."
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}")
    if num_workers == 0 and not remote:
        if prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing: "
                "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if persistent_workers:
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
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be non-negative and not 0, got {prefetch_factor}")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if generator is not None and seed is not None:
        raise ValueError("seed and generator exclude each other: both decide the order and the random numbers")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
        return None, False
    if batch_size is None:
        if drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
    elif not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    return batch_size, drop_last


def check_lanes(
    dataset: Any,
    shuffle: bool | Window | None,
    sampler: object,
    batch_sampler: object,
    options: LaneOptions,
    even_batches: object,
    on_error: object,
    *,
    remote: bool,
) -> LaneOptions | None:
    """Checks what is different for datasets without a count. Returns its options if this is one, to be read in lanes.

    Raises:
        ValueError: arguments that exclude each other, or out of range.
        PipelineError: a dataset that can be read once only.
    """
    num_shards, workers, steps_per_epoch, uneven, *_ = options
    named = isinstance(dataset, Pipeline)
    lanes = num_shards is not None if named else is_uncounted(dataset)
    for name, value in (("num_shards", num_shards), ("steps_per_epoch", steps_per_epoch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if num_shards is not None and num_shards > MAX_LANES:
        raise ValueError(f"num_shards must be at most {MAX_LANES}, got {num_shards}")
    if not lanes:
        for name, given in (("num_shards", num_shards), ("steps_per_epoch", steps_per_epoch), ("uneven", uneven)):
            if given:
                told = "; a Pipeline needs num_shards= too" if named else ""
                raise ValueError(f"{name}= is for datasets without a count, this one has rows by number{told}")
        return None
    if not named:
        require_openable(dataset)
    if shuffle and not named and not any(isinstance(leaf, Stream) for leaf in leaves_of(dataset)):
        raise ValueError(_UNSPECIFIED.format("shuffle", shuffle))
    for name, other in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if other is not None:
            raise ValueError(_UNSPECIFIED.format(name, other))
    if even_batches:
        raise ValueError("even_batches needs a count; steps_per_epoch= gives all ranks the same number of batches")
    if on_error != "raise" and not named and not any(isinstance(leaf, Stream) for leaf in leaves_of(dataset)):
        raise ValueError(
            'on_error="skip" leaves out rows that .map, .filter or .flat_map raise over; when a dataset of your own '
            "raises, its lane has ended: catch the exception in it, where it goes on"
        )
    if uneven and steps_per_epoch is not None:
        raise ValueError("steps_per_epoch and uneven exclude each other")
    if workers is None and num_shards is None and not remote:
        raise ValueError('num_workers="auto" needs num_shards=: the lanes of a dataset without a count')
    if remote and num_shards is None:
        raise ValueError("num_shards= says in how many lanes workers on other hosts read a dataset without a count")
    return options


def check_buckets(buckets: Buckets | None, batch_size: int | None, *, sampled: bool, lanes: bool) -> None:
    """Checks what buckets go with.

    Raises:
        TypeError: something else than `feed.Buckets`.
        ValueError: arguments that exclude each other.
    """
    if buckets is None:
        return
    if not isinstance(buckets, Buckets):
        raise TypeError(f"buckets must be a feed.Buckets, got {buckets!r}")
    if sampled:
        raise ValueError("buckets decide the order, and so does a sampler: leave one out")
    if batch_size is None:
        raise ValueError("batch_size=None switches batching off and excludes buckets")
    if lanes:
        raise ValueError("buckets need rows by number; data without a count have none")


def orders_itself(
    dataset: Any,
    shuffle: bool | Window | None,
    seed: int | None,
    generator: object,
    buckets: Buckets | None,
    *,
    sharded: bool,
) -> bool:
    """Returns whether the order is headrace's own, if the user gave no sampler.

    Raises:
        ValueError: a torch generator shall decide an order that only a seed can.
    """
    seeded = sharded or isinstance(shuffle, Window) or isinstance(dataset, Mixture) or buckets is not None
    if generator is not None and seeded:
        raise ValueError("generator excludes sharding, a Window, a mixture and buckets: their order is made from seed=")
    return seeded or seed is not None or isinstance(dataset, Pipeline)


def as_context(context: str | BaseContext | None) -> BaseContext | None:
    """Returns the context of a start method, as torch's loader shows it."""
    return multiprocessing.get_context(context) if isinstance(context, str) else context


def check_own(dataset: Any, seed: object, memory: object, stall_timeout: object, *, remote: bool) -> None:
    """Checks more of what is headrace's own.

    Raises:
        TypeError, ValueError: a value of another type, or out of range.
        PipelineError: a pipeline that feed servers cannot import.
    """
    if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
        raise TypeError(f"seed must be an int or None, got {seed!r}")
    if seed is not None and not -(2**63) <= int(seed) < 2**64:
        raise ValueError(f"seed must lie in [-2**63, 2**64), got {seed}")
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise ValueError(f"memory is a number of bytes, at least 1, got {memory!r}")
    if not isinstance(stall_timeout, (int, float)) or stall_timeout <= 0:
        raise ValueError(f"stall_timeout must be more than 0 seconds, got {stall_timeout!r}")
    if remote and not isinstance(dataset, Pipeline):
        raise PipelineError(
            f"the workers are on other hosts and cannot be given a {type(dataset).__name__} object",
            hint="write a function in a module of source_dir that makes the dataset, mark it with "
            "@headrace.feed.pipeline, and pass its call: DataLoader(train_set(), ...); "
            'or keep the workers here with workers="local"',
        )
    if remote and dataset.factory.startswith("__main__:"):
        raise PipelineError(
            f"the pipeline {dataset.factory} is defined in the script itself, which feed servers cannot import",
            hint="move the function and its dataset to a module beside the script, and import it from there",
        )


def make_policy(
    on_error: Literal["raise", "skip"],
    slice_timeout: float,
    numerics: NumericsPolicy,
    verify: float,
    *,
    hedge: bool,
    lanes: bool,
) -> Policy:
    """Checks what is headrace's own. Raises ValueError."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
    if numerics not in ("warn", "refuse"):
        raise ValueError(f'numerics must be "warn" or "refuse", got {numerics!r}')
    if not isinstance(verify, (int, float)) or not 0 <= verify <= 1:
        raise ValueError(f"verify is a share of the slices and must lie in [0, 1], got {verify!r}")
    if not isinstance(slice_timeout, (int, float)) or slice_timeout <= 0:
        raise ValueError(f"slice_timeout must be more than 0 seconds, got {slice_timeout!r}")
    return Policy("raise" if lanes else on_error, slice_timeout, numerics, verify, hedge)


def find_shard(
    batch_size: int | None,
    global_batch_size: int | None,
    rank: int | None,
    world_size: int | None,
    *,
    sampled: bool,
    always: bool = False,
    known: bool = False,
) -> tuple[Shard | None, int | None]:
    """Decides which part of the data this rank takes. Returns (shard or None, rows a rank and step).

    Args:
        batch_size, global_batch_size, rank, world_size: as given to the loader.
        sampled: whether the user gave a sampler.
        always: whether the data is shared although none of them says so.
        known: whether the rank must be known by now.

    Raises:
        ValueError: a sampler together with sharding, or numbers that do not fit.
    """
    if global_batch_size is None and rank is None and world_size is None and not always:
        return None, batch_size
    if sampled:
        raise ValueError("a sampler decides what this rank loads; global_batch_size, rank and world_size exclude it")
    if batch_size is None:
        raise ValueError("batch_size=None cannot be sharded: give batch_size or global_batch_size")
    if known:
        _require_rank(rank, world_size)
    known_rank, known_world = _distributed()
    shard = Shard(known_rank if rank is None else rank, known_world if world_size is None else world_size)
    if not 0 <= shard.rank < shard.world_size:
        raise ValueError(f"rank must lie in [0, {shard.world_size}), got {shard.rank}")
    if global_batch_size is None:
        return shard, batch_size
    if global_batch_size < 1 or global_batch_size % shard.world_size:
        raise ValueError(f"global_batch_size={global_batch_size} must be a multiple of the {shard.world_size} ranks")
    if batch_size not in (1, global_batch_size // shard.world_size):
        raise ValueError(
            f"batch_size={batch_size} is the rows of one rank, and global_batch_size={global_batch_size} those of all "
            f"{shard.world_size} ranks: give one of the two"
        )
    return shard, global_batch_size // shard.world_size


def _distributed() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "RANK" not in os.environ:
        return 0, 1  # not known yet: a launcher that sets WORLD_SIZE alone numbers its ranks later
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))


def _require_rank(rank: int | None, world_size: int | None) -> None:
    """Raises ValueError when there are several ranks, and nothing says which one this is."""
    torch = sys.modules.get("torch")
    known = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
    if not known and rank is None and "RANK" not in os.environ and ranks > 1:
        raise ValueError(
            f"there are {ranks} ranks, and nothing says which one this is: give rank=, set RANK, "
            "or set up torch.distributed before the first pass"
        )
