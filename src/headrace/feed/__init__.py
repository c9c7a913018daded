"""The feed: a data loader for PyTorch whose workers may be anywhere.

    from headrace import feed

    loader = feed.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)

There is no dispatcher. The trainer knows what was consumed, so the trainer asks. The content of a slice is a pure
function of (pipeline, seed, epoch, plan positions), and any worker can make any slice, also a second time. So every
sample of an epoch arrives exactly once, in plan order, bit-identical, with any number of workers, whichever of them are
killed.

    batch/      slabs (shared memory) and the structure of batches
    wire/       frames, messages, the handshake, TLS; `endpoints` finds the workers
    pipelines/  names, builds and seeds a pipeline; the only code that calls the user's dataset
    plan/       which sample stands where in an epoch, and where the trainer is
    metrics/    what the time of a training loop and of its workers goes to
    worker/     a host's feed server, its queue, and the executors behind it
    client/     `scheduler` (which worker makes what: no I/O), `session`, the pools of workers, the receiver
    loader/     the `DataLoader`, one pass over it, batches on a device
    serve       starts a feed server
    prometheus  exports figures of loaders and servers
    bench/      a quick measurement of the feed
    profiler/   measures the data loading of an unchanged script, for `headrace doctor`
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
