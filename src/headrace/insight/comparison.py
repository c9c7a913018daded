"""Two or more runs side by side: every figure, its spread, its ratio to the first run, and whether that is noise."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import UsageError
from headrace.insight.billing import origin
from headrace.insight.figures.figure import FORMULAS, Figure, as_noisy, differ, figure_of, missing
from headrace.insight.figures.host_usage import GroupReport
from headrace.insight.run_report import Report
from headrace.insight.verdict import Verdict
from headrace.runs import Status

_NO_METRICS = "no loader metrics"
NOT_KNOWN = "not known: too few independent seconds"
"""Said of a figure that has noise of which too little is known."""

_NOISY = frozenset(
    {"step_time", "samples_per_second", "data_wait", "cpu", "gpu_use", "cost_per_1000_samples", "cost_per_step"}
)
"""Figures that are means of seconds; the others have one value a run."""

_A_SECOND = frozenset({"samples_per_second"})
"""Figures that are compared by their reciprocal, the time of a sample: they agree with the step time and the costs."""


class ComparedRun(msgspec.Struct, frozen=True):
    """One column: which run, and what limited it.

    Attributes:
        run_id, job_name, status, degraded: which run.
        verdict: what limits it.
        started: when its programs were told to start, seconds since the epoch; None if they were not.
    """

    run_id: str
    job_name: str
    status: Status
    degraded: bool
    verdict: Verdict
    started: float | None


class Cell(msgspec.Struct, frozen=True):
    """One figure of one run.

    Attributes:
        figure: the figure.
        ratio: its value / that of the first run; None when one of them is missing or the first is 0.
        differs: whether it differs from the first run's beyond the noise of the steps, with 95 % confidence; None where
            that is not known, and in the first run.
        noise: why `differs` is not known of a figure that has noise; empty otherwise.
    """

    figure: Figure
    ratio: float | None
    differs: bool | None = None
    noise: str = ""


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
        summary: what changed, one sentence a run and figure.
        rows: the figures.
        notes: what a reader must know before he believes the ratios.
        formulas: how every figure is computed.
    """

    runs: tuple[ComparedRun, ...]
    summary: tuple[str, ...]
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
    known = [_figures(report) for report in reports]
    groups = dict.fromkeys(group.name for report in reports for group in report.groups)
    wanted = [*((name, "") for name in _OF_RUNS), *(("cpu", group) for group in groups)]
    more = [(name, group) for name in ("cpu_per_1000_samples", "others", "gpu_use") for group in groups]
    wanted += [of for of in more if any(of in figures and figures[of].value is not None for figures in known)]
    wanted += [(name, "") for name in _OF_COSTS]
    rows = tuple(
        _row(name, [each.get((name, group)) or _absent(name, group) for each in known], group) for name, group in wanted
    )
    return Comparison(
        runs=tuple(ComparedRun(r.run_id, r.job_name, r.status, r.degraded, r.verdict, r.started) for r in reports),
        summary=tuple(_summary(reports, {row.name: row for row in rows if not row.group})),
        rows=rows,
        notes=tuple(_notes(reports)),
        formulas={
            **FORMULAS,
            "ratio": "value / value of the first run",
            "differs": (
                "|a - b| > t95(v) * sqrt(error_a^2 + error_b^2), with the standard errors of `confidence` and Welch's "
                "degrees of freedom v; samples/s are compared by their reciprocal, the errors of costs are those of "
                "the step time or of samples/s; null with fewer than 8 seconds or 2 degrees of freedom in a run"
            ),
        },
    )


_OF_RUNS = ("time_to_train", "step_time", "samples_per_second", "data_wait")
_OF_COSTS = ("cost_per_hour", "cost_per_1000_samples", "cost_per_step", "cost")

_NOISE_OF = {"cost_per_1000_samples": "samples_per_second", "cost_per_step": "step_time"}
"""The figures of the training that bring the noise of costs."""


def _absent(name: str, group: str) -> Figure:
    why = "plan.json, which names the instance types, cannot be read" if name in _OF_COSTS else _NO_METRICS
    return missing(name, "no such group in this run" if group else why)


def _figures(report: Report) -> dict[tuple[str, str], Figure]:
    """Returns the figures of a report by name and group; costs with the noise of the figures that they follow from, and
    what samples cost of a group's CPU."""
    figures = report.figures()
    for name, source in _NOISE_OF.items():
        figure, origin_of = figures.get((name, "")), figures.get((source, ""))
        if figure is not None and figure.value is not None and origin_of is not None and origin_of.value is not None:
            noise = as_noisy(figure.value, origin_of.value, origin_of.confidence)
            figures[name, ""] = msgspec.structs.replace(figure, confidence=noise)
    rate = figures.get(("samples_per_second", ""))
    for group in report.groups:
        figures["cpu_per_1000_samples", group.name] = _cpu_of_samples(group, None if rate is None else rate.value)
    return figures


def _cpu_of_samples(group: GroupReport, rate: float | None) -> Figure:
    """What a group's hosts spend on 1,000 samples: other programs make it no greater, however long they make a step."""
    name = "cpu_per_1000_samples"
    if group.cpu.value is None or group.cores is None or not rate:
        return missing(name, group.cpu.note if group.cpu.value is None else _NO_METRICS)
    return figure_of(name, 1000 * group.cpu.value / 100 * group.cores / rate, group.cpu.window)


def _row(name: str, figures: list[Figure], group: str = "") -> Row:
    first = figures[0]
    cells = [Cell(first, 1.0 if first.value else None)]
    for figure in figures[1:]:
        ratio = figure.value / first.value if first.value and figure.value is not None else None
        differs = _differs(first, figure)
        unknown = differs is None and ratio is not None and name in _NOISY
        cells.append(Cell(figure, ratio, differs, NOT_KNOWN if unknown else ""))
    return Row(name, group, first.unit, tuple(cells))


def _differs(first: Figure, other: Figure) -> bool | None:
    if first.value is None or other.value is None or first.confidence is None or other.confidence is None:
        return None
    if first.name not in _A_SECOND:
        return differ(first.value, first.confidence, other.value, other.confidence)
    if not first.value or not other.value:
        return None
    a, b = 1 / first.value, 1 / other.value
    known_a, known_b = as_noisy(a, first.value, first.confidence), as_noisy(b, other.value, other.confidence)
    return None if known_a is None or known_b is None else differ(a, known_a, b, known_b)


def _summary(reports: Sequence[Report], rows: dict[str, Row]) -> list[str]:
    found = []
    for index, report in enumerate(reports[1:], start=1):
        for name, what in (("step_time", "a step"), ("cost_per_1000_samples", "1,000 samples")):
            cell = rows[name].cells[index]
            if cell.ratio is None or cell.ratio <= 0:
                continue
            less = cell.ratio < 1
            if name == "step_time":
                how = f"{1 / cell.ratio:.2f} times as fast" if less else f"{cell.ratio:.2f} times as long"
            else:
                how = f"{100 * abs(1 - cell.ratio):.1f} % {'cheaper' if less else 'dearer'}"
            words = {
                True: f"{how}, beyond the noise of the steps",
                False: "no difference beyond the noise of the steps",
                None: f"{how}; whether that is noise is {NOT_KNOWN}",
            }[cell.differs]
            crowd = " or ".join(one.run_id for one in (reports[0], report) if one.verdict.crowded)
            but = (
                f"; but the machine was busy with something else in {crowd}: compare the CPU per 1,000 samples"
                if crowd
                else ""
            )
            found.append(f"{report.run_id} against {reports[0].run_id}, {what}: {words}{but}")
    return found


def _notes(reports: Sequence[Report]) -> list[str]:
    notes = list(dict.fromkeys(f"{report.run_id}: {note}" for report in reports for note in report.notes))
    notes += [
        f"{report.run_id} is {report.status.value}: its figures do not stand for a whole training"
        for report in reports
        if report.status is not Status.COMPLETED
    ]
    notes += [f"{report.run_id}: {report.verdict.crowded}" for report in reports if report.verdict.crowded]
    loaders = {report.training.loader for report in reports if report.training is not None}
    if len(loaders) > 1:
        notes.append(f"the runs' main loaders have different names: {', '.join(sorted(loaders))}")
    samples = {r.run_id: r.training.samples.value for r in reports if r.training is not None}
    known = {run: count for run, count in samples.items() if count is not None}
    if len(set(known.values())) > 1:
        notes.append(
            "the runs trained on different numbers of samples: "
            + ", ".join(f"{run} {count:.0f}" for run, count in known.items())
        )
    priced = [group.price for report in reports if report.cost for group in report.cost.groups]
    notes += dict.fromkeys(origin(price) for price in priced if price is not None)
    notes.append(
        "beyond noise: more than the noise of the seconds inside each run explains, with 95 % confidence; how much "
        "runs of the same job differ as a whole only repeats can tell"
    )
    return notes
