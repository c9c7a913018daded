"""What a grid reads and where it copies to: measured, and looked for before anything starts, all problems at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flaky_s3 import flaky
from headrace.cli.main import cli
from headrace.errors import UsageError
from headrace.grid.copied_object import CopyFailed, CopyFailure
from headrace.grid.copy_action import plan_copy
from headrace.grid.data_places import check_places
from headrace.grid.load_grid import load_grid
from headrace.grid.plan_grid import plan_grid
from headrace.instance.s3 import S3, S3Access
from objectstore import ObjectStore

JOB = """
entry_point: train.py
source_dir: code
instance_type: ml.m5.xlarge
instance_count: 1
inputs: {train: s3://bucket/all}
stopping_condition: {max_run: 3600}
"""
ARRAY = """
name: campaigns
job: job.yaml
lines: {file: a.csv}
placement:
  regions: [us-east-1]
  data:
    s3://BUCKET/sf: {region: us-west-1}
    s3://BUCKET/fra: {region: us-east-1}
"""


@pytest.fixture
def folder(tmp_path: Path, s3: ObjectStore) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "array.yaml").write_text(ARRAY.replace("BUCKET", s3.bucket))
    return tmp_path


def planned(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["grid", "plan", str(folder / "array.yaml"), *options])


def said(folder: Path, *options: str) -> str:
    done = planned(folder, *options)
    assert isinstance(done.exception, UsageError), done.output
    return str(done.exception).replace(f"{folder}/", "")


def test_data_of_unknown_size_are_listed_so_that_their_copies_are_planned(folder: Path, s3: ObjectStore) -> None:
    (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('sf/1')}\n{s3.uri('sf/2/')}\n{s3.uri('sf/1')}\n")
    for number in range(3):
        s3.put(f"sf/1/{number}", b"x" * 1_000_000)
    s3.put("sf/2/one", b"x" * 500_000)
    assert "size of the data unknown" in planned(folder).output
    with flaky(s3.endpoint) as proxy:  # each region is asked in its own way
        with (folder / "array.yaml").open("a") as file:
            file.write(f"in_regions: {{us-west-1: {{engines.sagemaker.endpoint_url: {proxy.endpoint}}}}}\n")
        assert "write into placement.data, such as" in planned(folder, "--measure").output.replace("\n", " ")
        document = json.loads(planned(folder, "--measure", "--output", "json").output)
        assert proxy.requests.total() >= 2
        (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('sf/3')}\n{s3.uri('sf/1')}\n{s3.uri('sf/4')}\n")
        wrong = said(folder, "--measure")
        assert f"a.csv:2: inputs: {s3.uri('sf/3')} holds no objects" in wrong
        assert f"a.csv:4: inputs: {s3.uri('sf/4')} holds no objects" in wrong
    copies = {each["place"].removeprefix(s3.uri()): each for each in document["copies"]}
    assert [(each["gigabytes"], each["objects"], each["lines"]) for _, each in sorted(copies.items())] == [
        (0.003, 3, [0, 2]),
        (0.0005, 1, [1]),
    ]
    assert copies["sf/1"]["cost"] == pytest.approx(0.003 * 0.02)


@pytest.mark.promise("grid-reference", "all data, code and places for copies that a grid lacks are told at once")
def test_all_that_is_not_there_is_told_at_once_before_anything_starts(folder: Path, s3: ObjectStore) -> None:
    (folder / "here").mkdir()
    (folder / "a.csv").write_text(
        f"inputs.train.path,entry_point\n{s3.uri('fra/1')},\n{s3.uri('fra/2')},\n./here,\n./nowhere,no.py\n"
        f"s3://no-such-{s3.bucket}/1,\n{s3.uri('fra/2')},\n{s3.uri('sf/1')},\n"
    )
    s3.put("fra/1/a", b"1")
    s3.put("sf/1/a", b"1")
    wrong = said(folder, "--measure", "--check")
    for line in (
        f"a.csv:3, and 1 lines more: inputs: {s3.uri('fra/2')} holds no objects",
        "a.csv:5: inputs.train.s3_data: must be a folder; nowhere does not exist (got './nowhere')",
        "a.csv:5: entry_point: must be a file in source_dir",
        f"a.csv:6: inputs: s3://no-such-{s3.bucket}/1: there is no such bucket",
        f"a.csv:8: placement.copy_to: must name a place for the copy of {s3.uri('sf/1')} to us-east-1",
    ):
        assert line in wrong
    assert wrong.count("a.csv:") == 5
    (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('fra/1')}\n{s3.uri('sf/1')}\n")
    array = (folder / "array.yaml").read_text()
    (folder / "array.yaml").write_text(f"{array}  copy_to: {{us-east-1: s3://no-such-{s3.bucket}/copies}}\n")
    assert f"placement.copy_to.s3://no-such-{s3.bucket}/copies: s3://no-such" in said(folder, "--measure", "--check")
    (folder / "array.yaml").write_text(f"{array}  copy_to: {{us-east-1: {s3.uri('copies')}}}\n")
    assert planned(folder, "--measure", "--check").exit_code == 0


def test_a_bucket_in_another_region_than_was_said_is_an_error(
    folder: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3, "of_aws", True)
    (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('fra/1')}\n")
    s3.put("fra/1/a", b"1")
    wrong = said(folder, "--check")
    assert f"placement.data.{s3.uri('sf')}: must be in us-west-1; the bucket is in us-east-1" in wrong
    assert wrong.count("the bucket is in") == 1
    with pytest.raises(CopyFailed) as failed:
        plan_copy(s3.uri("fra"), s3.uri("copies"), target=S3Access(region="eu-west-1"))
    assert failed.value.failure is CopyFailure.WRONG_REGION
    assert s3.listed() == ["fra/1/a"]


def test_what_holds_for_all_places_is_told_once(folder: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.csv").write_text("inputs.train.path\n" + "".join(f"{s3.uri(f'sf/{n}')}\n" for n in range(50)))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert said(folder, "--measure").count("no AWS credentials were found") == 1
    assert said(folder, "--check").count("no AWS credentials were found") == 3  # a place, two buckets
    grid = load_grid(folder / "array.yaml")
    check_places(grid, plan_grid(grid), only_missing=True)


def test_a_plan_tells_what_is_not_on_this_disk_and_asks_s3_only_with_check(
    folder: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('fra/1')}\n./nowhere\n{s3.uri('fra/2')}\n./nor-here\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    told = said(folder)
    assert [line.partition(": ")[0] for line in told.splitlines() if "a.csv:" in line] == ["a.csv:3", "a.csv:5"]
    assert "nowhere" in told
    assert "nor-here" in told


def test_a_grid_is_not_started_when_something_is_not_there(
    folder: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(folder / "home"))
    (folder / "a.csv").write_text(f"inputs.train.path\n{s3.uri('fra/1')}\n./nowhere\n")
    done = CliRunner().invoke(cli, ["grid", "run", str(folder / "array.yaml")])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).count("a.csv:") == 2
    assert not (folder / "home").exists()
