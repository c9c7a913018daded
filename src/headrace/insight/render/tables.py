"""The tables of reports and comparisons as sheets of plain cells, which text, Markdown and HTML all show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.insight.cost.cost_report import CostReport
from headrace.insight.figures.data_workers import WorkersReport
from headrace.insight.figures.figure import Figure
from headrace.insight.figures.loaders import LoaderReport
from headrace.insight.render.plain_text import MISSING, confidence, ending, number, spread, title
from headrace.insight.reports.comparison import Comparison, Row
from headrace.insight.reports.run_report import Report
from headrace.insight.verdicts.decide import Verdict

BEYOND = "beyond noise"
WITHIN = "within noise"

SPREAD = frozenset({"step_time", "samples_per_second", "data_wait", "cpu", "gpu_use", "supply"})
"""Figures whose spread stands beside them in wide tables; the JSON has it of all."""


@dataclass(frozen=True)
class Sheet:
    """One table.

    Attributes:
        title: what it shows.
        columns: their names.
        rows: cells, one a column.
        right: numbers of the columns that are flush right.
        marked: (row, column) of the cells that a reader should see first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    marked: frozenset[tuple[int, int]] = frozenset()


def _executors(workers: WorkersReport) -> str:
    """Returns how many there were at last; with what that was based on where the loader chose it."""
    return f"{workers.executors} (auto: {workers.because})" if workers.because else str(workers.executors)


def report_sheets(report: Report) -> list[Sheet]:
    """Returns the tables of a report; those without a row are left out."""
    every = [*report.loaders, *([report.training] if report.training and report.training.ranks > 1 else [])]
    sheets = [
        _figures("loaders", ("loader", "rank"), [((one.loader, _where(one)), one) for one in every]),
        _figures(
            "data workers",
            ("group", "of", "hosts", "executors"),
            [
                ((one.group, one.loader or "feed server", _hosts(one.hosts), _executors(one)), one)
                for one in report.workers
            ],
        ),
        _figures(
            "instance groups",
            ("group", "hosts", "cores"),
            [
                ((one.name, _hosts(one.hosts), MISSING if one.cores is None else str(one.cores)), one)
                for one in report.groups
            ],
        ),
        _figures(
            "measured by the platform, where the host's own record does not tell it",
            ("group", "host", "by"),
            [((one.group, one.host, one.source), one) for one in report.platform],
        ),
        _figures(
            "tf.data servers",
            ("server", "role", "restarts"),
            [((f"{one.group}/{one.host}[{one.stream}]", one.role, str(one.restarts)), one) for one in report.servers],
        ),
        _figures(
            "metrics of the logs",
            ("metric", "programs"),
            [((one.name, _hosts(one.programs)), one) for one in report.values],
        ),
        *(cost_sheets(report.cost) if report.cost is not None else ()),
        _programs(report),
    ]
    return [sheet for sheet in sheets if sheet.rows]


def evidence_sheet(verdict: Verdict) -> Sheet:
    """Returns the figures that decided a verdict."""
    rows = [(title(one.name), number(one), confidence(one), one.note) for one in verdict.evidence]
    return Sheet("evidence", ("figure", "value", "95 % range", ""), tuple(rows), frozenset({1, 2}))


def cost_sheets(cost: CostReport) -> tuple[Sheet, ...]:
    """Returns what a run costs: the parts of the sum, and what they come to a step."""
    groups = tuple(
        (
            one.group,
            one.instance_type or MISSING,
            str(one.instances),
            MISSING if one.price is None else f"{one.price.price:g} {one.price.unit}",
            number(one.seconds),
            number(one.cost),
        )
        for one in cost.groups
    )
    sums = (cost.total, cost.platform, cost.per_hour, cost.per_step, cost.per_1000_samples, cost.per_epoch)
    # A sum that is not known stands there too, and why; without any price the notes have said it all.
    priced = any(one.value is not None for one in sums)
    known = tuple((title(one.name), number(one), spread(one), one.note) for one in sums) if priced else ()
    return (
        Sheet(
            f"cost ({cost.region}, list prices)",
            ("group", "type", "instances", "list price", "billable", "cost"),
            groups,
            frozenset({2, 3, 4, 5}),
        ),
        Sheet("", ("cost", "amount", "10th to 90th percentile", ""), known, frozenset({1})),
    )


def stacked_sheets(comparison: Comparison) -> list[Sheet]:
    """Returns runs one below the other: a row for every run of every figure, so that the width does not grow."""
    verdicts, figures = comparison_sheets(comparison)
    rows: list[tuple[str, ...]] = []
    for name, *cells in figures.rows:
        values = [(*cells[:2], "", ""), *(tuple(cells[n : n + 4]) for n in range(2, len(cells), 4))]
        rows += [(name, letter(index), *value) for index, value in enumerate(values)]
    marked = frozenset((y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == BEYOND)
    columns = ("figure", "run", "value", "spread", "ratio", "")
    return [verdicts, Sheet(figures.title, columns, tuple(rows), frozenset({2, 4}), marked)]


def letter(index: int) -> str:
    """Returns the letters that stand for a run in wide tables: A, B, ... Z, AA, AB ..."""
    return (letter(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """Returns runs side by side: a column a run, and beside it what changed against the first.

    The verdicts say which letter stands for which run: names of runs are wider than their figures.
    """
    columns, right = [""], set()
    for index in range(len(comparison.runs)):
        right.add(len(columns))
        columns += [letter(index), "spread"]
        if index:
            right.add(len(columns))
            columns += ["ratio", ""]
    shown = [row for row in comparison.rows if any(cell.figure.value is not None for cell in row.cells)]
    rows = [_compared(row) for row in shown]
    marked = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == BEYOND}
    verdicts = tuple((letter(i), run.run_id, run.verdict.sentence) for i, run in enumerate(comparison.runs))
    return [
        Sheet("verdicts", ("", "run", "verdict"), verdicts),
        Sheet("figures", tuple(columns), tuple(rows), frozenset(right), frozenset(marked)),
    ]


def _compared(row: Row) -> tuple[str, ...]:
    cells = [title(row.name, row.group)]
    for index, cell in enumerate(row.cells):
        cells += [number(cell.figure), spread(cell.figure)]
        if index:
            ratio = MISSING if cell.ratio is None else f"{cell.ratio:.2f}"
            cells += [ratio, {True: BEYOND, False: WITHIN, None: cell.noise}[cell.differs]]
    return tuple(cells)


def _figures(name: str, keys: Sequence[str], rows: Sequence[tuple[tuple[str, ...], msgspec.Struct]]) -> Sheet:
    """A column for every figure of the rows' structs that at least one of them has."""
    figures = [[value for value in msgspec.structs.astuple(one) if isinstance(value, Figure)] for _, one in rows]
    measured = [any(one.value is not None for one in column) for column in zip(*figures, strict=True)]
    kept = [index for index, known in enumerate(measured) if known]
    names = [title(figures[0][index].name) for index in kept]
    cells = tuple(
        (*key, *(_shown(found[index]) for index in kept)) for (key, _), found in zip(rows, figures, strict=True)
    )
    return Sheet(name, (*keys, *names), cells)


def _shown(figure: Figure) -> str:
    return f"{number(figure)} {spread(figure)}".strip() if figure.name in SPREAD else number(figure)


def _where(one: LoaderReport) -> str:
    return f"{one.group}/{one.host}[{one.rank}]" if one.rank else f"all {one.ranks} ranks"


def _hosts(hosts: Iterable[str]) -> str:
    return " ".join(hosts)


def _programs(report: Report) -> Sheet:
    rows = tuple(
        (
            f"{one.group}/{one.host}[{one.stream}]",
            ending(one, going_on=report.ended is None),
            MISSING if one.seconds is None else f"{one.seconds:.1f} s",
        )
        for one in report.programs
    )
    return Sheet("programs", ("program", "ended", "ran for"), rows, frozenset({2}))
