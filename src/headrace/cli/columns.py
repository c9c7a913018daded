"""Tables with plain cells: nothing in a cell is markup, nothing is wrapped or cut; and the notes under them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text


def columns(names: Iterable[str], right: Iterable[str] = ()) -> Table:
    """Returns an empty table; the columns `right` are flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in set(right) else "left", no_wrap=True)
    return table


def row(table: Table, *cells: str) -> None:
    """Adds a row."""
    table.add_row(*(Text(cell) for cell in cells))


def notes(out: Console, lines: Iterable[str]) -> None:
    """Prints notes, one a line."""
    out.print()
    for line in lines:
        out.print(Text(f"note: {line}"))
