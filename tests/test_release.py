"""What a release says about itself is the same everywhere: its version, the Pythons, the raw data behind the pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from headrace import __version__

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


def text(name: str) -> str:
    return (ROOT / name).read_text()


def workflow(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text(f".github/workflows/{name}.yml"))["jobs"])


def test_the_changelog_and_the_citation_name_the_version_and_its_day() -> None:
    headings = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    citation = yaml.safe_load(text("CITATION.cff"))
    assert headings[:2] == ["[Unreleased]", f"[{__version__}] - {citation['date-released']}"]
    assert citation["version"] == __version__


def test_every_python_of_the_package_is_tested_checked_and_named_to_users() -> None:
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))
    tested = workflow("tests")["bare"]["strategy"]["matrix"]["python"]
    steps = workflow("release")["build"]["steps"]
    released = next(step["with"]["python-version"].split() for step in steps if "setup-python" in step.get("uses", ""))
    checked = re.search(r"^for minor in \$\{\*:-(.*)\}; do$", text("scripts/release-check"), re.MULTILINE)
    assert checked is not None
    assert checked[1].split() == tested == sorted(released)
    assert tested[: len(pythons)] == pythons
    for page in ("README.md", "docs/install.md"):
        assert f"{pythons[0]} to {pythons[-1]}" in text(page)


def test_raw_data_are_kept_of_what_a_page_shows_or_a_measurement_reads_and_of_nothing_else() -> None:
    pages = " ".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    names = {path.stem for path in RESULTS.iterdir()}
    shown = {name for name in names if f"{name}." in pages}
    swept = {path.stem for pattern in ("feed-sweep-*.csv", "shards-sweep-*.csv") for path in RESULTS.glob(pattern)}
    assert names - swept - shown == set()
