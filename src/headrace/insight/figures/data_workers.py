"""Figures of data workers: what one executor can supply, and what the executors' time went to.

A feed server makes only what a loader asks for, and a loader asks for as much as its window holds. So where executors
are idle and the ranks hardly wait, the trainer is the slower one. Where the ranks wait, the network is too slow if
executors are blocked or a link is busy most of the time, and there are too few executors if they make samples all the
time.

Servers of tf.data.service are data workers of another kind: what CPU and memory each had, how often it was started.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.insight.figures.columns import Columns, Key, Table
from headrace.insight.figures.figure import Figure, Window, spread_of
from headrace.insight.figures.quantities import (
    BLOCKED,
    BYTES_PER_SAMPLE,
    IDLE,
    LINK,
    PRODUCE,
    SERVER_CPU,
    SERVER_RSS,
    SERVER_SENT,
    SUPPLY,
    WORKER_CPU,
    joined,
    span,
)
from headrace.runs import WorkerSecond

_NO_LINK = "these workers are processes of the rank: nothing goes through the network"


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


def server_reports(columns: Columns) -> tuple[ServerReport, ...]:
    """Returns the report of every server that wrote a metric, in the order of their names."""
    servers = sorted(columns.tables("service").items(), key=lambda server: server[0].stream)
    return tuple(_report(key, table) for key, table in servers)


def _report(key: Key, rows: Table) -> ServerReport:
    window = span([rows])
    sends = key.name == "worker"
    unsent = "it was not counted in two records of one process" if sends else "a dispatcher sends no data"
    return ServerReport(
        group=key.stream.group,
        host=key.stream.host,
        stream=key.stream.name,
        role=key.name,
        restarts=int(rows["restarts"][-1]),
        server_cpu=SERVER_CPU.figure([rows], window, "it did not live long enough for two records"),
        server_rss=SERVER_RSS.greatest([SERVER_RSS.each(rows)], window, ""),
        server_sent=SERVER_SENT.figure([rows] if sends else [], window, unsent),
    )


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


def workers_reports(columns: Columns, window: Window | None) -> tuple[WorkersReport, ...]:
    """Returns the figures of all data workers: those of feed servers by group, local ones by group and loader. Pure.

    Args:
        columns: the metrics of the run.
        window: the training window; None if there is none.
    """
    parted: dict[tuple[str, str], list[Key]] = {}
    for key in columns.keys("worker"):
        parted.setdefault((key.stream.group, key.name), []).append(key)
    return tuple(_of_group(columns, *of, keys, window) for of, keys in sorted(parted.items()))


def _of_group(columns: Columns, group: str, loader: str, keys: Sequence[Key], window: Window | None) -> WorkersReport:
    tables = [columns.table(key) for key in keys]
    rows = [] if window is None else [table.after(window) for table in tables]
    began = [min((table["t"] - table["seconds"]).tolist()) for table in rows if len(table)]
    measured = Window(min(began), max(joined(table["t"] for table in rows))) if began else None
    why = "no training window" if window is None else "no metrics of these workers in the training window"
    unmade = "no sample was made in the training window" if began else why
    at_work = [table.where(table["samples"] > 0) for table in rows]
    last = [record for key in keys if isinstance(record := columns.last_record[key], WorkerSecond)]
    chosen = next((record for record in last if record.because is not None), None)
    because = None if chosen is None else chosen.because
    supply = SUPPLY.figure(rows if any(map(len, at_work)) else [], measured, unmade)
    return WorkersReport(
        group=group,
        loader=loader,
        hosts=tuple(sorted({key.stream.host for key in keys})),
        executors=sum(one.executors for one in last),
        supply=msgspec.structs.replace(supply, spread=spread_of(joined(SUPPLY.each(table).over for table in at_work))),
        produce=PRODUCE.figure(rows, measured, why),
        blocked=BLOCKED.figure(rows, measured, why),
        idle=IDLE.figure(rows, measured, why),
        cpu=WORKER_CPU.figure(rows, measured, unmade),
        bytes_per_sample=BYTES_PER_SAMPLE.figure(rows, measured, unmade),
        link=LINK.figure([] if loader else rows, measured, _NO_LINK if loader else why),
        because="" if because is None else because.value,
        because_text="" if chosen is None or because is None else because.describe(chosen.because_figures),
    )
