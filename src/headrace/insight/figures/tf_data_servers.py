"""Figures of the servers of tf.data.service: what CPU and memory each had, and how often it was started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from headrace.insight.figures.figure import Figure, Window, missing
from headrace.runs import Stream
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
