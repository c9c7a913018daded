"""`headrace grid plan`, as a user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli

JOB = """
entry_point: train.py
source_dir: code
instance_groups: [{name: data_group, type: ml.c5.xlarge, count: 1}, {name: dnn_group, type: ml.m5.xlarge, count: 2}]
inputs: {train: s3://bucket/all}
stopping_condition: {max_run: 3600}
"""
ARRAY = """
name: campaigns
job: job.yaml
lines: {file: a.txt}
placement:
  data:
    s3://sf: {region: us-west-1, gigabytes: 100}
    s3://fra: {region: eu-central-1, gigabytes: 100, stays_in: [eu-central-1]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "array.yaml").write_text(ARRAY)
    return tmp_path


def planned(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["grid", "plan", str(folder / "array.yaml"), *options])


def test_the_plan_says_where_every_line_runs_and_what_is_copied_once_for_all(folder: Path) -> None:
    (folder / "a.txt").write_text("us-east-1,s3://sf/1\nus-east-1,s3://sf/1\neu-central-1,s3://fra/1\n")
    done = planned(folder)
    assert done.exit_code == 0, done.output
    assert "campaigns: 3 lines" in done.output
    assert "train=s3://sf/1" in done.output
    assert "a.txt:1 and" in done.output.replace(f"{folder}/", "")  # two lines say the same
    document = json.loads(planned(folder, "--output", "json").output)
    assert [line["chosen"]["region"] for line in document["lines"]] == ["us-east-1", "us-east-1", "eu-central-1"]
    assert len({line["job_name"] for line in document["lines"]}) == 3
    (copy,) = document["copies"]
    assert (copy["source"], copy["region"], copy["cost"], copy["lines"]) == ("us-west-1", "us-east-1", 2.0, [0, 1])
    totals = {region["region"]: region for region in document["regions"]}
    assert totals["us-east-1"]["hosts"] == 6
    assert document["cost"] == pytest.approx(sum(each["run_cost"] + each["copy_cost"] for each in totals.values()))


def test_data_of_which_nothing_is_known_are_named(folder: Path) -> None:
    (folder / "a.txt").write_text("us-east-1,s3://sf/1\nus-east-1,s3://other/2\n")
    assert "placement.data says nothing of s3://other/2" in planned(folder).output
    assert json.loads(planned(folder, "--output", "json").output)["unknown"] == [{"place": "s3://other/2", "line": 1}]


def test_a_line_that_can_run_nowhere_is_shown_with_what_is_against_each_region(folder: Path) -> None:
    (folder / "a.txt").write_text("us-east-1,s3://fra/1\n")
    done = planned(folder)
    assert done.exit_code == 1
    assert "no region is left" in done.output
    assert "law s3://fra/1" in done.output


def test_a_wrong_line_is_an_error_of_the_user(folder: Path) -> None:
    (folder / "a.txt").write_text("us-east-1,s3://sf/1\n,s3://sf/2\n")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "grid", "plan", "array.yaml"], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: a.txt:2: region: must be a region\nhint: ")


def test_ten_thousand_lines_are_planned_in_seconds_of_cpu(folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"us-east-1,s3://sf/{number}\n" for number in range(10_000)))
    before = time.process_time()
    done = planned(folder, "--output", "json")
    assert time.process_time() - before < 15  # 4 s on a quiet machine; a step of n * n would take minutes
    assert len(json.loads(done.output)["lines"]) == 10_000


def test_lines_of_an_engine_without_regions_are_planned_without_one_and_sagemaker_takes_the_jobs_own(
    folder: Path,
) -> None:
    array = "name: here\njob: job.yaml\nlines: {product: {hyperparameters.lr: [1, 2]}}\n"
    (folder / "job.yaml").write_text(JOB.replace("inputs: {train: s3://bucket/all}\n", ""))
    (folder / "array.yaml").write_text(array)
    done = planned(folder)
    assert done.exit_code == 0, done.output
    assert "its engine has no regions" in done.output
    document = json.loads(planned(folder, "--output", "json").output)
    assert [line["chosen"]["region"] for line in document["lines"]] == ["", ""]
    assert document["cost"] > 0
    (folder / "array.yaml").write_text(f"{array}engine: sagemaker\n")
    assert planned(folder).exit_code == 1
    with (folder / "job.yaml").open("a") as job:
        job.write("engines: {sagemaker: {region: eu-west-1}}\n")
    document = json.loads(planned(folder, "--output", "json").output)
    assert {line["chosen"]["region"] for line in document["lines"]} == {"eu-west-1"}
