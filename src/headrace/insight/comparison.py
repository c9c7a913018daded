"""Two or more runs side by side: every figure with its spread and its ratio to the first run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import UsageError
from headrace.insight.figures import FORMULAS, Figure, missing
from headrace.insight.reporting import Report
from headrace.runs import Status


class ComparedRun(msgspec.Struct, frozen=True):
    """One column: which run."""

    run_id: str
    job_name: str
    status: Status
    degraded: bool


class Cell(msgspec.Struct, frozen=True):
    """One figure of one run.

    Attributes:
        figure: the figure.
        ratio: its value / that of the first run; None when one of them is missing or the first is 0.
    """

    figure: Figure
    ratio: float | None


class Row(msgspec.Struct, frozen=True):
    """One figure of all runs.

    Attributes:
        name: which figure; the comparison's `formulas` say how it is computed.
        group: instance group, empty for a figure of the whole job.
        unit: unit of the values.
        cells: one a run, in the order of the runs.
    """

    name: str
    group: str
    unit: str
    cells: tuple[Cell, ...]


class Comparison(msgspec.Struct, frozen=True):
    """Runs side by side.

    Attributes:
        runs: the columns; the first is what the others are compared with.
        rows: the figures.
        notes: what a reader must know before he believes the ratios.
        formulas: how every figure is computed.
    """

    runs: tuple[ComparedRun, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    formulas: dict[str, str]


def compare(reports: Sequence[Report]) -> Comparison:
    """Compares the reports of two or more runs. Pure.

    Raises:
        UsageError: if there are fewer than two.
    """
    if len(reports) < 2:
        raise UsageError(
            f"a comparison needs two runs or more, not {len(reports)}",
            hint="for example `headrace compare homogeneous heterogeneous`",
        )
    names = list(dict.fromkeys(group.name for report in reports for group in report.groups))
    rows = [
        _row("time_to_train", [report.time_to_train for report in reports]),
        _row("step_time", [_training(report, "step_time", "ms") for report in reports]),
        _row("samples_per_second", [_training(report, "samples_per_second", "1/s") for report in reports]),
        _row("data_wait", [_training(report, "data_wait", "%") for report in reports]),
        *(_row("cpu", [_cpu(report, name) for report in reports], group=name) for name in names),
    ]
    return Comparison(
        runs=tuple(ComparedRun(r.run_id, r.job_name, r.status, r.degraded) for r in reports),
        rows=tuple(rows),
        notes=tuple(_notes(reports)),
        formulas={**FORMULAS, "ratio": "value / value of the first run"},
    )


def _training(report: Report, name: str, unit: str) -> Figure:
    if report.training is None:
        return missing(name, unit, "no loader metrics")
    figure = getattr(report.training, name)
    assert isinstance(figure, Figure)
    return figure


def _cpu(report: Report, group: str) -> Figure:
    for found in report.groups:
        if found.name == group:
            return found.cpu
    return missing("cpu", "%", "no such group in this run")


def _row(name: str, figures: list[Figure], group: str = "") -> Row:
    first = figures[0].value
    cells = [Cell(figure, figure.value / first if first and figure.value is not None else None) for figure in figures]
    return Row(name, group, figures[0].unit, tuple(cells))


def _notes(reports: Sequence[Report]) -> list[str]:
    notes = list(dict.fromkeys(f"{report.run_id}: {note}" for report in reports for note in report.notes))
    notes += [
        f"{report.run_id} is {report.status.value}: its figures do not stand for a whole training"
        for report in reports
        if report.status is not Status.COMPLETED
    ]
    loaders = {report.training.loader for report in reports if report.training is not None}
    if len(loaders) > 1:
        notes.append(f"the runs' main loaders have different names: {', '.join(sorted(loaders))}")
    samples = [r.training.samples.value for r in reports if r.training is not None]
    if len(set(samples)) > 1:
        notes.append(
            "the runs trained on different numbers of samples: "
            + ", ".join(
                f"{r.run_id} {r.training.samples.value:.0f}"
                for r in reports
                if r.training and r.training.samples.value is not None
            )
        )
    return notes
