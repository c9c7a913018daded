"""The report of a grid as tables, with rich. It shows values; it computes none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from rich.console import Console
from rich.text import Text

from headrace.cli.views.report_tables import show_sheet
from headrace.cli.views.table import columns, console, notes
from headrace.grid.report.grid_listing import GridLine, UnreadGrid
from headrace.grid.report.grid_report import GridReport
from headrace.grid.report.grid_sheets import best_sheet, grid_sheets, headline, span, totals
from headrace.insight.cost.billing import amount

_MOST_LINES = 200


def show_report(report: GridReport, out: Console) -> None:
    """Prints the report of a grid."""
    out.print(Text(headline(report), style="bold"))
    for line in totals(report):
        out.print(Text(line))
    for sheet in grid_sheets(report, _MOST_LINES):
        show_sheet(sheet, out)
    left = len(report.lines) - _MOST_LINES
    more = [f"{left} lines more: --output csv or json has all"] if left > 0 else []
    if found := [*more, *report.notes]:
        notes(out, found)


def show_best(report: GridReport, most: int) -> None:
    """Prints the best lines of a grid."""
    out = console()
    sheet = best_sheet(report, most)
    out.print(Text(f"{report.name}: {sheet.title}", style="bold"))
    if sheet.rows:
        show_sheet(sheet, out)
    if report.notes:
        notes(out, report.notes)


def show_grids(grids: Sequence[GridLine], unread: Sequence[UnreadGrid]) -> None:
    """Prints the grids of this machine."""
    out = console()
    table = columns(("grid", "lines", "states", "regions", "started", "went for", "cost"), right=("lines", "cost"))
    now = time.time()
    for each in grids:
        states = ", ".join(f"{count} {state}" for state, count in each.states.items())
        began = datetime.fromtimestamp(each.created, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        went = span(max(0.0, (now if each.ended is None else each.ended) - each.created))
        table.add(each.name, str(each.lines), states, " ".join(each.regions), began, went, amount(each.cost))
    out.print(table if grids else Text("no grid yet: `headrace grid run array.yaml` starts one"))
    if unread:
        notes(out, [f"{each.name} cannot be read: {each.error}" for each in unread])
