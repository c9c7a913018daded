"""Which planner and which of torch's samplers a loader has, and the dataset as this process builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import PipelineError
from headrace.feed.pipelines.factory import Pipeline
from headrace.feed.pipelines.fetch import Built
from headrace.feed.pipelines.lane_datasets import is_uncounted, refuse_own_ranks, require_openable
from headrace.feed.pipelines.purity import PurityReport, check, spread
from headrace.feed.pipelines.seeds import preserved_generators
from headrace.feed.plan.lane_planner import LaneOptions, LanePlanner
from headrace.feed.plan.loader_seeds import LoaderSeeds
from headrace.feed.plan.orders.length_buckets import Buckets
from headrace.feed.plan.orders.window import Window
from headrace.feed.plan.planner import KnownFacts, Planner
from headrace.feed.plan.rank_share import Shard
from headrace.feed.plan.shard_map import in_key_order
from headrace.feed.plan.torch_samplers import batched, torch_samplers

if TYPE_CHECKING:
    import torch


def make_planner(
    dataset: Any,
    shard: Shard | None,
    batch_size: int | None,
    seeds: LoaderSeeds,
    known: KnownFacts,
    lanes: LaneOptions | None,
    *,
    shuffle: bool | Window,
    drop_last: bool,
    every: int | None,
    own_sampler: bool,
    even: bool | Literal["full"],
    buckets: Buckets | None,
) -> Planner | LanePlanner:
    """Returns the planner of a loader: see `Planner` and, for a dataset without a count (`lanes`), `LanePlanner`."""
    if lanes is not None:
        return LanePlanner(dataset, shard, batch_size, seeds, known, lanes, shuffle=shuffle, drop_last=drop_last)
    return Planner(
        dataset, shard, batch_size, seeds, known, shuffle=shuffle, drop_last=drop_last, every=every,
        own_sampler=own_sampler, even=even, buckets=buckets,
    )  # fmt: skip


def make_samplers(
    sized: Callable[[], Any],
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[list[Any]] | None,
    batch_size: int | None,
    generator: torch.Generator | None,
    *,
    shuffle: bool,
    drop_last: bool,
    own: bool,
) -> tuple[Iterable[Any] | None, Iterable[list[Any]] | None]:
    """Returns the samplers, and batch samplers, whose order a loader follows; None where headrace's own decides.

    Args:
        sized: returns what has the dataset's length.
        sampler, batch_sampler, batch_size, generator, shuffle, drop_last: of the loader.
        own: whether the order is headrace's own, if the user gave no sampler.
    """
    if sampler is not None:
        return batched(sampler, batch_size, drop_last=drop_last)
    if batch_sampler is not None:
        return torch_samplers(sized, None, None, shuffle=False, drop_last=False)[0], batch_sampler
    if own:
        return None, None
    return torch_samplers(sized, batch_size, generator, shuffle=shuffle, drop_last=drop_last)


def check_here(
    dataset: Any, planner: Planner | LanePlanner, build: Callable[[Any], Built], samples: int
) -> PurityReport:
    """Makes samples of a dataset twice, in this process: see `DataLoader.check`. Raises PipelineError."""
    if isinstance(planner, LanePlanner):
        raise PipelineError("check() makes samples by number, and lanes have none", "set verify=1 for an epoch")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    with preserved_generators():
        made = dataset.build() if isinstance(dataset, Pipeline) else dataset
    return check(build(made), planner.worker_seed, spread(len(made), samples))


def built_here(dataset: Any, planner: Planner | LanePlanner) -> Any:
    """Returns the dataset as this process loads it.

    Raises:
        PipelineError: it cannot be read as the loader was told to, or divides its data among ranks by itself.
    """
    made = dataset.build() if isinstance(dataset, Pipeline) else dataset
    if isinstance(planner, LanePlanner):
        require_openable(made)
        if planner.world_size > 1:
            refuse_own_ranks(made)
        return made
    if isinstance(dataset, Pipeline) and is_uncounted(made):
        raise PipelineError(
            f"{dataset.factory} made a {type(made).__name__}, which has no count",
            hint="it is read in lanes: give the loader num_shards=",
        )
    return in_key_order(made)[0]
