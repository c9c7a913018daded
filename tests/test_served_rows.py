"""Every row of the table that says what `headrace serve` does names tests of `make test`, and these exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
BY_HAND = re.compile(r"`make sagemaker-sdk3`")
"""What needs the registry of Python, and so is no part of `make test`."""


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading, without its head."""
    _, _, part = (DOCS / page).read_text().partition(f"\n## {heading}\n")
    table = part[part.index("\n|") + 1 :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


COMPARED = rows("sagemaker.md", "What works where")


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row[0].strip("` ")[:60])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    found = NAMED.findall(row[-1])
    assert found or BY_HAND.search(row[-1]), "what headrace serve does here has no test"
    for file, test in found:
        assert re.search(rf"^ *def {test}\(", (TESTS / file).read_text(), re.MULTILINE), f"there is no {file}::{test}"


def test_all_rows_are_read() -> None:
    assert len(COMPARED) >= 39
    assert {len(row) for row in COMPARED} == {5}
