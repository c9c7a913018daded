"""Rows of docs/sagemaker-differences.md have tests: what works by `headrace serve`, and which defects are absent."""

from __future__ import annotations

import re
from pathlib import Path

from test_promises import promises

PAGE = Path(__file__).parent.parent / "docs" / "sagemaker-differences.md"


def marks() -> set[str]:
    return {text for page, text, _, _ in promises() if page == PAGE.stem}


def test_every_row_of_what_works_where_has_a_test_through_headrace_serve() -> None:
    """It is marked with the promise "ROW, by headrace serve"."""
    _, _, part = PAGE.read_text().partition("\n## What works where\n")
    table = [line for line in part.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    rows = {f"{re.sub(r' [(].*', '', line.split('|')[1].strip())}, by headrace serve" for line in table}
    assert len(rows) == len(table) > 35
    assert {text for text in marks() if text.endswith(", by headrace serve")} == rows


def test_the_page_counts_the_defects_that_tests_show_to_be_absent() -> None:
    counted = re.search(r"lists all (\d+), each with its test", PAGE.read_text())
    assert counted is not None
    assert sum(text.startswith("absent here: ") for text in marks()) == int(counted[1])
