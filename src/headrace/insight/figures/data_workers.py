"""Figures of data workers: what one executor can supply, and what the executors' time went to.

A feed server makes only what a loader asks for, and a loader asks for as much as its window holds. So where executors
are idle and the ranks hardly wait, the trainer is the slower one. Where the ranks wait, the network is too slow if
executors are blocked or a link is busy most of the time, and there are too few executors if they make samples all the
time.

Servers of tf.data.service are data workers of another kind: what CPU and memory each had, how often it was started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from headrace.insight.figures.figure import Figure, Window, missing, spread_of
from headrace.runs import Stream, WorkerSecond
from headrace.runs.metric_records import ServiceSecond


class ServerReport(msgspec.Struct, frozen=True):
    """One server of tf.data.service.

    Attributes:
        group, host, stream: which one.
        role: ``dispatcher`` or ``worker``.
        restarts: how often it was started again.
        server_cpu: its CPU time; 100 % is one core all the time.
        server_rss: its largest memory.
        server_sent: what a worker sent to trainers.
    """

    group: str
    host: str
    stream: str
    role: str
    restarts: int
    server_cpu: Figure
    server_rss: Figure
    server_sent: Figure


def server_reports(metrics: Mapping[Stream, Sequence[ServiceSecond]]) -> tuple[ServerReport, ...]:
    """Returns the report of every server that wrote a metric, in the order of their names.

    Args:
        metrics: what the agents wrote, by server; each in the order of time.
    """
    return tuple(_report(stream, metrics[stream]) for stream in sorted(metrics) if metrics[stream])


def _report(stream: Stream, seconds: Sequence[ServiceSecond]) -> ServerReport:
    window = Window(seconds[0].t, seconds[-1].t)
    return ServerReport(
        group=stream.group,
        host=stream.host,
        stream=stream.name,
        role=seconds[-1].role,
        restarts=seconds[-1].restarts,
        server_cpu=_cpu(seconds),
        server_rss=Figure("server_rss", "bytes", max(second.rss for second in seconds), window),
        server_sent=_sent(seconds),
    )


def _cpu(seconds: Sequence[ServiceSecond]) -> Figure:
    """CPU seconds between neighbouring records of one process; each start begins at 0 and is left out."""
    pairs = _pairs(seconds)
    elapsed = sum(b.t - a.t for a, b in pairs)
    if not elapsed:
        return missing("server_cpu", "%", "it did not live long enough for two records")
    used = sum(b.cpu - a.cpu for a, b in pairs)
    return Figure("server_cpu", "%", 100 * used / elapsed, Window(seconds[0].t, seconds[-1].t))


def _sent(seconds: Sequence[ServiceSecond]) -> Figure:
    if seconds[-1].role != "worker":
        return missing("server_sent", "bytes/s", "a dispatcher sends no data")
    told = [(a.sent, b.sent, b.t - a.t) for a, b in _pairs(seconds)]
    counted = [(b - a, elapsed) for a, b, elapsed in told if a is not None and b is not None]
    if not counted:
        return missing("server_sent", "bytes/s", "it was not counted in two records of one process")
    rate = sum(sent for sent, _ in counted) / sum(elapsed for _, elapsed in counted)
    return Figure("server_sent", "bytes/s", rate, Window(seconds[0].t, seconds[-1].t))


def _pairs(seconds: Sequence[ServiceSecond]) -> list[tuple[ServiceSecond, ServiceSecond]]:
    """Neighbouring records of one process."""
    return [(a, b) for a, b in pairwise(seconds) if a.restarts == b.restarts]


Workers = Mapping[Stream, Sequence[WorkerSecond]]


class WorkersReport(msgspec.Struct, frozen=True):
    """The data workers of one instance group.

    Attributes:
        group: name of the group.
        loader: the loader whose ranks have these workers of their own; empty for feed servers.
        hosts: where they ran.
        executors: worker processes, together.
        supply: samples a second that one executor makes while it works, never blocked and never idle.
        produce, blocked, idle: shares of the executors' time.
        cpu: CPU seconds of the executors for 1,000 samples.
        bytes_per_sample: payload.
        link: share of the time in which the busiest connection of a host was sending; mean over the hosts.
        because: what their number was based on at last, where the loader chooses it (``num_workers="auto"``): a value
            of `headrace.feed_metrics.Because`; empty where it does not.
        because_text: that in words, with the figures behind it.
    """

    group: str
    loader: str
    hosts: tuple[str, ...]
    executors: int
    supply: Figure
    produce: Figure
    blocked: Figure
    idle: Figure
    cpu: Figure
    bytes_per_sample: Figure
    link: Figure
    because: str = ""
    because_text: str = ""


def workers_reports(seconds: Workers, window: Window | None) -> tuple[WorkersReport, ...]:
    """Returns the figures of all data workers: those of feed servers by group, local ones by group and loader. Pure.

    Args:
        seconds: metrics of feed servers and of ranks, by stream.
        window: the training window; None if there is none.
    """
    parted: dict[tuple[str, str], dict[Stream, list[WorkerSecond]]] = {}
    for stream in sorted(seconds):
        for second in seconds[stream]:
            parted.setdefault((stream.group, second.loader), {}).setdefault(stream, []).append(second)
    return tuple(workers_report(group, loader, found, window) for (group, loader), found in sorted(parted.items()))


def workers_report(group: str, loader: str, seconds: Workers, window: Window | None) -> WorkersReport:
    """Returns the figures of one group's workers. Pure.

    Args:
        group: its name.
        loader: the loader whose own workers they are; empty for feed servers.
        seconds: their records.
        window: the training window; None if there is none.
    """
    kept = {stream: _inside(records, window) for stream, records in seconds.items()}
    pool = [second for records in kept.values() for second in records]
    measured = Window(min(s.t - s.seconds for s in pool), max(s.t for s in pool)) if pool else None
    why = "no training window" if window is None else "no metrics of these workers in the training window"
    chosen = next((s[-1] for s in seconds.values() if s and s[-1].because is not None), None)
    because = None if chosen is None else chosen.because
    made = sum(second.samples for second in pool)
    unmade = why if not pool else "no sample was made in the training window"
    produce = sum(second.produce for second in pool)
    return WorkersReport(
        group=group,
        loader=loader,
        hosts=tuple(sorted({stream.host for stream in seconds})),
        executors=sum(records[-1].executors for records in seconds.values() if records),
        supply=Figure(
            "supply", "1/s", made / produce, measured,
            spread_of([second.samples / second.produce for second in pool if second.samples and second.produce > 0]),
        ) if made and produce > 0 else missing("supply", "1/s", unmade),
        produce=_share("produce", pool, measured, why),
        blocked=_share("blocked", pool, measured, why),
        idle=_share("idle", pool, measured, why),
        cpu=Figure("worker_cpu", "s", 1000 * sum(second.cpu for second in pool) / made, measured)
        if made else missing("worker_cpu", "s", unmade),
        bytes_per_sample=Figure("bytes_per_sample", "bytes", sum(second.bytes for second in pool) / made, measured)
        if made else missing("bytes_per_sample", "bytes", unmade),
        link=_link(loader, pool, measured, why),
        because=because.value if because is not None else "",
        because_text=because.describe(chosen.because_figures) if chosen is not None and because is not None else "",
    )  # fmt: skip


def _inside(records: Sequence[WorkerSecond], window: Window | None) -> list[WorkerSecond]:
    """Returns the records that end in the window."""
    return [] if window is None else [second for second in records if window.start < second.t <= window.end]


def _share(name: str, pool: list[WorkerSecond], window: Window | None, why: str) -> Figure:
    whole = sum(second.executors * second.seconds for second in pool)
    if not whole:
        return missing(name, "%", why)
    spent: list[float] = [getattr(second, name) for second in pool]
    spread = spread_of([100 * used / (s.executors * s.seconds) for used, s in zip(spent, pool, strict=True)])
    return Figure(name, "%", 100 * sum(spent) / whole, window, spread)


def _link(loader: str, pool: list[WorkerSecond], window: Window | None, why: str) -> Figure:
    if loader:
        return missing("link", "%", "these workers are processes of the rank: nothing goes through the network")
    length = sum(second.seconds for second in pool)
    if not length:
        return missing("link", "%", why)
    value = 100 * sum(second.sending for second in pool) / length
    return Figure("link", "%", value, window, spread_of([100 * s.sending / s.seconds for s in pool]))
