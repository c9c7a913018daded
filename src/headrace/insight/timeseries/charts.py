"""What a run did over time: charts of a few hundred points, whatever its length. Pure: columns in, charts out.

`headrace metrics RUN --output json` prints it, and the job page draws it. A chart says how its values are computed;
one without any measured value is left out, and a note says so.

The few that stand in a report and in a comparison are those that the verdict is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from headrace.insight.figures.figure import WARM_UP_RECORDS
from headrace.insight.reports.run_report import Report
from headrace.insight.timeseries.buckets import Floats, Grid, extremes, present, ratio
from headrace.insight.timeseries.chart_data import Chart, Line, Metrics
from headrace.insight.timeseries.columns import Columns, Key
from headrace.runs import MetricFollower, Run

MOST_POINTS = 120
"""Buckets of a report's chart: one every four pixels."""


def read_charts(run: Run, report: Report) -> Metrics:
    """Reads the metrics of a run and returns the charts of its report."""
    columns = Columns()
    columns.take(MetricFollower(run.paths, run.on_damage).poll())
    return report_charts(report, columns)


def report_charts(report: Report, columns: Columns) -> Metrics:
    """Returns the charts of a report: step time, data wait, CPU and GPU by group, as far as they were measured. Pure.

    Args:
        report: which run, and which is its main loader.
        columns: the metrics of that run.
    """
    start, end = (columns.first, columns.last) if columns.records else (report.created, report.created)
    grid = Grid.fitted(start, end, MOST_POINTS)
    loader = report.training.loader if report.training is not None else None
    charts = (*_training(columns, grid, loader), *cpu_by_group(columns, grid), *gpu_by_group(columns, grid))
    return Metrics(report.run_id, start, end, grid.width, grid.times, columns.records, charts, ())


def _training(columns: Columns, grid: Grid, loader: str | None) -> Iterator[Chart]:
    """Yields step time and data wait of a loader over all its ranks, the warm-up left out."""
    for name, ranks in loaders(columns):
        if name == loader:
            warm = [{field: column[WARM_UP_RECORDS:] for field, column in rank.items()} for rank in ranks]
            t, steps, step, wait = pool(warm, "t", "steps", "step", "wait")
            formula = "1000 * sum(step) / sum(steps) of all ranks; range: over ranks and seconds"
            yield from _ratio("step_time", "Step time", "ms", formula, name, grid, t, 1000 * step, steps)
            formula = "100 * sum(wait) / sum(step) of all ranks; range: over ranks and seconds"
            yield from _ratio("data_wait", "Data wait", "%", formula, name, grid, t, 100 * wait, step)


def _ratio(
    name: str, title: str, unit: str, formula: str, loader: str, grid: Grid, t: Floats, above: Floats, below: Floats
) -> Iterator[Chart]:
    """Yields above / below, summed up by bucket; a record without a step has no value."""
    some = below > 0
    t, above, below = t[some], above[some], below[some]
    low, high = extremes(grid, t, above / below, above / below)
    yield from chart_of(name, title, unit, formula, [line_of(loader, "", ratio(grid, t, above, below), low, high)])


DIGITS = 6  # significant, in the answer

Rate = tuple[Floats, Floats, Floats]
"""Of one stream, row by row: times, and the numerator and denominator of a rate. What was not measured is NaN."""


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


def loaders(columns: Columns) -> Iterator[tuple[str, list[dict[str, Floats]]]]:
    """Yields every loader with the tables of its ranks."""
    names: dict[str, list[Key]] = {}
    for key in columns.keys("loader"):
        names.setdefault(key.name, []).append(key)
    for name, keys in names.items():
        yield name, [columns.table(key) for key in keys]


def _groups(columns: Columns, kind: str) -> Iterator[tuple[str, list[dict[str, Floats]]]]:
    """Yields every instance group with the tables of its hosts or programs."""
    groups: dict[str, list[Key]] = {}
    for key in columns.keys(kind):
        groups.setdefault(key.stream.group, []).append(key)
    for name, keys in groups.items():
        yield name, [columns.table(key) for key in keys]


def pool(tables: list[dict[str, Floats]], *names: str) -> list[Floats]:
    """Returns columns of several tables, each table's rows after those of the one before."""
    return [np.concatenate([table[name] for table in tables]) for name in names]


def _step_time(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = []
    for name, ranks in loaders(columns):
        t, steps, step, least, most = pool(ranks, "t", "steps", "step", "step_min", "step_max")
        timed = steps > 0
        low, high = extremes(grid, t[timed], 1000 * least[timed], 1000 * most[timed])
        lines.append(line_of(name, "", 1000 * ratio(grid, t, step, steps), low, high))
    formula = "1000 * sum(step) / sum(steps) of all ranks; range: shortest and longest step"
    yield from chart_of("step_time", "Step time", "ms", formula, lines)


def _step_shares(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = []
    many = sum(1 for _ in loaders(columns)) > 1
    for name, ranks in loaders(columns):
        t, step, wait, h2d, compute = pool(ranks, "t", "step", "wait", "h2d", "compute")
        rest = np.maximum(0, step - wait - np.nan_to_num(h2d, nan=0.0))
        parts = {"data wait": wait, "host to device": h2d, "compute": np.where(np.isnan(compute), rest, compute)}
        for words, part in parts.items():
            lines.append(line_of(f"{words} of {name}" if many else words, "", 100 * ratio(grid, t, part, step)))
    formula = "100 * sum(wait, h2d or compute) / sum(step) of all ranks; compute, if not measured: the rest of the step"
    for chart in chart_of("step_shares", "Where a step goes", "%", formula, lines):
        yield msgspec.structs.replace(chart, stacked=not many)


def _samples(columns: Columns, grid: Grid) -> Iterator[Chart]:
    # Batches without rows were not counted: that is no rate of 0.
    counted = [(name, ranks) for name, ranks in loaders(columns) if any(rank["samples"].any() for rank in ranks)]
    lines = [line_of(name, "", _added(grid, _loader_rates(ranks, "samples"))) for name, ranks in counted]
    yield from chart_of("samples_per_second", "Samples/s", "1/s", "ranks * sum(samples) / sum(step)", lines)


def _loader_rates(ranks: list[dict[str, Floats]], field: str) -> list[Rate]:
    return [(rank["t"], rank[field], rank["step"]) for rank in ranks]


def _added(grid: Grid, rates: list[Rate]) -> Floats:
    """Returns a rate, added over the streams that told it in each bucket: how many did, times their mean."""
    t, above, below = (np.concatenate(column) for column in zip(*rates, strict=True))
    told = [times[~(np.isnan(over) | np.isnan(under))] for times, over, under in rates]
    return present(grid, told) * ratio(grid, t, above, below)


def _queue(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = []
    for name, ranks in loaders(columns):
        t, queue, steps = pool(ranks, "t", "queue", "steps")
        low, high = extremes(grid, t, queue, queue)
        lines.append(
            line_of(name, "", ratio(grid, t, queue * steps, np.where(np.isnan(queue), np.nan, steps)), low, high)
        )
    formula = (
        "sum(queue * steps) / sum(steps): batches ready when next() is called, mean; range: over ranks and seconds"
    )
    yield from chart_of("queue", "Queue depth", "batches", formula, lines)


def _growth(table: dict[str, Floats], field: str, per: str = "") -> Rate:
    """Returns times, growth and seconds from each row to the next one; a counter that began anew is left out.

    Args:
        table: rows of one host or server.
        field: the counter.
        per: column by which the seconds are multiplied; empty for none.
    """
    t = table["t"]
    seconds, growth = np.diff(t), np.diff(table[field])
    kept = (seconds > 0) & (growth >= 0)
    if "restarts" in table:
        kept &= np.diff(table["restarts"]) == 0
    many = table[per][1:][kept] if per else 1.0
    return t[1:][kept], growth[kept], seconds[kept] * many


def cpu_by_group(columns: Columns, grid: Grid) -> Iterator[Chart]:
    """Yields how busy each group's CPU cores were."""
    lines = []
    for group, hosts in _groups(columns, "host"):
        parts = [_growth(host, "cpu", "cores") for host in hosts]
        t, used, available = (np.concatenate(column) for column in zip(*parts, strict=True))
        shares = 100 * used / available
        low, high = extremes(grid, t, shares, shares)
        lines.append(line_of(group, group, 100 * ratio(grid, t, used, available), low, high))
    formula = (
        "100 * CPU seconds of all processes of the group's hosts / (seconds * cores that they may use); "
        "range: over hosts and seconds"
    )
    yield from chart_of("cpu", "CPU by group", "%", formula, lines)


def gpu_by_group(columns: Columns, grid: Grid) -> Iterator[Chart]:
    """Yields how busy each group's GPUs were."""
    lines = []
    for group, hosts in _groups(columns, "host"):
        t, gpus, use, least, most = pool(hosts, "t", "gpus", "use", "use_min", "use_max")
        low, high = extremes(grid, t, least, most)
        lines.append(
            line_of(group, group, ratio(grid, t, use * gpus, np.where(np.isnan(use), np.nan, gpus)), low, high)
        )
    formula = (
        "mean over the group's GPUs and seconds of NVML's utilisation (share of time in which a kernel ran); "
        "range: over GPUs and seconds"
    )
    yield from chart_of("gpu", "GPU by group", "%", formula, lines)


def _gpu_memory(columns: Columns, grid: Grid) -> Iterator[Chart]:
    formula = "memory in use on the group's GPUs, mean over the seconds, added over hosts"
    yield from chart_of("gpu_memory", "GPU memory", "bytes", formula, _levels(columns, grid, "gpu_memory"))
    formula = "power of the group's GPUs, mean over the seconds, added over hosts"
    yield from chart_of("gpu_power", "GPU power", "W", formula, _levels(columns, grid, "power"))


def _levels(columns: Columns, grid: Grid, field: str) -> Iterator[Line]:
    """Yields for each group the mean of a level, added over its hosts."""
    for group, hosts in _groups(columns, "host"):
        levels = [(host["t"], host[field], np.ones_like(host["t"])) for host in hosts]
        yield line_of(group, group, _added(grid, levels))


def _bytes(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = [
        line_of(f"into loader {name}", "", _added(grid, _loader_rates(ranks, "bytes")))
        for name, ranks in loaders(columns)
    ]
    for group, workers in _groups(columns, "worker"):
        if any(np.any(worker["sent"] > 0) for worker in workers):
            rates = [(worker["t"], worker["sent"], worker["seconds"]) for worker in workers]
            lines.append(line_of(f"feed of {group}, sent", group, _added(grid, rates)))
    for field, words in (("received", "received"), ("sent", "sent")):
        lines += [line_of(f"{group} {words}", group, rate) for group, rate in _host_rates(columns, grid, field)]
    formula = (
        "loader: ranks * sum(bytes) / sum(step); feed: bytes sent through TCP, headings included, / seconds, added "
        "over the feed servers; group: growth of the hosts' network counters / seconds, added over hosts"
    )
    yield from chart_of("bytes_per_second", "Bytes/s", "bytes/s", formula, lines)


def _host_rates(columns: Columns, grid: Grid, field: str) -> Iterator[tuple[str, Floats]]:
    for group, hosts in _groups(columns, "host"):
        yield group, _added(grid, [_growth(host, field) for host in hosts])


def _workers(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = []
    for group, workers in _groups(columns, "worker"):
        t, seconds, executors = pool(workers, "t", "seconds", "executors")
        for part in ("produce", "blocked", "idle"):
            shares = 100 * ratio(grid, t, pool(workers, part)[0], executors * seconds)
            lines.append(line_of(f"{group}: {part}", group, shares))
    formula = "100 * sum(produce, blocked or idle) / sum(executors * seconds)"
    yield from chart_of("workers", "Data workers: what executors do", "%", formula, lines)


def _services(columns: Columns, grid: Grid) -> Iterator[Chart]:
    parts: dict[tuple[str, str], list[dict[str, Floats]]] = {}
    for key in columns.keys("service"):
        parts.setdefault((key.stream.group, key.name), []).append(columns.table(key))
    lines = []
    for (group, role), servers in parts.items():
        busy = _added(grid, [_growth(server, "cpu") for server in servers])
        lines.append(line_of(f"{group}: {role}", group, busy))
    formula = "CPU seconds of the servers / seconds, added over them"
    yield from chart_of("services", "tf.data.service: CPUs busy", "CPUs", formula, lines)


def _memory(columns: Columns, grid: Grid) -> Iterator[Chart]:
    formula = "resident bytes of all processes, mean over the seconds, added over hosts"
    yield from chart_of("memory", "Memory by group", "bytes", formula, _levels(columns, grid, "rss"))


def _disk(columns: Columns, grid: Grid) -> Iterator[Chart]:
    lines = [
        line_of(f"{group} {words}", group, rate)
        for field, words in (("read", "read"), ("written", "written"))
        for group, rate in _host_rates(columns, grid, field)
    ]
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
            mean = ratio(grid, table["t"], table["total"], table["count"])
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
