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
    pipelines      a pipeline by name (factory), its random numbers (seeds), samples made into batches (fetch)
    plan           which samples in which order (planner, epoch, orders, shard_map), and where the trainer is in it
    metrics        what the time of a training loop and of its workers goes to
    worker         who makes slices: feed_server -> work_queue -> executor_pool -> forkserver -> executor -> slices
    client         who asks for them: session, and below it
                     scheduler       which slice is requested next, and from which worker: no I/O
                     work_units      what is under way, and what follows from the end of a request: no I/O
                     exchange        sends what the scheduler chooses, does what follows from an answer
                     assembly        the slabs of the batches on their way
                     verifier, shard_placement, lane_homes    what else decides who is asked for what
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

from headrace.feed.sources import KINDS

if TYPE_CHECKING:
    from headrace.errors import PipelineError as PipelineError
    from headrace.errors import PositionError as PositionError
    from headrace.errors import ShardError as ShardError
    from headrace.errors import WorkerError as WorkerError
    from headrace.errors import WorkersLost as WorkersLost
    from headrace.feed.client.policy import PurityWarning as PurityWarning
    from headrace.feed.client.policy import Skipped as Skipped
    from headrace.feed.loader.data_loader import DataLoader as DataLoader
    from headrace.feed.metrics.track import track as track
    from headrace.feed.pipelines.factory import Pipeline as Pipeline
    from headrace.feed.pipelines.factory import channel as channel
    from headrace.feed.pipelines.factory import pipeline as pipeline
    from headrace.feed.pipelines.fetch import stack_arrays as stack_arrays
    from headrace.feed.pipelines.lane_datasets import lane as lane
    from headrace.feed.pipelines.mixture import mix as mix
    from headrace.feed.pipelines.purity import PurityReport as PurityReport
    from headrace.feed.pipelines.seeds import rng as rng
    from headrace.feed.plan.orders.length_buckets import Buckets as Buckets
    from headrace.feed.plan.orders.order import Window as Window
    from headrace.feed.plan.state_dict import merge_states as merge_states
    from headrace.feed.sources.arrow_shards import arrow as arrow
    from headrace.feed.sources.json_lines import jsonl as jsonl
    from headrace.feed.sources.open_source import hf as hf
    from headrace.feed.sources.parquet_shards import parquet as parquet
    from headrace.feed.sources.source import Source as Source
    from headrace.feed.sources.tar_shards import tar as tar
    from headrace.feed.streams.packing import Packed as Packed
    from headrace.feed.streams.packing import pack as pack
    from headrace.feed.tuning.executor_rule import Auto as Auto

_NAMES = {
    "headrace.errors": "PipelineError PositionError ShardError WorkerError WorkersLost",
    "headrace.feed.client.policy": "PurityWarning Skipped",
    "headrace.feed.loader.data_loader": "DataLoader",
    "headrace.feed.metrics.track": "track",
    "headrace.feed.pipelines.factory": "Pipeline channel pipeline",
    "headrace.feed.pipelines.fetch": "stack_arrays",
    "headrace.feed.pipelines.lane_datasets": "lane",
    "headrace.feed.pipelines.mixture": "mix",
    "headrace.feed.pipelines.purity": "PurityReport",
    "headrace.feed.pipelines.seeds": "rng",
    "headrace.feed.plan.orders.length_buckets": "Buckets",
    "headrace.feed.plan.orders.order": "Window",
    "headrace.feed.plan.state_dict": "merge_states",
    "headrace.feed.sources.open_source": "hf",
    "headrace.feed.sources.source": "Source",
    "headrace.feed.streams.packing": "Packed pack",
    "headrace.feed.tuning.executor_rule": "Auto",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_MODULES) + list(KINDS)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name) or KINDS.get(name)
    if module is not None:
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'headrace.feed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
