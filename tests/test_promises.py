"""Every promise of the documentation has tests that exist, at least one of them in the normal run; so do the cases of
other suites in OUTSIDE.md, or a reason."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from runpy import run_path

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
NAMED = re.compile(r"(?P<file>[\w/]+\.py)::(?P<test>\w+)(\[(?P<row>.+)\])?$")
OUTSIDE = TESTS / "OUTSIDE.md"
SUITES = {
    "torch", "torchdata", "grain", "WebDataset", "TensorFlow", "Lightning", "Accelerate",
    "sagemaker-training-toolkit", "torchx", "submitit", "Kubeflow Trainer", "SkyPilot", "Hydra", "Ray Tune",
}  # fmt: skip
WITHOUT_PROMISES = {  # pages that explain, measure or lead to others
    "architecture", "benchmark-figures", "benchmarks", "feed-arrays", "feed-cluster", "first-loader", "glossary",
    "index", "stability", "sweep", "tensorflow-tutorial", "tutorial", "when-not",
}  # fmt: skip


@cache
def cases_of(file: str) -> dict[str, bool]:
    """The tests of a file, and whether the normal run has them: it leaves out what stands below `if SOAK`."""
    tree = ast.parse((TESTS / file).read_text())
    return {
        node.name: node in tree.body
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def is_in_the_normal_run(test: str) -> bool:
    """Whether `make test` runs a test. Fails when the test does not exist."""
    named = NAMED.match(test)
    assert named is not None, f"a test is FILE::TEST or FILE::TEST[ROW of the fault table], not {test}"
    assert named["test"] in cases_of(named["file"]), f"there is no {test}"
    if named["row"] is None:
        return cases_of(named["file"])[named["test"]]
    rows = fault_rows()
    assert named["row"] in rows, f"the fault table has no row {named['row']}"
    return not rows[named["row"]]


@cache
def fault_rows() -> dict[str, bool]:
    """The rows of the fault table, and which of them are left to the long run."""
    sys.path[:0] = folders = [str(TESTS / "engines"), str(TESTS / "proof")]
    try:
        from fault_table import ROWS
    finally:
        for folder in folders:
            sys.path.remove(folder)
    return {name: row.soak for name, row in ROWS.items()}


@cache
def promises() -> tuple[tuple[str, str, str, bool], ...]:
    """The marks of the tests: page, text, test, whether it is in every run. Raises where a mark cannot be read."""
    return tuple(run_path(str(TESTS.parent / "scripts" / "site_pages.py"))["promises"]())


def test_a_promise_is_held_by_a_test_of_the_normal_run() -> None:
    normal = {text for _, text, _, is_in_every_run in promises() if is_in_every_run}
    assert {text for _, text, _, _ in promises()} - normal == set(), "all tests are left to `make soak`"
    assert len(normal) > 200


def test_a_promise_is_given_by_one_page_that_is_there() -> None:
    pages = {text: page for page, text, _, _ in promises()}
    assert [(page, test) for page, text, test, _ in promises() if pages[text] != page] == []
    assert {page for page in pages.values() if not (DOCS / f"{page}.md").exists()} == set()


def test_every_page_that_promises_is_there() -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} - WITHOUT_PROMISES
    assert pages - {page for page, _, _, _ in promises()} == set()


def test_the_lines_of_the_page_of_security_have_marks() -> None:
    lines = re.findall(r"^\| (?!---).* \|$", (DOCS / "security.md").read_text(), re.MULTILINE)
    kept = {text for page, text, _, _ in promises() if page == "security"}
    assert len(kept) > 20
    assert len(kept) >= len(lines) - 4, "each line of the four tables, without their heads, is a promise"


def test_every_case_of_another_suite_has_a_test_of_the_normal_run_or_a_reason() -> None:
    suites: dict[str, int] = {}
    for line in OUTSIDE.read_text().splitlines():
        if line.startswith("## "):
            suites[suite := line.removeprefix("## ").partition(":")[0]] = 0
        elif line.startswith("| ") and not line.startswith("| case |"):
            case, answer = line.removeprefix("| ").removesuffix(" |").split(" | ")
            tests = [name for name in re.findall(r"`([^`]+)`", answer) if "::" in name]
            normal = [is_in_the_normal_run(test) for test in tests]  # all of them are looked for
            assert any(normal) or re.sub(r"`[^`]+`", "", answer).strip(" ;"), f"neither a test nor a reason: {case}"
            suites[suite] += 1
    assert set(suites) == SUITES
    assert min(suites.values()) > 5
