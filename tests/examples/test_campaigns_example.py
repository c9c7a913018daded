"""examples/campaigns: a database of campaigns becomes jobs in two regions, which train, and a report."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from effort import SOAK

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
HEADRACE = [sys.executable, "-m", "headrace.cli"]
RATES = (0.001, 0.004)
RECENT = [("sf-autumn", "us-west-2"), ("detroit-autumn", "us-east-1"), ("detroit-night", "us-east-1")]


@pytest.fixture
def campaigns(tmp_path: Path) -> Path:
    """A copy of the example, with its database and data."""
    for name in ("campaigns", "digits"):
        ignored = shutil.ignore_patterns("data", "campaigns.db", "__pycache__")
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=ignored)
    folder = tmp_path / "campaigns"
    spec = importlib.util.spec_from_file_location("campaigns_prepare", folder / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    prepare.main(folder)
    return folder


def asked(folder: Path, *words: str) -> dict:
    command = [*HEADRACE, "grid", *words, "--output", "json"]
    return json.loads(subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)


def test_the_database_gives_each_recent_campaign_two_lines_in_the_region_of_its_data(campaigns: Path) -> None:
    plan = asked(campaigns, "plan", "array.yaml", "--check")
    fields = [line["fields"] for line in plan["lines"]]
    assert [(each["inputs.training.path"], each["hyperparameters.learning_rate"]) for each in fields] == [
        (f"data/{name}", rate) for name, _ in RECENT for rate in RATES
    ]
    assert [line["chosen"]["region"] for line in plan["lines"]] == [region for _, region in RECENT for _ in RATES]
    assert plan["copies"] == []
    assert all(line["chosen"]["cost"] > 0 for line in plan["lines"])


if SOAK:  # six real jobs, one after the other

    def test_all_lines_train_and_the_report_names_the_best(campaigns: Path) -> None:
        ended = asked(campaigns, "run", "array.yaml")
        assert [line["state"] for line in ended["lines"]] == ["completed"] * 6
        report = asked(campaigns, "report", "campaigns")
        accuracy = [line["metrics"]["accuracy"] for line in report["lines"]]
        assert len(accuracy) == 6
        assert max(accuracy) > 0.85
        assert all(line["cost"] > 0 for line in report["lines"])
