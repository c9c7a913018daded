"""Reports and comparisons of runs as documents, which every writer shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.insight.figures.figure import Figure
from headrace.insight.render.document import (
    Block,
    Cell,
    Document,
    Formulas,
    Heading,
    Sentence,
    Table,
    document,
    notes,
    section,
    shown,
    table,
)
from headrace.insight.render.plain_text import HOW, MISSING, confidence, ending, listed, number, spread, standing, title
from headrace.runs import Status

if TYPE_CHECKING:  # what is shown was made before
    from headrace.insight.comparison import Cell as Compared
    from headrace.insight.comparison import Comparison, Row
    from headrace.insight.figures.loaders import LoaderReport, WorkersReport
    from headrace.insight.run_cost import CostReport
    from headrace.insight.run_report import Report
    from headrace.insight.verdict import Verdict

BEYOND = "beyond noise"
WITHIN = "within noise"

SPREAD = frozenset({"step_time", "samples_per_second", "data_wait", "cpu", "gpu_use", "supply"})
"""Figures whose spread stands beside them in wide tables; the JSON has it of all."""

_STATUS_KINDS = {
    Status.COMPLETED: "good",
    Status.FAILED: "bad",
    Status.STOPPED: "stopped",
}
_VERDICT_KINDS = {
    "input-bound": "bad",
    "network-bound": "bad",
    "stalled": "bad",
    "skewed": "warn",
    "compute-bound": "good",
    "balanced": "good",
}


def verdict_badge(verdict: Verdict) -> tuple[str, str, str]:
    """Returns kind and words of the sign of a verdict, and what it means."""
    band = f"{verdict.band} " if verdict.band in ("moderately", "highly") else ""
    words = f"{band}{verdict.name.value}{' (inferred)' if verdict.inferred else ''}"
    return _VERDICT_KINDS.get(verdict.name.value, "plain"), words, verdict.sentence


def status_badge(status: Status, degraded: bool = False) -> tuple[str, str]:
    """Returns kind and words of the sign of a run's status."""
    return _STATUS_KINDS.get(status, "going"), standing(status, degraded)


def report_document(report: Report, charts: Sequence[Block] = ()) -> Document:
    """Returns the report of one run.

    Args:
        report: it.
        charts: of the run over time.
    """
    verdict, trained = report.verdict, report.time_to_train
    named = [(f"{one.loader} of rank {one.rank}", one.step_time) for one in report.loaders]
    named += [(f"CPU of {group.name}", group.cpu) for group in report.groups]
    why = [f"{what}: {figure.note}" for what, figure in named if figure.note]
    money = report.cost.notes if report.cost is not None else ()
    return document(
        section(
            Heading(f"{report.run_id}  {standing(report.status, report.degraded)}"),
            None if report.cause is None else Sentence(f"cause: {report.cause}"),
            Sentence(report.unread, aside=True) if report.unread else None,
            section(
                Sentence(verdict.sentence, strong=True, badge=verdict_badge(verdict)),
                Sentence(f"next: {verdict.next}", detail=True),
                Sentence(f"rule: {verdict.formula}", detail=True),
                evidence_table(verdict),
                kind="verdict",
            ),
            Sentence(f"time to train: {number(trained)} {trained.note}".rstrip()),
        ),
        section(*charts, kind="charts"),
        *(section(sheet) for sheet in report_tables(report)),
        notes([*verdict.notes, *report.notes, *why, *money, HOW]),
        section(Formulas(report.formulas, f"report {report.run_id}")),
    )


def comparison_document(comparison: Comparison, tables: Sequence[Table] = (), charts: Sequence[Block] = ()) -> Document:
    """Returns runs side by side.

    Args:
        comparison: them.
        tables: their figures, and what the letters in them mean; empty for those of `comparison_tables`.
        charts: of the runs over time.
    """
    names = [run.run_id for run in comparison.runs]
    return document(
        section(Heading(", ".join(names), aside=True)),
        *(section(part) for part in (tables or comparison_tables(comparison))),
        section(*(Sentence(line) for line in comparison.summary), kind="summary"),
        section(*charts, kind="charts"),
        notes([*comparison.notes, "ratio: to the first run. " + HOW]),
        section(Formulas(comparison.formulas, f"compare {' '.join(names)}")),
    )


def _executors(workers: WorkersReport) -> str:
    """Returns how many there were at last; with what that was based on where the loader chose it."""
    return f"{workers.executors} (auto: {workers.because})" if workers.because else str(workers.executors)


def report_tables(report: Report) -> list[Table]:
    """Returns the tables of a report; those without a row are left out."""
    loaders = [((one.loader, _where(one)), one, f"loaders[{at}]") for at, one in enumerate(report.loaders)]
    if report.training and report.training.ranks > 1:
        loaders.append(((report.training.loader, _where(report.training)), report.training, "training"))
    tables = [
        _figures("loaders", ("loader", "rank"), loaders),
        _figures(
            "data workers",
            ("group", "of", "hosts", "executors"),
            [
                ((one.group, one.loader or "feed server", _hosts(one.hosts), _executors(one)), one, f"workers[{at}]")
                for at, one in enumerate(report.workers)
            ],
        ),
        _figures(
            "instance groups",
            ("group", "hosts", "cores"),
            [
                ((one.name, _hosts(one.hosts), MISSING if one.cores is None else str(one.cores)), one, f"groups[{at}]")
                for at, one in enumerate(report.groups)
            ],
        ),
        _figures(
            "measured by the platform, where the host's own record does not tell it",
            ("group", "host", "by"),
            [((one.group, one.host, one.source), one, f"platform[{at}]") for at, one in enumerate(report.platform)],
        ),
        _figures(
            "tf.data servers",
            ("server", "role", "restarts"),
            [
                ((f"{one.group}/{one.host}[{one.stream}]", one.role, str(one.restarts)), one, f"servers[{at}]")
                for at, one in enumerate(report.servers)
            ],
        ),
        _figures(
            "metrics of the logs",
            ("metric", "programs"),
            [((one.name, _hosts(one.programs)), one, f"values[{at}]") for at, one in enumerate(report.values)],
        ),
        *(cost_tables(report.cost, "cost.") if report.cost is not None else ()),
        _programs(report),
    ]
    return [sheet for sheet in tables if sheet.rows]


def evidence_table(verdict: Verdict) -> Table:
    """Returns the figures that decided a verdict."""
    rows = tuple(
        (title(one.name), shown(one, f"verdict.evidence[{at}]"), confidence(one), one.note)
        for at, one in enumerate(verdict.evidence)
    )
    return Table("evidence", ("figure", "value", "95 % range", ""), rows, frozenset({1, 2}), aside=True)


def cost_tables(cost: CostReport, path: str = "") -> tuple[Table, ...]:
    """Returns what a run costs: the parts of the sum, and what they come to a step.

    Args:
        cost: it.
        path: where it stands in the command's JSON.
    """
    names = ("group", "type", "instances", "list price", "billable", "cost")
    groups = [
        (
            one.group,
            one.instance_type or MISSING,
            str(one.instances),
            listed(one.price),
            shown(one.seconds, f"{path}groups[{at}].seconds"),
            shown(one.cost, f"{path}groups[{at}].cost"),
        )
        for at, one in enumerate(cost.groups)
    ]
    fields = ("total", "platform", "per_hour", "per_step", "per_1000_samples", "per_epoch")
    sums: list[tuple[str, Figure]] = [(name, getattr(cost, name)) for name in fields]
    # A sum that is not known stands there too, and why; without any price the notes have said it all.
    priced = any(one.value is not None for _, one in sums)
    known = [(title(one.name), shown(one, path + name), spread(one), one.note) for name, one in sums] if priced else ()
    return (
        table(names, groups, names[2:], f"cost ({cost.region}, list prices)"),
        table(("cost", "amount", "10th to 90th percentile", ""), known, ("amount",)),
    )


def stacked_tables(comparison: Comparison) -> list[Table]:
    """Returns runs one below the other: a row for every run of every figure, so that the width does not grow."""
    verdicts, figures = comparison_tables(comparison)
    rows: list[tuple[str, ...]] = []
    for name, *cells in figures.rows:
        values = [(*cells[:2], "", ""), *(tuple(cells[n : n + 4]) for n in range(2, len(cells), 4))]
        rows += [(name, letter(index), *value) for index, value in enumerate(values)]
    columns = ("figure", "run", "value", "spread", "ratio", "")
    return [verdicts, Table(figures.title, columns, tuple(rows), frozenset({2, 4}))]


def letter(index: int) -> str:
    """Returns the letters that stand for a run in wide tables: A, B, ... Z, AA, AB ..."""
    return (letter(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def comparison_tables(comparison: Comparison) -> list[Table]:
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
    verdicts = tuple((letter(i), run.run_id, run.verdict.sentence) for i, run in enumerate(comparison.runs))
    return [
        Table("verdicts", ("", "run", "verdict"), verdicts),
        Table("figures", tuple(columns), tuple(_beside(row) for _, row in _measured(comparison)), frozenset(right)),
    ]


def compared_table(comparison: Comparison) -> Table:
    """Returns runs side by side for HTML: a column a run; under each value its spread and what changed."""
    columns = (
        Cell(
            run.run_id,
            badge=status_badge(run.status, run.degraded),
            below=(Cell(run.verdict.sentence, kind="spread", badge=verdict_badge(run.verdict)),),
        )
        for run in comparison.runs
    )
    rows = tuple(
        (title(row.name, row.group), *(_below(row, at, f"rows[{index}].cells[{at}]") for at in range(len(row.cells))))
        for index, row in _measured(comparison)
    )
    return Table("figures", ("", *columns), rows)


def _measured(comparison: Comparison) -> list[tuple[int, Row]]:
    """Returns the rows in which at least one run has a value, with their numbers."""
    return [
        (index, row)
        for index, row in enumerate(comparison.rows)
        if any(cell.figure.value is not None for cell in row.cells)
    ]


def _beside(row: Row) -> tuple[str, ...]:
    cells: list[str] = [title(row.name, row.group)]
    for index, cell in enumerate(row.cells):
        cells += [number(cell.figure), spread(cell.figure)]
        if index:
            cells += [MISSING if cell.ratio is None else f"{cell.ratio:.2f}", _noise(cell)]
    return tuple(cells)


def _noise(cell: Compared) -> Cell:
    words = {True: BEYOND, False: WITHIN, None: cell.noise}[cell.differs]
    return Cell(words, strong=bool(cell.differs), kind="ratio")


def _below(row: Row, at: int, path: str) -> Cell:
    cell = row.cells[at]
    most = max(abs(other.figure.value or 0.0) for other in row.cells)
    under = [Cell(spread(cell.figure) or cell.figure.note, kind="spread")]
    if at and cell.ratio is not None:
        under += [Cell(f"\u00d7 {cell.ratio:.2f}", kind="ratio"), _noise(cell)]
    share = abs(cell.figure.value or 0.0) / most if most else None
    return Cell(number(cell.figure), cell.figure, f"{path}.figure", below=(part for part in under if part), share=share)


_Keyed = tuple[tuple[str, ...], msgspec.Struct, str]
"""First cells of a row, what holds its figures, and where that stands in the command's JSON."""


def _figures(name: str, keys: Sequence[str], rows: Sequence[_Keyed]) -> Table:
    """A column for every figure of the rows' structs that at least one of them has."""
    figures = [
        [(field, value) for field, value in msgspec.structs.asdict(one).items() if isinstance(value, Figure)]
        for _, one, _ in rows
    ]
    measured = [any(one.value is not None for _, one in column) for column in zip(*figures, strict=True)]
    kept = [index for index, known in enumerate(measured) if known]
    names = [title(figures[0][index][1].name) for index in kept]
    cells = tuple(
        (*key, *(_shown(*values[index], path) for index in kept))
        for (key, _, path), values in zip(rows, figures, strict=True)
    )
    return Table(name, (*keys, *names), cells)


def _shown(field: str, figure: Figure, path: str) -> Cell:
    return shown(figure, f"{path}.{field}", with_spread=figure.name in SPREAD)


def _where(one: LoaderReport) -> str:
    return f"{one.group}/{one.host}[{one.rank}]" if one.rank else f"all {one.ranks} ranks"


def _hosts(hosts: Iterable[str]) -> str:
    return " ".join(hosts)


def _programs(report: Report) -> Table:
    rows = tuple(
        (
            f"{one.group}/{one.host}[{one.stream}]",
            ending(one, going_on=report.ended is None),
            MISSING if one.seconds is None else f"{one.seconds:.1f} s",
        )
        for one in report.programs
    )
    return Table("programs", ("program", "ended", "ran for"), rows, frozenset({2}))
