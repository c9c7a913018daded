"""The parts of an HTML page that is one file: no script, nothing fetched. All text is escaped here."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

from headrace.insight.render.tables import Sheet

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
