"""Reports and comparisons as tables, with rich. It shows values; it computes none."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from headrace.cli.views.table import Columns, notes
from headrace.insight import Comparison, Report, Verdict
from headrace.insight.render.plain_text import HOW, number, standing
from headrace.insight.render.tables import Sheet, comparison_sheets, report_sheets, stacked_sheets

_BESIDE = 2
"""Runs whose figures stand in columns, where there is room; of more the rows would be wider than any terminal."""


def show_report(report: Report, out: Console) -> None:
    """Prints the report of one run."""
    out.print(Text(f"{report.run_id}  {standing(report.status, report.degraded)}", style="bold"))
    if report.cause is not None:
        out.print(Text(f"cause: {report.cause}"))
    _verdict(report.verdict, out)
    out.print(Text(f"time to train: {number(report.time_to_train)} {report.time_to_train.note}".rstrip()))
    for sheet in report_sheets(report):
        show_sheet(sheet, out)
    figures = [(f"{one.loader} of rank {one.rank}", one.step_time) for one in report.loaders]
    figures += [(f"CPU of {group.name}", group.cpu) for group in report.groups]
    why = [f"{what}: {figure.note}" for what, figure in figures if figure.note]
    money = report.cost.notes if report.cost is not None else ()
    notes(out, dict.fromkeys([*report.verdict.notes, *report.notes, *why, *money, HOW]))


def _verdict(verdict: Verdict, out: Console) -> None:
    out.print(Text(verdict.sentence, style="bold"))
    out.print(Text(f"  next: {verdict.next}"))
    out.print(Text(f"  rule: {verdict.formula}"))


def show_sheet(sheet: Sheet, out: Console) -> None:
    """Prints one table; what is marked is bold."""
    out.print()
    out.print(_table(sheet))


def _table(sheet: Sheet) -> Columns:
    table = Columns(sheet.columns, sheet.right)
    for y, cells in enumerate(sheet.rows):
        table.add(*(Text(cell, style="bold" if (y, x) in sheet.marked else "") for x, cell in enumerate(cells)))
    return table


def show_comparison(comparison: Comparison, out: Console) -> None:
    """Prints runs side by side."""
    verdicts, figures = comparison_sheets(comparison)
    if len(comparison.runs) > _BESIDE or not _table(figures).fits(out.width):
        verdicts, figures = stacked_sheets(comparison)
    show_sheet(verdicts, out)
    show_sheet(figures, out)
    out.print()
    for line in comparison.summary:
        out.print(Text(line))
    notes(out, [*comparison.notes, "ratio: to the first run. " + HOW])
