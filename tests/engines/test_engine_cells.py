"""No cell is without a test: of the table of engines, and of what docs/engines.md says that each engine does."""

from __future__ import annotations

import json
import re

import pytest
from engine_table_cells import ABSENT, COLUMNS, DEFECTS, ENGINES, KEPT, LONG, ON_CLUSTER, PROVED, QUICK, ROWS
from engine_table_page import PAGE, written

from test_promises import is_in_the_normal_run, promises

ENGINES_PAGE = PAGE.parents[1] / "engines.md"
CAPABILITIES = "What each engine does"


def section(title: str) -> dict[str, list[str]]:
    """The table below a heading of the page: first cell to the others; its head is under ''."""
    text = ENGINES_PAGE.read_text()
    begin = re.search(rf"^#+ {re.escape(title)}$", text, re.MULTILINE)
    assert begin is not None, f"{ENGINES_PAGE.name} has no heading {title!r}"
    body = text[begin.end() :]
    body = body[: re.search(r"^#", body, re.MULTILINE).start()]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in body.splitlines() if line.startswith("|")]
    cleaned = [[cells[0].strip("| "), *cells[1:-1], cells[-1].removesuffix("|").strip()] for cells in rows]
    return {cells[0]: cells[1:] for cells in cleaned if not cells[0].startswith("---")}


def engine_of(head: str) -> str:
    found = re.search(r"`(\w+)`", head)
    assert found is not None, head
    return found[1]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_cell_is_played_or_has_a_test_or_a_reason(engine: str, row: str) -> None:
    cell = (row, engine)
    tests = PROVED.get(cell, ())
    normal = [is_in_the_normal_run(test) for test in tests]  # each is looked for
    assert cell in QUICK or normal or cell in ABSENT or cell in DEFECTS or cell in LONG
    assert not (cell in ABSENT and (cell in QUICK or tests)), "it is there and not there"
    assert not (cell in QUICK and cell in DEFECTS), "an open defect is played in the long run"


def test_no_cell_is_named_that_is_not_there() -> None:
    there = {(row, engine) for row in ROWS for engine in COLUMNS}
    assert {*PROVED, *ABSENT, *QUICK, *DEFECTS, *LONG} <= there


def test_in_the_kept_play_on_a_real_cluster_every_row_holds_but_the_defects() -> None:
    held = [row["row"] for row in json.loads(KEPT.read_bytes())["rows"] if row["holds"]]
    assert held == [row for row in ROWS if not any((row, engine) in DEFECTS for engine in ON_CLUSTER)]


def test_the_page_has_its_tables() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "make it anew: tests/engines/engine_table_page.py"


def test_every_capability_of_every_engine_has_a_test_of_the_normal_run() -> None:
    """It is marked with the promise "CAPABILITY, on ENGINE"."""
    rows = section(CAPABILITIES)
    engines = [engine_of(head) for head in rows.pop("")]
    capabilities = {f"{re.sub(r' [(].*', '', row)}, on {engine}" for row in rows for engine in engines}
    marks = {text for page, text, _, is_in_every_run in promises() if page == "engines" and is_in_every_run}
    assert capabilities - marks == set()
    assert {text for text in marks if text.endswith(tuple(f", on {engine}" for engine in engines))} == capabilities
