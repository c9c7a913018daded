"""Figures of loaders, of one rank and of all ranks together: step time and its parts, samples a second; and of the data
workers that make their batches: what one executor can supply, and what the executors' time went to.

A feed server makes only what a loader asks for, and a loader asks for as much as its window holds. So where executors
are idle and the ranks hardly wait, the trainer is the slower one. Where the ranks wait, the network is too slow if
executors are blocked or a link is busy most of the time, and there are too few executors if they make samples all the
time.

Servers of tf.data.service are data workers of another kind: what CPU and memory each had, how often it was started.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from headrace.insight.figures.columns import (
    BLOCKED,
    BYTES_PER_SAMPLE,
    COMPUTE,
    COMPUTE_OR_REST,
    DATA_WAIT,
    H2D,
    IDLE,
    LINK,
    PRODUCE,
    QUEUE,
    SAMPLES_PER_SECOND,
    SERVER_CPU,
    SERVER_RSS,
    SERVER_SENT,
    STEP_TIME,
    SUPPLY,
    WORKER_CPU,
    Columns,
    Key,
    Quantity,
    Table,
    joined,
    span,
    total,
)
from headrace.insight.figures.figure import (
    WARM_UP_RECORDS,
    Figure,
    Window,
    added,
    as_noisy,
    confidence_of_ratio,
    figure_of,
    missing,
    spread_of,
)
from headrace.runs import Stream, WorkerSecond

_NO_ROWS = "the loader's batches do not tell how many samples they have: no tensor or array is in them"
_ONLY_WARM_UP = "the loader ran for about one second, which is left out as warm-up"
_NO_COPIES = "headrace did not copy batches to a CUDA device here"
_NO_QUEUE = "it is not headrace's loader, and only that counts them"


class LoaderReport(msgspec.Struct, frozen=True):
    """What one loader delivered, in one rank or (`ranks` > 1) in all of them.

    Attributes:
        loader: its name, e.g. ``train``.
        group, host, rank: where; empty for all ranks together.
        ranks: how many ranks it sums up.
        steps: of the whole run; of several ranks the most that one of them did: a step is one of all ranks together.
        samples: of the whole run; of several ranks those of all of them.
        step_time: mean duration of a step, ms; of several ranks the slowest decides, see `job_time`.
        samples_per_second: rate while steps last, by the same time.
        data_wait: share of the step time blocked in `next()`.
        h2d: share of the step time in which batches were copied to the device, beside the computation.
        compute: share of the step time in which the device worked; without CUDA what is left of the step, and its note
            says so.
        queue: batches that were ready when `next()` was called.
    """

    loader: str
    group: str
    host: str
    rank: str
    ranks: int
    steps: Figure
    samples: Figure
    step_time: Figure
    samples_per_second: Figure
    data_wait: Figure
    h2d: Figure
    compute: Figure
    queue: Figure


Ranks = Mapping[Stream, Table]
"""The rows of one loader, by rank; at least one each."""


@dataclass(frozen=True)
class Training:
    """The loader that stands for the training.

    Attributes:
        name: its name.
        ranks: its rows, by rank.
    """

    name: str
    ranks: Ranks

    @cached_property
    def window(self) -> Window | None:
        """From the end of the warm-up to the last record; None without a record after the warm-up."""
        return window_of(self.ranks)

    @cached_property
    def report(self) -> LoaderReport:
        """Its figures, all ranks together."""
        return loader_report(self.name, self.ranks)


def training_of(loaders: Mapping[str, Ranks]) -> Training | None:
    """Returns the loader that stands for the training: ``train``, else the one with the most samples; None without
    loader metrics."""
    samples = {name: total(rank["samples"] for rank in ranks.values()) for name, ranks in loaders.items()}
    name = "train" if "train" in samples else max(samples, key=lambda name: samples[name], default=None)
    return None if name is None else Training(name, loaders[name])


def window_of(ranks: Ranks) -> Window | None:
    """Returns the training window of a loader: from the end of the warm-up to its last record, over all ranks."""
    kept = [rank["t"].tolist() for rank in ranks.values() if len(rank) > WARM_UP_RECORDS]
    return Window(min(t[WARM_UP_RECORDS - 1] for t in kept), max(t[-1] for t in kept)) if kept else None


def whole_of(ranks: Ranks) -> Window | None:
    """Returns the time from the beginning of the first step to the end of the last one; None without a row."""
    begun = joined(rank["t"] - rank["step"] for rank in ranks.values())
    return Window(min(begun), max(joined(rank["t"] for rank in ranks.values()))) if begun else None


def without_warm_up(ranks: Ranks) -> dict[Stream, Table]:
    """Returns the rows after the warm-up."""
    return {stream: rank.where(slice(WARM_UP_RECORDS, None)) for stream, rank in ranks.items()}


def timed(ranks: Ranks) -> dict[Stream, Table]:
    """Returns of these the rows with steps: one without (a stall of more than a second) has no value a second."""
    kept = without_warm_up(ranks).items()
    return {stream: rank.where((rank["steps"] > 0) & (rank["step"] > 0)) for stream, rank in kept}


def job_time(ranks: Ranks) -> tuple[Stream, float, int]:
    """Returns how long the steps of all ranks together took: the slowest decides.

    Ranks that wait for each other all have the same time and count. Of those that do not, the one whose steps last
    longest in sum ends the training, and everything that is paid runs until then.

    Args:
        ranks: their rows, at least one.

    Returns:
        The rank whose steps lasted longest in sum, its seconds, and the steps of the rank that did most.
    """
    seconds = {stream: total([rank["step"]]) for stream, rank in ranks.items()}
    slowest = max(seconds, key=lambda stream: seconds[stream])
    return slowest, seconds[slowest], most_steps(ranks)


def most_steps(ranks: Ranks) -> int:
    """Returns the steps of the rank that did most."""
    return max((int(rank["steps"].sum()) for rank in ranks.values()), default=0)


def loader_report(name: str, ranks: Ranks) -> LoaderReport:
    """Returns the figures of one loader over one or more ranks. Pure.

    Args:
        name: name of the loader.
        ranks: its rows, by rank.
    """
    one = next(iter(ranks)) if len(ranks) == 1 else Stream("", "", "")
    window, kept = window_of(ranks), timed(ranks)
    rows = list(kept.values())
    whole, steps, samples = whole_of(ranks), most_steps(ranks), int(total(rank["samples"] for rank in ranks.values()))

    def part(quantity: Quantity, absent: str) -> Figure:
        count, measured = (sum(map(len, tables)) for tables in (rows, [quantity.rows(rank).t for rank in rows]))
        note = "" if measured in (0, count) else f"measured in {measured} of {count} records"
        return quantity.figure(rows, window, absent if count else _ONLY_WARM_UP, note)

    compute = part(COMPUTE, "")
    if compute.value is None and any(map(len, rows)):
        note = "no CUDA events: the part of the step that is neither wait nor copy"
        compute = COMPUTE_OR_REST.figure(rows, window, _ONLY_WARM_UP, note)
    return LoaderReport(
        loader=name,
        group=one.group,
        host=one.host,
        rank=one.name,
        ranks=len(ranks),
        steps=figure_of("steps", steps, whole),
        samples=missing("samples", _NO_ROWS) if steps and not samples else figure_of("samples", samples, whole),
        step_time=_step_time(kept, window),
        samples_per_second=_rate(kept, window),
        data_wait=DATA_WAIT.figure(rows, window, _ONLY_WARM_UP),
        h2d=part(H2D, _NO_COPIES),
        compute=compute,
        queue=QUEUE.figure(rows, window, _NO_QUEUE if any(map(len, rows)) else _ONLY_WARM_UP),
    )


def _step_time(ranks: Ranks, window: Window | None) -> Figure:
    if not any(map(len, ranks.values())):
        return missing("step_time", _ONLY_WARM_UP)
    slowest, seconds, steps = job_time(ranks)
    mine = STEP_TIME.rows(ranks[slowest])
    value, own = STEP_TIME.scale * seconds / steps, STEP_TIME.scale * seconds / total([mine.under])
    spread = spread_of((value / own * STEP_TIME.each(ranks[slowest]).over).tolist())
    known = confidence_of_ratio(mine.over.tolist(), mine.under.tolist(), scale=STEP_TIME.scale)
    return figure_of("step_time", value, window, spread, confidence=as_noisy(value, own, known))


def _rate(ranks: Ranks, window: Window | None) -> Figure:
    if not ranks or not all(map(len, ranks.values())):
        return missing("samples_per_second", _ONLY_WARM_UP)
    samples = total(rank["samples"] for rank in ranks.values())
    if not samples:
        return missing("samples_per_second", _NO_ROWS)
    slowest, seconds, _ = job_time(ranks)
    value = samples / seconds
    rows = added(SAMPLES_PER_SECOND.each(rank).over.tolist() for rank in ranks.values())
    steps = [rank["step"].tolist() for rank in ranks.values()]
    lengths = [max(row) for row in itertools.zip_longest(*steps, fillvalue=0.0)]
    # The rows' mean is the figure but for what the n-th seconds of the ranks differ in length.
    mean = sum(rate * length for rate, length in zip(rows, lengths, strict=True)) / sum(lengths)
    spread = spread_of([value / mean * rate for rate in rows])
    # The seconds of the rank that decides, as for the step time: with batches of one size the same relative noise.
    mine = SAMPLES_PER_SECOND.rows(ranks[slowest])
    known = confidence_of_ratio(mine.over.tolist(), mine.under.tolist())
    own = total([mine.over]) / seconds
    return figure_of("samples_per_second", value, window, spread, confidence=as_noisy(value, own, known))


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
