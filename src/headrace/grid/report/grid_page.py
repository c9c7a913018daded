"""The report of a grid as one self-contained HTML page, and as Markdown."""

from __future__ import annotations

from headrace.grid.report.grid_charts import front_chart, lanes_chart
from headrace.grid.report.grid_report import GridReport
from headrace.grid.report.grid_sheets import grid_sheets, headline, totals
from headrace.insight.render import html_parts, markdown


def grid_page(report: GridReport) -> str:
    """Returns the page of a grid."""
    written = html_parts.escaped
    says = "".join(f"<p>{written(line)}</p>" for line in totals(report))
    charts = lanes_chart(report) + front_chart(report)
    source = f"headrace grid report {report.name} --output json"
    body = [
        f"<header><h1>{written(headline(report))}</h1>{says}</header>",
        f'<section class="charts">{charts}</section>' if charts else "",
        *map(html_parts.section, grid_sheets(report, why_first=True)),
        html_parts.note_list(report.notes) if report.notes else "",
        html_parts.formula_list(report.formulas),
        f"<footer>All figures of this page: <code>{written(source)}</code></footer>",
    ]
    return html_parts.page(report.name, body)


def grid_markdown(report: GridReport) -> str:
    """Returns the report of a grid in Markdown."""
    lines = [f"# {markdown.escaped(headline(report))}", "", *(f"* {markdown.escaped(line)}" for line in totals(report))]
    for sheet in grid_sheets(report):
        lines += ["", *markdown.heading(sheet), *markdown.table(sheet)]
    if report.notes:
        lines += ["", *markdown.note_lines(report.notes)]
    return "\n".join(lines) + "\n"
