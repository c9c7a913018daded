"""Every defect that docs/sagemaker.md says is absent has a test, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "sagemaker.md"
ROW = re.compile(r"^\| (?P<there>.+?) \| (?P<here>.+?) \| `(?P<file>[\w/]+\.py)::(?P<test>\w+)` \|$")


def rows() -> list[str]:
    """The rows of the page's tables of defects, without their heads."""
    _, _, part = PAGE.read_text().partition("## What goes wrong there, and what happens here")
    return [line for line in part.splitlines() if line.startswith("|") and not line.startswith(("| there |", "|---"))]


@pytest.mark.promise("sagemaker", "every defect of the service and its SDK that the page names is absent")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:60])
def test_the_test_of_a_defect_exists(row: str) -> None:
    found = ROW.match(row)
    assert found is not None, "a row is: what goes wrong there, what happens here, the test"
    assert re.search(rf"^def {found['test']}\(", (TESTS / found["file"]).read_text(), re.MULTILINE)


def test_all_tables_are_read() -> None:
    assert len(rows()) > 50
