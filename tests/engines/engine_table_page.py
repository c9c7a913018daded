"""Writes the tables of engines, and what was seen on a real cluster, into docs/developers/engine-tables.md.

PYTHONPATH=tests:tests/proof:tests/engines python tests/engines/engine_table_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_table import FAULTS, JOBS, End, FaultRow, JobRow
from engine_table_cells import ABSENT, COLUMNS, DEFECTS, KEPT, ON_CLUSTER, PROVED, QUICK

from test_promises import is_in_the_normal_run

PAGE = Path(__file__).parents[2] / "docs" / "developers" / "engine-tables.md"
BEGIN, END = "<!-- made by tests/engines/engine_table_page.py -->", "<!-- made so far -->"


def how_often(row: str, engine: str) -> str:
    """Returns when a cell is tested, or why it cannot be."""
    cell = (row, engine)
    if cell in ABSENT:
        return f"none: {ABSENT[cell]}"
    if engine in ON_CLUSTER:
        often = f"`make {engine}`"
    elif cell in QUICK or any(is_in_the_normal_run(test) for test in PROVED.get(cell, ())):
        often = "every run"
    else:
        often = "long run"
    return f"{often}; not yet: {DEFECTS[cell]}" if cell in DEFECTS else often


def end_in_words(end: End) -> str:
    """Returns how a run ends, as the tables of docs/faults.md have it."""
    kind = "" if end.kind is None else f": `{end.kind.value}`"
    degraded = ", degraded" if end.degraded else ""
    return f"{end.status.value}{degraded}{kind}, exit code {end.exit_code}, {end.within:g} s"


def tables() -> str:
    """Returns the tables of all engines, and the kept play on a real cluster."""
    jobs = _table("job", "what holds", [row.name for row in JOBS], _holds, lambda row, engine: "")
    faults = _table("fault", "how the run ends, and within", [row.name for row in FAULTS], _ends, _otherwise)
    return f"{jobs}\n{faults}\n{seen()}"


def _table(kind: str, what: str, rows: list[str], said: Callable[[str], str], more: Callable[[str, str], str]) -> str:
    lines = [
        f"| {kind} | {what} | {' | '.join(f'`{engine}`' for engine in COLUMNS)} |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for row in rows:
        cells = [how_often(row, engine) + more(row, engine) for engine in COLUMNS]
        lines.append(f"| {row} | {said(row)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _job(name: str) -> JobRow:
    return next(row for row in JOBS if row.name == name)


def _fault(name: str) -> FaultRow:
    return next(row for row in FAULTS if row.name == name)


def _holds(name: str) -> str:
    return (
        "the losses of the local run, bit by bit" if _job(name).losses else "every rank is there, and knows its world"
    )


def _ends(name: str) -> str:
    return end_in_words(_fault(name).end)


def _otherwise(name: str, engine: str) -> str:
    end = _fault(name).ends.get(engine)
    return "" if end is None else f"; {end_in_words(end)}"


def seen() -> str:
    """Returns the kept play of the table on a real cluster."""
    kept = json.loads(KEPT.read_bytes())
    about = f"Kubernetes {kept['kubernetes']}, {kept['nodes']} nodes; {kept['machine']}; {kept['date']}"
    lines = [f"| {about} | the run | exit code | seconds |", "|---|---|---|---|"]
    for row in kept["rows"]:
        lines.append(f"| {row['row']} | {_seen_end(row)} | {row.get('exit_code', '')} | {_seen_seconds(row)} |")
    return "\n".join(lines) + "\n"


def _seen_end(row: dict[str, Any]) -> str:
    if "status" not in row:
        return "not played"
    parts = [row["status"]]
    if row["degraded"]:
        parts.append("degraded")
    if row["cause"]:
        parts.append(f"`{row['cause']}`: {row['text']}")
    if row.get("same_losses"):
        parts.append("the losses of the local run, bit by bit")
    return ", ".join(parts) + ("" if row["holds"] else "; **does not hold**")


def _seen_seconds(row: dict[str, Any]) -> str:
    return f"{row.get('seconds_from_fault', row.get('seconds', '')):}"


def written(page: str) -> str:
    """Returns the page with its tables as they are now."""
    before, _, rest = page.partition(f"{BEGIN}\n")
    _, mark, after = rest.partition(END)
    assert mark, f"the page has no {BEGIN} and {END}"
    return f"{before}{BEGIN}\n\n{tables()}\n{mark}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
