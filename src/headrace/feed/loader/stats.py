"""What `DataLoader.stats()` returns: the meter's sums, the sessions' counters, and what follows from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from headrace.feed.client.policy import SessionStats
from headrace.feed.client.session import Session
from headrace.feed.metrics.step_meter import Totals
from headrace.feed.plan.planner import Planner
from headrace.feed.tuning.loader_tuner import Change, LoaderTuner
from headrace.feed.wire.messages import Mixing
from headrace.feed_metrics import Because

GB = 1e9


class HostStats(TypedDict):
    """One host, or one local worker: `seconds` are those its executors worked, and `rows_per_second` of them."""

    rows: float
    seconds: float
    cpu_seconds: float
    rows_per_second: float


class SourceStats(TypedDict):
    """One source of a mixture, over all ranks; in lanes what this rank was given of it.

    Attributes:
        samples: taken of it in the latest epoch, also before a resume; with ``feed.mix(rows=)`` in all epochs. In lanes
            since the loader was made.
        passes: how often that is all its rows; None in lanes, where nobody counts them.
        weight: its share from here on; None while no worker on another host has told it.
    """

    samples: int
    passes: float | None
    weight: float | None


class TuningStats(TypedDict):
    """What ``num_workers="auto"`` has chosen: the number of executors, why, in words too, and what changed."""

    executors: int
    because: Because
    text: str
    changes: list[Change]


class LoaderStats(TypedDict):
    """Sums since the loader was made, and ratios of them. Times in seconds, sizes in bytes; GB are 10^9 bytes."""

    steps: int
    samples: int
    bytes: int
    wait_seconds: float
    step_seconds: float
    stall_fraction: float
    bytes_per_second: float
    queue_depth: int
    bytes_copied: int
    retries: int
    workers_lost: int
    duplicates_dropped: int
    hedges: int
    hedges_won: int
    slices_verified: int
    purity_failures: int
    slices_timed_out: int
    skipped: int
    tokens: int
    padding_fraction: float
    cpu_seconds_per_gb: float
    worker_cpu_seconds: float
    worker_cpu_seconds_per_gb: float
    hosts: dict[str, HostStats]
    sources: dict[str, SourceStats]
    executors: int
    batches_ahead: int
    needed_executors: float | None
    desired_workers: int | None
    tuning: TuningStats | None


def loader_stats(
    totals: Totals,
    feed: SessionStats,
    sessions: Sequence[Session],
    planner: Planner,
    tuner: LoaderTuner | None,
    mixing: Mixing | None,
) -> LoaderStats:
    """Puts the figures together.

    Args:
        totals: of the training loop.
        feed: counters of all sessions, those that have ended included.
        sessions: those that are open.
        planner: of the loader.
        tuner: of the loader, if it has one.
        mixing: what the data are a mixture of, as far as it is known here.
    """
    tokens, padding = feed.tokens, feed.padding
    receivers = feed.receiver_cpu_seconds + sum(session.receiver_cpu_seconds for session in sessions)
    return {
        "steps": totals.steps,
        "samples": totals.samples,
        "bytes": totals.bytes,
        "wait_seconds": totals.wait,
        "step_seconds": totals.step,
        "stall_fraction": _ratio(totals.wait, totals.step),
        "bytes_per_second": _ratio(totals.bytes, totals.step),
        "queue_depth": sum(session.queued for session in sessions if not session.closed),
        "bytes_copied": feed.bytes_copied,
        "retries": feed.retries,
        "workers_lost": feed.workers_lost,
        "duplicates_dropped": feed.duplicates_dropped,
        "hedges": feed.hedges,
        "hedges_won": feed.hedges_won,
        "slices_verified": feed.slices_verified,
        "purity_failures": feed.purity_failures,
        "slices_timed_out": feed.slices_timed_out,
        "skipped": len(feed.skipped),
        "tokens": tokens,
        "padding_fraction": _ratio(padding, tokens + padding),
        "cpu_seconds_per_gb": _ratio(totals.cpu + receivers, totals.bytes / GB),
        "worker_cpu_seconds": feed.worker_cpu_seconds,
        "worker_cpu_seconds_per_gb": _ratio(feed.worker_cpu_seconds, totals.bytes / GB),
        "hosts": {name: _host(made) for name, made in list(feed.hosts.items())},
        "sources": _sources(planner) or _of_lanes(feed.sources, mixing),
        "executors": sum(sum(session.serving) for session in sessions if not session.closed),
        "batches_ahead": tuner.ahead if tuner is not None else 0,
        "needed_executors": tuner.needed if tuner is not None else None,
        "desired_workers": tuner.desired if tuner is not None else None,
        "tuning": _tuning(tuner),
    }


def _sources(planner: Planner) -> dict[str, SourceStats]:
    order = planner.mixed
    if order is None:
        return {}
    epoch, position = planner.bookmark.reached()
    position = min(position, order.rows(epoch))  # `even_batches` fills up behind the end
    taken, shares = order.taken(epoch, position), order.mixing.shares(order.weights(epoch, position))
    return {
        name: {"samples": samples, "passes": samples / rows, "weight": shares[name]}
        for name, rows, samples in zip(order.mixing.names, order.mixing.rows, taken, strict=True)
    }


def _of_lanes(taken: Mapping[str, int], mixing: Mixing | None) -> dict[str, SourceStats]:
    shares = mixing.shares() if mixing is not None and taken else {}
    return {
        name: {"samples": samples, "passes": None, "weight": shares.get(name)}
        for name, samples in sorted(taken.items())
        if name
    }


def _tuning(tuner: LoaderTuner | None) -> TuningStats | None:
    if tuner is None or tuner.choice is None:
        return None
    executors, because, figures = tuner.choice
    text = because.describe(figures)
    return {"executors": executors, "because": because, "text": text, "changes": list(tuner.changes)}


def _host(made: dict[str, float]) -> HostStats:
    return {
        "rows": made["rows"],
        "seconds": made["seconds"],
        "cpu_seconds": made["cpu_seconds"],
        "rows_per_second": _ratio(made["rows"], made["seconds"]),
    }


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0
