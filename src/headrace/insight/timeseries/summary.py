"""The few charts that stand in a report and in a comparison: those that the verdict is made of.

They tell of the main loader after its warm-up, as the report's figures do, and of the groups' CPUs and GPUs. The range
is over the records, one a second and rank: that of `headrace.insight.timeseries.charts` is over single steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.insight.figures.figure import WARM_UP_RECORDS
from headrace.insight.reports.run_report import Report
from headrace.insight.timeseries.buckets import Floats, Grid, extremes, ratio
from headrace.insight.timeseries.chart_data import Chart, Metrics
from headrace.insight.timeseries.charts import chart_of, cpu_by_group, gpu_by_group, line_of, loaders, pool
from headrace.insight.timeseries.columns import Columns
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
