"""What `DataLoader.stats()` returns: the meter's sums, the sessions' counters, and what follows from both.

Each figure is declared once: its type, its name for Prometheus behind ``headrace_feed_``, and what it is (`figures`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict, get_type_hints

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

    rows: Annotated[float, "host_rows_total", "Rows that the host's workers made."]
    seconds: Annotated[float, "host_work_seconds_total", "Time that the host's workers worked on them."]
    cpu_seconds: Annotated[float, "host_cpu_seconds_total", "Their CPU time."]
    rows_per_second: Annotated[float, "host_rows_per_second", "Rows a second of one worker's work."]


class SourceStats(TypedDict):
    """One source of a mixture, over all ranks; in lanes what this rank was given of it.

    Attributes:
        samples: taken of it in the latest epoch, also before a resume; with ``feed.mix(rows=)`` in all epochs. In lanes
            since the loader was made.
        passes: how often that is all its rows; None in lanes, where nobody counts them.
        weight: its share from here on; None while no worker on another host has told it.
    """

    samples: Annotated[
        int, "source_samples", "Samples of a source of a mixture, over all ranks; in lanes those of this rank."
    ]
    passes: Annotated[float | None, "source_passes", "How often that is all its rows."]
    weight: Annotated[float | None, "source_weight", "Its share of the samples from here on."]


class TuningStats(TypedDict):
    """What ``num_workers="auto"`` has chosen: the number of executors, why, in words too, and what changed."""

    executors: int
    because: Because
    text: str
    changes: list[Change]


class LoaderStats(TypedDict):
    """Sums since the loader was made, and ratios of them. Times in seconds, sizes in bytes; GB are 10^9 bytes."""

    steps: Annotated[int, "steps_total", "Steps that have ended."]
    samples: Annotated[int, "samples_total", "Samples of these steps."]
    bytes: Annotated[int, "bytes_total", "Bytes of the batches of these steps."]
    wait_seconds: Annotated[float, "wait_seconds_total", "Time that next() waited for batches."]
    step_seconds: Annotated[float, "step_seconds_total", "Time of the steps, waits included."]
    stall_fraction: Annotated[float, "stall_ratio", "wait_seconds / step_seconds since the start."]
    bytes_per_second: Annotated[float, "bytes_per_second", "Bytes a second, as stats() has it."]
    queue_depth: Annotated[int, "queue_depth", "Batches that are ready and wait for next()."]
    bytes_copied: Annotated[int, "copied_bytes_total", "Bytes copied to ordinary memory because too much was held."]
    retries: Annotated[int, "retries_total", "Slices that were asked for again."]
    workers_lost: Annotated[int, "workers_lost_total", "Workers that were lost."]
    duplicates_dropped: Annotated[int, "duplicates_dropped_total", "Answers that came a second time and were dropped."]
    hedges: Annotated[int, "hedges_total", "Slices that a second worker was asked for because the first was slow."]
    hedges_won: Annotated[int, "hedges_won_total", "Hedges whose second worker answered first."]
    slices_verified: Annotated[int, "slices_verified_total", "Slices that were computed twice and compared."]
    purity_failures: Annotated[int, "purity_failures_total", "Compared slices that differed."]
    slices_timed_out: Annotated[int, "slices_timed_out_total", "Slices that took longer than slice_timeout."]
    skipped: Annotated[int, "skipped_samples_total", "Samples left out under on_error='skip'."]
    tokens: Annotated[int, "tokens_total", "Tokens in the packed sequences that the trainer was given."]
    padding_fraction: Annotated[
        float, "padding_fraction", "Share of the positions of packed sequences that hold padding."
    ]
    cpu_seconds_per_gb: Annotated[
        float, "cpu_seconds_per_gigabyte", "CPU seconds on the trainer's side for a GB of batches."
    ]
    worker_cpu_seconds: Annotated[float, "worker_cpu_seconds_total", "CPU time of the workers for this loader."]
    worker_cpu_seconds_per_gb: Annotated[
        float, "worker_cpu_seconds_per_gigabyte", "CPU seconds of the workers for a GB of batches."
    ]
    hosts: dict[str, HostStats]
    sources: dict[str, SourceStats]
    executors: Annotated[int, "executors", "Worker processes that make the loader's batches."]
    batches_ahead: Annotated[int, "batches_ahead", "Batches that may be on their way, as tuned; 0 without tuning."]
    needed_executors: Annotated[
        float | None, "needed_executors", "Worker processes that would be busy if the trainer never waited."
    ]
    desired_workers: Annotated[int | None, "desired_workers", "Hosts of data workers that would do for all ranks."]
    tuning: TuningStats | None


@functools.cache
def figures(kind: type) -> Mapping[str, tuple[str, str]]:
    """Returns the name for Prometheus and the help of each figure of `LoaderStats`, `HostStats` or `SourceStats`."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if hasattr(hint, "__metadata__")}


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
