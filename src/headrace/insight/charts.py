"""What a run did over time: charts of a few hundred points, whatever its length. Pure: columns in, charts out.

`headrace metrics RUN --output json` prints it, and the job page draws it. A chart says how its values are computed;
one without any measured value is left out, and a note says so.

Rows of seconds, however many, become at most some hundred buckets of equal width. A bucket holds what its rows sum up
to, and the least and the greatest of them, so no peak is lost by looking from afar. A bucket without rows has no value
(NaN); it is not 0.

The few that stand in a report and in a comparison are those that the verdict is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.insight.figures.columns import (
    BLOCKED,
    COMPUTE_OR_REST,
    CORES_BUSY,
    CPU,
    DATA_WAIT,
    DISK_READ,
    DISK_WRITTEN,
    GPU_MEMORY,
    GPU_POWER,
    GPU_USE,
    H2D,
    IDLE,
    LINK,
    MAX_RSS,
    NETWORK_RECEIVED,
    NETWORK_SENT,
    PRODUCE,
    QUEUE,
    SAMPLES_PER_SECOND,
    STEP_TIME,
    VALUE_MEAN,
    Columns,
    Floats,
    Key,
    Quantity,
    Rows,
    Table,
)
from headrace.insight.figures.figure import FIGURES
from headrace.insight.figures.loaders import without_warm_up
from headrace.insight.run_report import Report
from headrace.runs import Damage


class Line(msgspec.Struct, frozen=True):
    """One line of a chart.

    Attributes:
        name: what it shows, e.g. a loader or a group.
        group: instance group, empty for the whole job.
        values: one a bucket, None where nothing was measured.
        low, high: least and greatest of the records in each bucket; None where a chart has no such range.
        steps: of the training, the last one in each bucket; None where the records have none.
    """

    name: str
    group: str
    values: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    steps: list[float | None] | None = None


class Chart(msgspec.Struct, frozen=True):
    """One quantity over time.

    Attributes:
        name: which, e.g. ``step_time``.
        title, unit: for its axes; ``%``, ``ms``, ``1/s``, ``bytes``, ``bytes/s``, ``W``, ``batches``, ``CPUs``, or
            ``1`` for what a program printed.
        formula: how a bucket's value is computed.
        lines: its lines.
        stacked: they are parts of a whole: each is drawn on top of those before it.
    """

    name: str
    title: str
    unit: str
    formula: str
    lines: tuple[Line, ...]
    stacked: bool = False


class Metrics(msgspec.Struct, frozen=True):
    """The charts of one run over one stretch of time.

    Attributes:
        run_id: which run.
        start, end: the stretch, seconds since the epoch.
        width: seconds of a bucket.
        t: beginnings of the buckets.
        records: metric records of the whole run so far.
        charts: the charts; every line has one value for each of `t`.
        notes: what was not measured.
        damage: what of the run's files cannot be read, and is left out.
        until: when the job was over and its hosts were stopped, seconds since the epoch; None while it goes on.
    """

    run_id: str
    start: float
    end: float
    width: float
    t: list[float]
    records: int
    charts: tuple[Chart, ...]
    notes: tuple[str, ...]
    damage: tuple[Damage, ...] = ()
    until: float | None = None


REPORT_POINTS = 120
"""Buckets of a report's chart: one every four pixels."""


def report_charts(report: Report, columns: Columns) -> Metrics:
    """Returns the charts of a report: step time, data wait, CPU and GPU by group, as far as they were measured. Pure.

    Args:
        report: which run, and which is its main loader.
        columns: the metrics of that run.
    """
    start, end = (columns.first, columns.last) if columns.records else (report.created, report.created)
    grid = Grid.fitted(start, end, REPORT_POINTS)
    loader = report.training.loader if report.training is not None else None
    charts = (*_training(columns, grid, loader), *cpu_by_group(columns, grid), *gpu_by_group(columns, grid))
    return Metrics(report.run_id, start, end, grid.width, grid.times, columns.records, charts, ())


def _training(columns: Columns, grid: Grid, loader: str | None) -> Iterator[Chart]:
    """Yields step time and data wait of a loader over all its ranks, the warm-up left out."""
    ranks = list(without_warm_up(columns.loaders().get(loader or "", {})).values())
    for quantity, title in ((STEP_TIME, "Step time"), (DATA_WAIT, "Data wait")):
        formula = f"{quantity.ratio} of all ranks; range: over ranks and seconds"
        lines = [ranged(quantity, loader or "", "", ranks, grid)] if ranks else []
        yield from chart_of(quantity.name, title, quantity.unit, formula, lines)


DIGITS = 6  # significant, in the answer


def metrics(run_id: str, columns: Columns, grid: Grid, end: float) -> Metrics:
    """Returns all charts of a run.

    Args:
        run_id: which run.
        columns: its metrics.
        grid: the buckets.
        end: end of the stretch that was asked for, seconds since the epoch.
    """
    charts = tuple(chart for make in _CHARTS for chart in make(columns, grid))
    found = {chart.name for chart in charts}
    return Metrics(run_id, grid.start, end, grid.width, grid.times, columns.records, charts, _notes(columns, found))


def _notes(columns: Columns, found: set[str]) -> tuple[str, ...]:
    """Returns why charts are missing: nothing was measured at all, or not in this stretch of time."""
    if not columns.records:
        return (_NOTHING,)
    if not found:
        known = f"from {columns.first:.0f} s to {columns.last:.0f} s"
        return (f"nothing was recorded in this stretch; the run has records {known}",)
    there = {name: any(True for _ in columns.keys(kind)) for name, kind in _KINDS.items()}
    missing = tuple(
        f"{what}: no record in this stretch" if there.get(name) else f"{what}: {why}"
        for name, (what, why) in _MISSING.items()
        if name not in found and not (name == "workers" and "services" in found)  # workers of another kind
    )
    uncounted = "step_time" in found and "samples_per_second" not in found
    return (*missing, _NOT_COUNTED) if uncounted else missing


_SHORTEST, _LONGEST = (STEP_TIME._replace(over=f"steps * {field}") for field in ("step_min", "step_max"))
_NOTHING = "no metrics yet: agents and loaders write one record a second"
_NOT_COUNTED = "samples/s: the loader's batches do not tell how many samples they have"
_MISSING = {
    "step_time": (
        "step time, data wait, samples/s",
        "no loader reported; use headrace.feed.DataLoader or headrace.track",
    ),
    "gpu": ("GPU", "none was measured on these hosts"),
    "queue": ("queue depth", "no loader reported it"),
    "workers": ("executors", "no data worker reported how it spent its time"),
}

_KINDS = {"step_time": "loader", "workers": "worker"}
"""Of which records the charts are that have any value as soon as there is a record."""


def _groups(columns: Columns, kind: str) -> dict[str, list[Table]]:
    """Returns every instance group with the tables of its hosts, their GPUs or programs."""
    groups: dict[str, list[Table]] = {}
    for key, table in columns.tables(kind).items():
        groups.setdefault(key.stream.group, []).append(table)
    return groups


def _loaders(columns: Columns) -> dict[str, list[Table]]:
    """Returns every loader with the tables of its ranks."""
    return {name: list(ranks.values()) for name, ranks in sorted(columns.loaders().items())}


def _pooled(rows: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _mean(quantity: Quantity, tables: Sequence[Table], grid: Grid) -> Floats:
    """Returns a quantity over all its streams, in each bucket."""
    t, over, under = _pooled([quantity.rows(table) for table in tables])
    return quantity.scale * ratio(grid, t, over, under)


def _added(quantity: Quantity, tables: Sequence[Table], grid: Grid) -> Floats:
    """Returns a quantity added over the streams that told it in each bucket: how many did, times their mean."""
    return present(grid, [quantity.rows(table).t for table in tables]) * _mean(quantity, tables, grid)


def ranged(quantity: Quantity, name: str, group: str, tables: Sequence[Table], grid: Grid) -> Line:
    """Returns the line of a quantity over some streams, with the least and greatest of their rows."""
    t, each, _ = _pooled([quantity.each(table) for table in tables])
    return line_of(name, group, _mean(quantity, tables, grid), *extremes(grid, t, each, each))


def _step_time(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = []
    for name, ranks in _loaders(columns).items():
        shortest, longest = (_pooled([of.each(rank) for rank in ranks]) for of in (_SHORTEST, _LONGEST))
        low, high = extremes(grid, shortest.t, shortest.over, longest.over)
        lines.append(line_of(name, "", _mean(STEP_TIME, ranks, grid), low, high))
    formula = f"{STEP_TIME.ratio} of all ranks; range: shortest and longest step"
    yield from chart_of("step_time", "Step time", "ms", formula, lines)


def _step_shares(columns: Columns, grid: Grid) -> Iterator[Chart]:
    loaders = _loaders(columns)
    many = len(loaders) > 1
    parts = {"data wait": DATA_WAIT, "host to device": H2D, "compute": COMPUTE_OR_REST}
    lines = [
        line_of(f"{words} of {name}" if many else words, "", _mean(part, ranks, grid))
        for name, ranks in loaders.items()
        for words, part in parts.items()
    ]
    formula = "100 * sum(wait, h2d or compute) / sum(step) of all ranks; compute, if not measured: the rest of the step"
    for chart in chart_of("step_shares", "Where a step goes", "%", formula, lines):
        yield msgspec.structs.replace(chart, stacked=not many)


def _samples(columns: Columns, grid: Grid) -> Iterator[Chart]:
    # Batches without rows were not counted: that is no rate of 0.
    loaders = _loaders(columns).items()
    counted = {name: ranks for name, ranks in loaders if any(rank["samples"].any() for rank in ranks)}
    lines = [line_of(name, "", _added(SAMPLES_PER_SECOND, ranks, grid)) for name, ranks in counted.items()]
    formula = f"ranks * {SAMPLES_PER_SECOND.ratio}"
    yield from chart_of("samples_per_second", "Samples/s", "1/s", formula, lines)


def _queue(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = [ranged(QUEUE, name, "", ranks, grid) for name, ranks in _loaders(columns).items()]
    formula = f"{QUEUE.ratio}: batches ready when next() is called, mean; range: over ranks and seconds"
    yield from chart_of("queue", "Queue depth", "batches", formula, lines)


def cpu_by_group(columns: Columns, grid: Grid) -> Iterator[Chart]:
    """Yields how busy each group's CPU cores were."""
    lines = [ranged(CPU, group, group, hosts, grid) for group, hosts in _groups(columns, "host").items()]
    formula = f"{FIGURES['cpu'].formula}; range: over hosts and seconds"
    yield from chart_of("cpu", "CPU by group", "%", formula, lines)


def gpu_by_group(columns: Columns, grid: Grid) -> Iterator[Chart]:
    """Yields how busy each group's GPUs were."""
    lines = [ranged(GPU_USE, group, group, gpus, grid) for group, gpus in _groups(columns, "gpu").items()]
    formula = f"{FIGURES['gpu_use'].formula}; range: over GPUs and seconds"
    yield from chart_of("gpu", "GPU by group", "%", formula, lines)


def _gpu_memory(columns: Columns, grid: Grid) -> Iterator[Chart]:
    formula = "memory in use on the group's GPUs, mean over the seconds, added over hosts"
    in_use = GPU_MEMORY._replace(under="one", scale=1)
    yield from chart_of("gpu_memory", "GPU memory", "bytes", formula, _sums(columns, grid, "gpu", in_use))
    power = FIGURES["gpu_power"].formula
    yield from chart_of("gpu_power", "GPU power", "W", power, _sums(columns, grid, "gpu", GPU_POWER))


def _sums(columns: Columns, grid: Grid, kind: str, quantity: Quantity, name: str = "{}") -> Iterator[Line]:
    """Yields a quantity of each group, added over its hosts or GPUs."""
    for group, tables in _groups(columns, kind).items():
        yield line_of(name.format(group), group, _added(quantity, tables, grid))


def _bytes(columns: Columns, grid: Grid) -> Iterator[Chart]:
    taken, sent = SAMPLES_PER_SECOND._replace(over="bytes"), LINK._replace(over="sent", scale=1)
    lines = [
        line_of(f"into loader {name}", "", _added(taken, ranks, grid)) for name, ranks in _loaders(columns).items()
    ]
    for group, workers in _groups(columns, "worker").items():
        if any(np.any(worker["sent"] > 0) for worker in workers):
            lines.append(line_of(f"feed of {group}, sent", group, _added(sent, workers, grid)))
    lines += _sums(columns, grid, "host", NETWORK_RECEIVED, "{} received")
    lines += _sums(columns, grid, "host", NETWORK_SENT, "{} sent")
    formula = (
        "loader: ranks * sum(bytes) / sum(step); feed: bytes sent through TCP, headings included, / seconds, added "
        "over the feed servers; group: growth of the hosts' network counters / seconds, added over hosts"
    )
    yield from chart_of("bytes_per_second", "Bytes/s", "bytes/s", formula, lines)


def _workers(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = [
        line_of(f"{group}: {part.name}", group, _mean(part, workers, grid))
        for group, workers in _groups(columns, "worker").items()
        for part in (PRODUCE, BLOCKED, IDLE)
    ]
    formula = "100 * sum(produce, blocked or idle) / sum(executors * seconds)"
    yield from chart_of("workers", "Data workers: what executors do", "%", formula, lines)


def _services(columns: Columns, grid: Grid) -> Iterator[Chart]:
    parts: dict[tuple[str, str], list[Table]] = {}
    for key, table in columns.tables("service").items():
        parts.setdefault((key.stream.group, key.name), []).append(table)
    lines = [
        line_of(f"{group}: {role}", group, _added(CORES_BUSY, servers, grid))
        for (group, role), servers in parts.items()
    ]
    yield from chart_of("services", "tf.data.service: CPUs busy", "CPUs", FIGURES["cores_busy"].formula, lines)


def _memory(columns: Columns, grid: Grid) -> Iterator[Chart]:
    formula = "resident bytes of all processes, mean over the seconds, added over hosts"
    yield from chart_of("memory", "Memory by group", "bytes", formula, _sums(columns, grid, "host", MAX_RSS))


def _disk(columns: Columns, grid: Grid) -> Iterator[Chart]:
    read = _sums(columns, grid, "host", DISK_READ, "{} read")
    lines = [*read, *_sums(columns, grid, "host", DISK_WRITTEN, "{} written")]
    formula = "growth of the counters of the hosts' processes / seconds, added over hosts"
    yield from chart_of("disk", "Disk", "bytes/s", formula, lines)


def _values(columns: Columns, grid: Grid) -> Iterator[Chart]:
    names: dict[str, list[Key]] = {}
    for key in columns.keys("value"):
        names.setdefault(key.name, []).append(key)
    for name, keys in names.items():
        lines = []
        for key in keys:
            table = columns.table(key)
            low, high = extremes(grid, table["t"], table["low"], table["high"])
            mean = _mean(VALUE_MEAN, [table], grid)
            line = line_of(f"rank {key.source}", key.stream.group, *map(_held, (mean, low, high)))
            steps = _plain(extremes(grid, table["t"], table["step"], table["step"])[1])
            told = any(step is not None for step in steps)
            lines.append(msgspec.structs.replace(line, steps=steps) if told else line)
        formula = "mean of what was found or logged, until the next one comes; range: least and greatest"
        yield from chart_of(f"value:{name}", name, "1", formula, lines)


_CHARTS: tuple[Callable[[Columns, Grid], Iterator[Chart]], ...] = (
    cpu_by_group, _step_shares, gpu_by_group, _step_time, _queue, _bytes, _samples, _workers, _services, _memory,
    _gpu_memory, _disk, _values,
)  # fmt: skip


def _held(values: Floats) -> Floats:
    """Returns values of which each stands until the next one comes: a line through buckets of which few have one."""
    place = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(place < 0, np.nan, values[place])


def chart_of(name: str, title: str, unit: str, formula: str, lines: Iterable[Line]) -> Iterator[Chart]:
    """Yields the chart with the lines that have a value; nothing when none has."""
    kept = tuple(line for line in lines if any(value is not None for value in line.values))
    if kept:
        yield Chart(name, title, unit, formula, kept)


def line_of(name: str, group: str, values: Floats, low: Floats | None = None, high: Floats | None = None) -> Line:
    """Returns a line: NaN becomes None, and numbers keep `DIGITS` digits."""
    return Line(
        name, group, _plain(values), None if low is None else _plain(low), None if high is None else _plain(high)
    )


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values.tolist()]


MOST_POINTS = 2000
"""Buckets in one answer, at most."""

WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Round stretches of time, seconds."""


def width_for(seconds: float, points: int) -> float:
    """Returns the least round width, 1 s or more, in which so many buckets cover a stretch of time.

    >>> width_for(90, 100), width_for(36_000, 600)
    (1.0, 60.0)
    """
    wanted = seconds / max(1, points)
    return float(next((width for width in WIDTHS if width >= wanted), np.ceil(wanted / 86400) * 86400))


@dataclass(frozen=True)
class Grid:
    """Buckets of equal width.

    Attributes:
        start: beginning of the first, seconds since the epoch.
        width: seconds.
        count: how many.
    """

    start: float
    width: float
    count: int

    @classmethod
    def over(cls, start: float, end: float, points: int = 600) -> Grid:
        """Returns the grid on round times that covers ``[start, end]`` with at most `points` buckets and one more.

        The width is round, too, so that the buckets stay the same ones while a run grows.
        """
        points = max(1, min(points, MOST_POINTS - 1))
        width = width_for(max(0.0, end - start), points)
        first = float(np.floor(start / width) * width)
        return cls(first, width, int((end - first) // width) + 1)

    @classmethod
    def fitted(cls, start: float, end: float, points: int) -> Grid:
        """Returns the grid of at most `points` buckets, 1 s wide or more, that begins at `start` and takes `end`, too.

        No bucket reaches beyond a long stretch: for an axis that begins and ends with it.
        """
        width = max(1.0, (end - start) / points * (1 + 1e-9))  # a little more, so that `end` is in the last one
        return cls(start, width, int((end - start) // width) + 1)

    @property
    def times(self) -> list[float]:
        """Beginnings of the buckets."""
        return [self.start + index * self.width for index in range(self.count)]

    def index(self, t: Floats) -> npt.NDArray[np.int64]:
        """Returns the bucket of each time; -1 outside the grid."""
        found = np.floor((t - self.start) / self.width)
        inside = (found >= 0) & (found < self.count)
        return np.where(inside, found, -1).astype(np.int64)


def sums(grid: Grid, t: Floats, values: Floats) -> Floats:
    """Returns the sum of each bucket; 0 where there is no row. Rows that are NaN count as 0."""
    index = grid.index(t)
    kept = index >= 0
    weights = np.nan_to_num(values[kept], nan=0.0)
    return np.asarray(np.bincount(index[kept], weights, grid.count), dtype=np.float64)


def ratio(grid: Grid, t: Floats, above: Floats, below: Floats) -> Floats:
    """Returns sum(above) / sum(below) of each bucket over the rows where both were measured; NaN without any."""
    both = ~(np.isnan(above) | np.isnan(below))
    numerator, denominator = sums(grid, t[both], above[both]), sums(grid, t[both], below[both])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def extremes(grid: Grid, t: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Returns the least of `low` and the greatest of `high` in each bucket; NaN without any."""
    index = grid.index(t)
    kept = (index >= 0) & ~np.isnan(low) & ~np.isnan(high)
    index, low, high = index[kept], low[kept], high[kept]
    least, greatest = np.full(grid.count, np.nan), np.full(grid.count, np.nan)
    if index.size:
        order = np.argsort(index, kind="stable")
        index = index[order]
        starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
        least[index[starts]] = np.minimum.reduceat(low[order], starts)
        greatest[index[starts]] = np.maximum.reduceat(high[order], starts)
    return least, greatest


def present(grid: Grid, streams: Sequence[Floats]) -> Floats:
    """Returns how many of some streams wrote in each bucket.

    A stream writes about once a second, so a bucket of a second may fall between two of its rows: one that wrote in
    the bucket before or after counts, too.
    """
    count = np.zeros(grid.count)
    for t in streams:
        index = grid.index(t)
        here = np.zeros(grid.count, dtype=bool)
        here[index[index >= 0]] = True
        if grid.width < 3:
            here = here | np.r_[here[1:], False] | np.r_[False, here[:-1]]
        count += here
    return count
