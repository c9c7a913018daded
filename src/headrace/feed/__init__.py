"""The feed: a data loader for PyTorch whose workers may be anywhere.

    from headrace import feed

    loader = feed.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)

There is no dispatcher. The trainer knows what was consumed, so the trainer asks: what a piece of data holds is a pure
function of (pipeline, seed, epoch, plan positions), and any worker can be asked for any piece, again if need be. So
every sample of an epoch arrives exactly once, in plan order, bit-identical, whatever dies and with any number of
workers.

How the modules hang together, from what is asked to who does it:

    loader -> planner -> plan, permutation, samplers     which samples, in which order
                      -> bookmark, position              where the trainer is in that order
           -> session -> schedule         who makes what: a state machine without I/O
                      -> sharding, shards, probing    whom it may be asked of, when hosts hold other data
                      -> supply, links    the workers: children, or feed servers found through places
                      -> slab             where batches lie: memfd, viewed, not copied
    executor -> compute, seeds, layout, tree        makes slices
    serve -> server -> desk -> crew -> zygote       a host's feed server
    receiver                                        takes remote batches into slabs
    wire, messages, auth                            what they speak
    stream, tls                                     what carries it: plain sockets, or TLS between hosts
    meter, gputime, tracking                        what a training loop's time goes to
    workmeter, worktime, linkuse                    what the executors' time goes to
    inquiry, tally, prometheus, measure             how servers and loaders are doing
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_EXPORTS = {
    "DataLoader": "headrace.feed.loader.data_loader",
    "Pipeline": "headrace.feed.pipelines.factory",
    "PurityReport": "headrace.feed.pipelines.purity",
    "PurityWarning": "headrace.feed.client.policy",
    "Skipped": "headrace.feed.client.policy",
    "channel": "headrace.feed.pipelines.factory",
    "stack_arrays": "headrace.feed.pipelines.collate",
    "pipeline": "headrace.feed.pipelines.factory",
    "track": "headrace.feed.metrics.track",
}

__all__ = [
    "DataLoader",
    "Pipeline",
    "PurityReport",
    "PurityWarning",
    "Skipped",
    "channel",
    "pipeline",
    "stack_arrays",
    "track",
]

if TYPE_CHECKING:
    from headrace.feed.client.policy import PurityWarning, Skipped
    from headrace.feed.loader.data_loader import DataLoader
    from headrace.feed.metrics.track import track
    from headrace.feed.pipelines.collate import stack_arrays
    from headrace.feed.pipelines.factory import Pipeline, channel, pipeline
    from headrace.feed.pipelines.purity import PurityReport


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'headrace.feed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
