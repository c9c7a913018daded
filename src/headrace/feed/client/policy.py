"""How a loader's sessions work, and what they count."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Literal

from headrace.feed.batch.slab import CudaPinning

MEMORY = 512 << 20
STALL_SECONDS = 300.0


NumericsPolicy = Literal["warn", "refuse"]


class PurityWarning(UserWarning):
    """A sample held other bytes when another worker made it: it depends on more than its place in the plan."""


class BatchSkipped(Exception):
    """Every row of a batch was skipped."""


@dataclass(frozen=True)
class Skipped:
    """A sample that was left out of its batch under ``on_error="skip"``.

    Attributes:
        epoch, step: of the batch.
        key: what the dataset was asked for. In lanes the number of a row of shards, or of an input of what stands
            behind `.pack` or a mixture. A source of a mixture without a count has its name before: ``"web/7"``.
        reason: the exception, or how two workers ended.
    """

    epoch: int
    step: int
    key: object
    reason: str


@dataclass(frozen=True)
class Policy:
    """How a session works, and deals with failures.

    Attributes:
        on_error: whether a sample that cannot be had is raised or left out.
        slice_timeout: seconds after which an executor is taken for hung.
        numerics: what to do about workers that compute differently.
        verify: share of slices that are made twice and compared.
        hedge: whether late slices are asked for twice.
        stall_timeout: seconds after which a batch that does not come is an error; names who was waited for.
        memory: limit of the slabs, bytes.
        prefetch: batches on their way per executor; None to choose.
        pinning: page-locks the slabs that batches lie in; None for ordinary memory.
    """

    on_error: Literal["raise", "skip"] = "raise"
    slice_timeout: float = 120.0
    numerics: NumericsPolicy = "warn"
    verify: float = 0.001
    hedge: bool = True
    stall_timeout: float = STALL_SECONDS
    memory: int = MEMORY
    prefetch: int | None = None
    pinning: CudaPinning | None = None


@dataclass
class SessionStats:
    """Counters of a loader's sessions.

    Attributes:
        receiver_cpu_seconds: of the receivers of sessions that have ended.
        hosts: what each host has made: rows, seconds that its executors worked, and their CPU seconds; and the share
            of the time that its busiest connection was sending, as it told last.
        tokens, padding: in the packed sequences that the trainer was given.
        sources: what it was given of each source of a mixture that is read in lanes.
        latencies: of the latest slices, seconds from the request to the answer. An answer may lie there while the
            trainer is away: no more than the time that was expected for it, and that it took, counts.
    """

    bytes_copied: int = 0
    retries: int = 0
    workers_lost: int = 0
    duplicates_dropped: int = 0
    worker_cpu_seconds: float = 0.0
    receiver_cpu_seconds: float = 0.0
    hedges: int = 0
    hedges_won: int = 0
    slices_verified: int = 0
    purity_failures: int = 0
    slices_timed_out: int = 0
    tokens: int = 0
    padding: int = 0
    sources: collections.Counter[str] = field(default_factory=collections.Counter)
    skipped: list[Skipped] = field(default_factory=list)
    hosts: dict[str, dict[str, float]] = field(default_factory=dict)
    latencies: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=256))
