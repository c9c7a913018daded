"""Reports and comparisons as one self-contained HTML page: no script, nothing fetched, light and dark, readable narrow.

All text of a run is escaped, and the page's own policy forbids scripts and every external resource.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.insight.render.plain_text import HOW, number, spread, standing, title
from headrace.insight.render.svg import Trace, chart, key
from headrace.insight.render.tables import BEYOND, WITHIN, Sheet, evidence_sheet, report_sheets
from headrace.insight.reports.comparison import Cell, Comparison
from headrace.insight.reports.run_report import Report
from headrace.insight.timeseries.chart_data import Metrics
from headrace.insight.verdicts.decide import Verdict

_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def page(name: str, body: Iterable[str]) -> str:
    """Returns a whole page.

    Args:
        name: its title.
        body: elements, as HTML; empty ones are left out.
    """
    shown = "\n".join(part for part in body if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escaped(name)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{shown}\n</main></body></html>\n"
    )


def escaped(text: str) -> str:
    """Returns a text as HTML."""
    return html.escape(text, quote=True)


def section(sheet: Sheet) -> str:
    """Returns a table below its title."""
    heading = f"<h2>{escaped(sheet.title.capitalize())}</h2>" if sheet.title else ""
    return f"<section>{heading}{table(sheet)}</section>"


def table(sheet: Sheet) -> str:
    """Returns a table."""
    head = "".join(f"<th{_side(sheet, x)}>{escaped(name)}</th>" for x, name in enumerate(sheet.columns))
    rows = "".join(
        "<tr>" + "".join(_cell(sheet, y, x, cell) for x, cell in enumerate(row)) + "</tr>"
        for y, row in enumerate(sheet.rows)
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(sheet: Sheet, y: int, x: int, cell: str) -> str:
    text = f"<mark>{escaped(cell)}</mark>" if (y, x) in sheet.marked else escaped(cell)
    return f"<th scope='row'>{text}</th>" if x == 0 else f"<td{_side(sheet, x)}>{text}</td>"


def _side(sheet: Sheet, column: int) -> str:
    return ' class="right"' if column in sheet.right else ""


def note_list(notes: Iterable[str]) -> str:
    """Returns a section of notes, each once."""
    lines = "".join(f"<li>{escaped(note)}</li>" for note in dict.fromkeys(notes))
    return f'<section class="notes"><h2>Notes</h2><ul>{lines}</ul></section>'


def formula_list(formulas: dict[str, str]) -> str:
    """Returns how every figure is computed, folded."""
    lines = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(formula)}</dd>" for name, formula in formulas.items())
    return f"<details><summary>How every figure is computed</summary><dl>{lines}</dl></details>"


def report_page(report: Report, metrics: Metrics) -> str:
    """Returns the page of one run.

    Args:
        report: the run.
        metrics: its charts, see `headrace.insight.timeseries.charts`.
    """
    verdict = report.verdict
    cause = f'<p class="cause">{escaped(f"cause: {report.cause}")}</p>' if report.cause is not None else ""
    unread = f'<p class="cause">{escaped(report.unread)}</p>' if report.unread else ""
    trained = f"time to train: {number(report.time_to_train)} {report.time_to_train.note}".strip()
    stands = standing(report.status, report.degraded)
    body = [
        f"<header><h1>{escaped(report.run_id)}</h1><p>{escaped(f'{stands} · {trained}')}</p>{cause}{unread}</header>",
        f'<section class="verdict">{_badge(verdict)}<p class="sentence">{escaped(verdict.sentence)}.</p>'
        f"<p>{escaped(verdict.next)}.</p>{table(evidence_sheet(verdict))}"
        f"<p class='rule'>Rule: {escaped(verdict.formula)}</p></section>",
        _charts(report, metrics),
        *(section(sheet) for sheet in report_sheets(report)),
        note_list([*verdict.notes, *report.notes, *(report.cost.notes if report.cost else ()), HOW]),
        formula_list(report.formulas),
        _source(["report", report.run_id]),
    ]
    return page(report.run_id, body)


def comparison_page(comparison: Comparison, metrics: Sequence[Metrics]) -> str:
    """Returns the page of several runs side by side.

    Args:
        comparison: the runs.
        metrics: the charts of each, see `headrace.insight.timeseries.charts`.
    """
    names = [run.run_id for run in comparison.runs]
    cards = "".join(
        f'<li class="card"><h2>{key(index)}{escaped(run.run_id)}</h2><p>{escaped(standing(run.status, run.degraded))} '
        f"{_badge(run.verdict)}</p><p>{escaped(run.verdict.sentence)}.</p></li>"
        for index, run in enumerate(comparison.runs)
    )
    summary = "".join(f"<li>{escaped(line)}.</li>" for line in comparison.summary)
    body = [
        f"<header><h1>{len(names)} runs compared</h1></header>",
        f'<ul class="cards">{cards}</ul>',
        f'<ul class="summary">{summary}</ul>' if summary else "",
        f"<section><h2>Figures</h2>{_side_by_side(comparison)}</section>",
        _compared_charts(comparison, metrics),
        note_list([*comparison.notes, "\u00d7: ratio to the first run. " + HOW]),
        formula_list(comparison.formulas),
        _source(["compare", *names]),
    ]
    return page(", ".join(names), body)


def _side_by_side(comparison: Comparison) -> str:
    """A column a run; under each value its spread and what it means against the first run."""
    head = "".join(
        f'<th class="right">{key(index)}<br>{escaped(run.run_id)}</th>' for index, run in enumerate(comparison.runs)
    )
    rows = "".join(
        f"<tr><th scope='row'>{escaped(title(row.name, row.group))}</th>{''.join(map(_compared, row.cells))}</tr>"
        for row in comparison.rows
        if any(cell.figure.value is not None for cell in row.cells)
    )
    table = f'<table class="runs"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>'


def _compared(cell: Cell) -> str:
    lines = [f"<b>{escaped(number(cell.figure))}</b>"]
    if cell.figure.spread is not None:
        lines.append(f"<small>{escaped(spread(cell.figure))}</small>")
    if cell.differs is not None and cell.ratio is not None:
        said = f"{cell.ratio:.2f} &times;, {BEYOND if cell.differs else WITHIN}"
        lines.append(f"<mark>{said}</mark>" if cell.differs else f"<small>{said}</small>")
    elif cell.ratio is not None and (cell.noise or cell.ratio != 1.0):
        said = f", {escaped(cell.noise)}" if cell.noise else ""
        lines.append(f"<small>{cell.ratio:.2f} &times;{said}</small>")
    return f'<td class="right">{"<br>".join(lines)}</td>'


def _charts(report: Report, metrics: Metrics) -> str:
    start = report.started if report.started is not None else report.created
    drawn = []
    for each in metrics.charts:
        grouped = any(line.group for line in each.lines)
        name = title(each.name) + (" by group" if grouped else "")
        traces = [
            Trace.of(line, metrics, line.group if grouped else name, start, index)
            for index, line in enumerate(each.lines)
        ]
        drawn.append(chart(name, each.unit, traces))
    return _charted(drawn)


def _compared_charts(comparison: Comparison, metrics: Sequence[Metrics]) -> str:
    """A chart for the whole job or for a group has a line a run; those of the groups come last."""
    traces: dict[tuple[str, str, str], list[Trace]] = {}
    for index, (run, found) in enumerate(zip(comparison.runs, metrics, strict=True)):
        start = run.started if run.started is not None else found.start
        for each in found.charts:
            for line in each.lines:
                same = traces.setdefault((each.name, line.group, each.unit), [])
                same.append(Trace.of(line, found, run.run_id, start, index))
    kinds = sorted(traces, key=lambda kind: bool(kind[1]))
    return _charted([chart(title(name, group), unit, traces[name, group, unit]) for name, group, unit in kinds])


def _charted(charts: Sequence[str]) -> str:
    return f'<section class="charts">{"".join(charts)}</section>' if charts else ""


def _badge(verdict: Verdict) -> str:
    how = " (inferred)" if verdict.inferred else ""
    band = f"{verdict.band} " if verdict.band in ("moderately", "highly") else ""
    return f'<strong class="badge {verdict.name.value}">{escaped(band + verdict.name.value + how)}</strong>'


def _source(command: Sequence[str]) -> str:
    line = " ".join(["headrace", *command, "--output json"])
    over_time = "<code>headrace metrics RUN --output json</code>"
    return f"<footer>All figures of this page: <code>{escaped(line)}</code>; metrics over time: {over_time}</footer>"
