"""`report` and `compare` as documents: Markdown, HTML, and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli
from test_cli_runs import make

FIRST = {"html": "<!doctype html>"}


@pytest.mark.parametrize("output", ["html", "text"])
def test_a_file_holds_what_standard_output_would(cli: Cli, tmp_path: Path, output: str) -> None:
    paths = make(cli, "j")
    shown = cli("report", "j", "--output", output)
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "report.out"
    written = cli("report", "j", "--output", output, "--file", str(file))
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert file.read_text() == shown.stdout
    assert shown.stdout.startswith(FIRST.get(output, paths.id))
    assert shown.stdout.endswith("\n")
    assert list(folder.iterdir()) == [file]


def test_a_comparison_is_one_page(cli: Cli, tmp_path: Path) -> None:
    slow, fast = make(cli, "slow"), make(cli, "fast", wait=0.25)
    file = tmp_path / "compare.html"
    assert cli("compare", "slow", "fast", "--output", "html", "--file", str(file)).returncode == 0
    page = file.read_text()
    assert slow.id in page
    assert fast.id in page
    assert page.count("<figure") == 3
    assert f"headrace compare {slow.id} {fast.id} --output json" in page


def test_a_file_that_cannot_be_written_is_the_users_mistake(cli: Cli, tmp_path: Path) -> None:
    make(cli, "j")
    folder = tmp_path / "out"
    folder.mkdir()
    for file in (folder / "no" / "such.html", folder):
        result = cli("report", "j", "--output", "html", "--file", str(file))
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: --file {file} cannot be written")
        assert "hint: " in result.stderr
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.glob(".out*"))


def test_the_report_begins_with_the_verdict_its_next_step_and_its_rule(cli: Cli) -> None:
    paths = make(cli, "j")
    lines = cli("report", "j").stdout.splitlines()
    assert lines[0].startswith(paths.id)
    assert lines[1] == "input-bound: the ranks wait 50.0 % of their step time for batches"
    assert lines[2].startswith("  next: make batches faster")
    assert lines[3] == "  rule: data_wait >= 20 % (highly input-bound)"
    found = json.loads(cli("report", "j", "--output", "json").stdout)
    assert (found["verdict"]["name"], found["verdict"]["band"]) == ("input-bound", "highly")
    assert found["verdict"]["evidence"][0]["name"] == "data_wait"
