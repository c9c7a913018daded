"""The feed: a data loader for PyTorch whose workers may be anywhere.

    from headrace import feed

    loader = feed.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)

There is no dispatcher. The trainer knows what was consumed, so the trainer asks. The content of a slice is a pure
function of (pipeline, seed, epoch, plan positions), and any worker can make any slice, also a second time. So every
sample of an epoch arrives exactly once, in plan order, bit-identical, with any number of workers, whichever of them are
killed.

The sub-packages, in the order in which they import each other:

    identifiers    the kinds of numbers: of workers, requests, slabs, pipelines, routes
    batch          a batch in memory: its structure (pytree), its rows (row_layout), the slabs that it lies in
    sources        shards with an index: tar, JSON lines, Parquet, Arrow, datasets; rows by number
    wire           messages, the handshake with the secret, TLS, and the channel that carries frames; endpoints
    pipelines      a pipeline by name (factory), its random numbers (seeds), samples made into batches (fetch, collate)
    plan           which samples in which order (planner, epoch, samplers, shard_map), and where the trainer is in it
    metrics        what the time of a training loop and of its workers goes to
    worker         who makes slices: feed_server -> work_queue -> executor_pool -> forkserver -> executor -> slices
    client         who asks for them: session, and below it
                     scheduler       which slice is requested next, and from which worker: no I/O
                     work_units      what is under way, and what follows from the end of a request: no I/O
                     exchange        sends what the scheduler chooses, does what follows from an answer
                     assembly        the slabs of the batches on their way
                     verifier, numerics, shard_placement    what else decides who is asked for what
                     worker_pool     the workers: local_pool (child processes), remote_pool (feed servers)
                     receiver        the process that takes batches of other hosts into slabs
    tuning         executors, and batches ahead, chosen while the loader runs (executor_rule: no I/O)
    loader         the `DataLoader`, and one pass over it
    serve          the program that a data worker's host runs
    prometheus                       metrics of servers and loaders

The way of a batch: loader -> plan -> client.session -> scheduler -> exchange -> a worker's slices -> exchange ->
assembly -> loader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_EXPORTS = {
    "Auto": "headrace.feed.tuning.executor_rule",
    "Buckets": "headrace.feed.plan.orders.length_buckets",
    "DataLoader": "headrace.feed.loader.data_loader",
    "Packed": "headrace.feed.streams.packing",
    "Pipeline": "headrace.feed.pipelines.factory",
    "PipelineError": "headrace.errors",
    "PositionError": "headrace.errors",
    "PurityReport": "headrace.feed.pipelines.purity",
    "PurityWarning": "headrace.feed.client.policy",
    "ShardError": "headrace.errors",
    "Skipped": "headrace.feed.client.policy",
    "Source": "headrace.feed.sources.source",
    "Window": "headrace.feed.plan.orders.order",
    "WorkerError": "headrace.errors",
    "WorkersLost": "headrace.errors",
    "arrow": "headrace.feed.sources.open_source",
    "channel": "headrace.feed.pipelines.factory",
    "lane": "headrace.feed.pipelines.lane_datasets",
    "merge_states": "headrace.feed.plan.state_dict",
    "hf": "headrace.feed.sources.open_source",
    "mix": "headrace.feed.pipelines.mixture",
    "jsonl": "headrace.feed.sources.open_source",
    "pack": "headrace.feed.streams.packing",
    "parquet": "headrace.feed.sources.open_source",
    "pipeline": "headrace.feed.pipelines.factory",
    "rng": "headrace.feed.pipelines.seeds",
    "stack_arrays": "headrace.feed.pipelines.fetch",
    "tar": "headrace.feed.sources.open_source",
    "track": "headrace.feed.metrics.track",
}

__all__ = [
    "Auto",
    "Buckets",
    "DataLoader",
    "Packed",
    "Pipeline",
    "PipelineError",
    "PositionError",
    "PurityReport",
    "PurityWarning",
    "ShardError",
    "Skipped",
    "Source",
    "Window",
    "WorkerError",
    "WorkersLost",
    "arrow",
    "channel",
    "hf",
    "jsonl",
    "lane",
    "merge_states",
    "mix",
    "pack",
    "parquet",
    "pipeline",
    "rng",
    "stack_arrays",
    "tar",
    "track",
]

if TYPE_CHECKING:
    from headrace.errors import PipelineError, PositionError, ShardError, WorkerError, WorkersLost
    from headrace.feed.client.policy import PurityWarning, Skipped
    from headrace.feed.loader.data_loader import DataLoader
    from headrace.feed.metrics.track import track
    from headrace.feed.pipelines.factory import Pipeline, channel, pipeline
    from headrace.feed.pipelines.fetch import stack_arrays
    from headrace.feed.pipelines.lane_datasets import lane
    from headrace.feed.pipelines.mixture import mix
    from headrace.feed.pipelines.purity import PurityReport
    from headrace.feed.pipelines.seeds import rng
    from headrace.feed.plan.orders.length_buckets import Buckets
    from headrace.feed.plan.orders.order import Window
    from headrace.feed.plan.state_dict import merge_states
    from headrace.feed.sources.open_source import arrow, hf, jsonl, parquet, tar
    from headrace.feed.sources.source import Source
    from headrace.feed.streams.packing import Packed, pack
    from headrace.feed.tuning.executor_rule import Auto


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'headrace.feed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
