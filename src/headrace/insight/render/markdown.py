"""Reports and comparisons in Markdown, with the pipe tables that GitHub and most others read."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.insight.render.plain_text import HOW, number, standing
from headrace.insight.render.tables import Sheet, comparison_sheets, evidence_sheet, report_sheets
from headrace.insight.reports.comparison import Comparison
from headrace.insight.reports.run_report import Report


def report_markdown(report: Report) -> str:
    """Returns the report of one run."""
    found = report.verdict
    lines = [
        f"# {_escape(report.run_id)}: {_escape(standing(report.status, report.degraded))}",
        "",
        f"**{_escape(found.sentence)}.**",
        "",
    ]
    if report.cause is not None:
        lines += [f"Cause: {_escape(str(report.cause))}", ""]
    lines += [f"* Next: {_escape(found.next)}.", f"* Rule: {_escape(found.formula)}.", ""]
    lines += [f"Time to train: {number(report.time_to_train)} {_escape(report.time_to_train.note)}".rstrip(), ""]
    for sheet in (evidence_sheet(found), *report_sheets(report)):
        lines += [*_heading(sheet), *_table(sheet), ""]
    notes = [*found.notes, *report.notes, *(report.cost.notes if report.cost else ()), HOW]
    return "\n".join([*lines, *_notes(notes)]) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """Returns runs side by side."""
    names = ", ".join(_escape(run.run_id) for run in comparison.runs)
    lines = [f"# {names}", "", *(f"* {_escape(line)}." for line in comparison.summary), ""]
    for sheet in comparison_sheets(comparison):
        lines += [*_heading(sheet), *_table(sheet), ""]
    return "\n".join([*lines, *_notes([*comparison.notes, "ratio: to the first run. " + HOW])]) + "\n"


def _heading(sheet: Sheet) -> list[str]:
    return [f"## {_escape(sheet.title.capitalize())}", ""] if sheet.title else []


def _table(sheet: Sheet) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rules = ("---:" if index in sheet.right else "---" for index in range(len(sheet.columns)))
    rows = (
        tuple(f"**{_escape(cell)}**" if (y, x) in sheet.marked else _escape(cell) for x, cell in enumerate(row))
        for y, row in enumerate(sheet.rows)
    )
    return [line(map(_escape, sheet.columns)), line(rules), *map(line, rows)]


def _notes(notes: Iterable[str]) -> list[str]:
    return ["## Notes", "", *(f"* {_escape(note)}" for note in dict.fromkeys(notes))]


_SPECIAL = {**{letter: "\\" + letter for letter in "\\`*_[]#|"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " "}


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
