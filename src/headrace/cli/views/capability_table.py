"""`headrace doctor --engine`: what works in an engine, as a table. It only shows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from headrace.cli.views.table import Columns, console
from headrace.engines.capability import Capability


def document(engine: str, found: Sequence[Capability]) -> dict[str, object]:
    """Returns what `show` prints, for output as JSON."""
    return {"engine": engine, "capabilities": [one._asdict() for one in found]}


def show(engine: str, found: Sequence[Capability]) -> None:
    """Prints what works, and what to do where something does not."""
    out = console()
    out.print(Text(f"engine {engine}", style="bold"))
    table = Columns(("", "works", ""))
    for one in found:
        table.add(one.name, "yes" if one.works else "no", one.detail)
    out.print(table)
    missing = [one for one in found if not one.works and one.hint]
    if missing:
        out.print()
        for one in missing:
            out.print(Text(f"for {one.name}: {one.hint}"))
