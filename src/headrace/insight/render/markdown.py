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
        f"# {escaped(report.run_id)}: {escaped(standing(report.status, report.degraded))}",
        "",
        f"**{escaped(found.sentence)}.**",
        "",
    ]
    if report.cause is not None:
        lines += [f"Cause: {escaped(str(report.cause))}", ""]
    lines += [f"* Next: {escaped(found.next)}.", f"* Rule: {escaped(found.formula)}.", ""]
    lines += [f"Time to train: {number(report.time_to_train)} {escaped(report.time_to_train.note)}".rstrip(), ""]
    for sheet in (evidence_sheet(found), *report_sheets(report)):
        lines += [*heading(sheet), *table(sheet), ""]
    notes = [*found.notes, *report.notes, *(report.cost.notes if report.cost else ()), HOW]
    return "\n".join([*lines, *note_lines(notes)]) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """Returns runs side by side."""
    names = ", ".join(escaped(run.run_id) for run in comparison.runs)
    lines = [f"# {names}", "", *(f"* {escaped(line)}." for line in comparison.summary), ""]
    for sheet in comparison_sheets(comparison):
        lines += [*heading(sheet), *table(sheet), ""]
    return "\n".join([*lines, *note_lines([*comparison.notes, "ratio: to the first run. " + HOW])]) + "\n"


def heading(sheet: Sheet) -> list[str]:
    """Returns the lines of a table's title."""
    return [f"## {escaped(sheet.title.capitalize())}", ""] if sheet.title else []


def table(sheet: Sheet) -> list[str]:
    """Returns the lines of a table."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rules = ("---:" if index in sheet.right else "---" for index in range(len(sheet.columns)))
    rows = (
        tuple(f"**{escaped(cell)}**" if (y, x) in sheet.marked else escaped(cell) for x, cell in enumerate(row))
        for y, row in enumerate(sheet.rows)
    )
    return [line(map(escaped, sheet.columns)), line(rules), *map(line, rows)]


def note_lines(notes: Iterable[str]) -> list[str]:
    """Returns the lines of notes, each once."""
    return ["## Notes", "", *(f"* {escaped(note)}" for note in dict.fromkeys(notes))]


_SPECIAL = {**{letter: "\\" + letter for letter in "\\`*_[]#|"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " "}


def escaped(text: str) -> str:
    """Returns a text as Markdown."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
