"""A grid as files for AWS Batch: the array file, the frozen jobs, the requests, the image, the roles."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import botocore.session
import msgspec
import pytest
import yaml
from botocore.validate import validate_parameters

from batch_grids import BATCH, SEED, exported, write_grid
from headrace.cli.options import write_files
from headrace.errors import HeadraceError, JobInvalid
from headrace.grid.batch.batch_requests import EXITS, retry_strategy
from headrace.grid.batch.grid_bundle import GRID, JOBS, line_of, read_frozen_grid, read_job
from headrace.job import Job

BATCH_MODEL = botocore.session.get_session().get_service_model("batch")


def test_the_seeds_array_file_comes_out_as_it_went_in_with_a_job_for_each_line(tmp_path: Path) -> None:
    made = exported(write_grid(tmp_path))
    assert made.bundle["array.txt"].decode() == SEED
    grid = read_frozen_grid(made.bundle[GRID], GRID)
    jobs = [read_job(made.bundle[JOBS], index) for index in range(4)]
    for row, line, job in zip(csv.reader(io.StringIO(SEED)), grid.lines, jobs, strict=True):
        assert [line.region, job["inputs"]["train"]["s3_data"]] == row
        assert job["engines"]["sagemaker"]["region"] == line.region
        assert job["job_name"] == line.job_name == f"imagenet-{line.key}"
    (code,) = [name for name in made.bundle if name.startswith("code-")]  # once for all lines
    assert {job["source_dir"] for job in jobs} == {code}
    with tarfile.open(fileobj=io.BytesIO(made.bundle[code])) as archive:
        assert archive.getnames() == ["train.py"]


def test_both_requests_are_what_the_api_takes(tmp_path: Path) -> None:
    made = exported(write_grid(tmp_path))
    for operation, request in (("RegisterJobDefinition", made.definition), ("SubmitJob", made.submission)):
        validate_parameters(request, BATCH_MODEL.operation_model(operation).input_shape)
    assert made.submission["arrayProperties"] == {"size": 4}
    assert made.submission["jobDefinition"] == made.definition["jobDefinitionName"]
    place = f"s3://ragab-ml/grids/{made.submission['jobName']}/array.txt"
    assert made.submission["containerOverrides"]["environment"] == [{"name": "S3_ARRAY_FILE", "value": place}]
    assert made.definition["containerProperties"]["command"] == ["/api/sage_wrapper.sh"]


def test_one_line_is_no_array_and_is_told_its_index(tmp_path: Path) -> None:
    made = exported(write_grid(tmp_path, SEED.splitlines()[0] + "\n"))
    assert "arrayProperties" not in made.submission
    assert {"name": "GRID_LINE", "value": "0"} in made.submission["containerOverrides"]["environment"]


@pytest.mark.promise("grid-batch", "the export of a grid to AWS Batch is reproducible and reads back as the same jobs")
def test_the_same_grid_gives_the_same_bytes_wherever_it_lies_and_another_one_another_job(tmp_path: Path) -> None:
    one, other = exported(write_grid(tmp_path / "a")), exported(write_grid(tmp_path / "b"))
    assert one.files == other.files
    (tmp_path / "b" / "code" / "train.py").write_text("print('changed')\n")
    os.utime(tmp_path / "a" / "code" / "train.py", (0, 0))
    assert exported(tmp_path / "a" / "array.yaml").names == one.names
    assert exported(tmp_path / "b" / "array.yaml").names.job != one.names.job


@pytest.mark.promise("grid-batch", "the export of a grid to AWS Batch is reproducible and reads back as the same jobs")
def test_another_form_of_lines_is_json_that_reads_back_as_the_same_jobs(tmp_path: Path) -> None:
    lines = {
        "product": {"hyperparameters.lr": [0.1, 0.01], "hyperparameters.text": ['comma, "quote"', "Größe"]},
        "zip": {"region": ["us-west-2", "eu-west-1"], "image": ["a/b:1", "a/b:2"]},
    }
    made = exported(write_grid(tmp_path / "a", lines))
    assert len(made.bundle["array.jsonl"].splitlines()) == 8
    write_grid(tmp_path / "b", {"file": "array.jsonl"})
    (tmp_path / "b" / "array.jsonl").write_bytes(made.bundle["array.jsonl"])
    again = exported(tmp_path / "b" / "array.yaml")
    assert again.bundle["array.jsonl"] == made.bundle["array.jsonl"]
    assert again.bundle[JOBS] == made.bundle[JOBS]


def test_scripts_dependencies_and_wheels_travel_and_each_line_has_its_own(tmp_path: Path) -> None:
    file = write_grid(
        tmp_path / "here",
        {"zip": {"entry_point": ["../one.py", "../two.py"], "region": ["us-west-2", "us-west-2"]}},
        job={"source_dir": None, "dependencies": ["../lib"], "engines": {"sagemaker": {"wheels": "../wheels"}}},
    )
    for name in ("one.py", "two.py", "lib/__init__.py", "wheels/a-1-py3-none-any.whl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    made = exported(file)
    there = tmp_path / "there"
    write_files(there, made.bundle, update=False)
    for index, script in enumerate(("one.py", "two.py")):
        job = read_job(made.bundle[JOBS], index)
        with tarfile.open(there / job["source_dir"]) as archive:
            assert sorted(archive.getnames()) == ["lib", "lib/__init__.py", script]
        assert job["entry_point"] == script
        wheels = there / job["engines"]["sagemaker"]["wheels"]
        assert [each.name for each in wheels.iterdir()] == ["a-1-py3-none-any.whl"]
        Job(base_path=there, **job).check_files()


def test_what_of_the_file_a_controller_heeds_has_no_effect_and_that_is_said(tmp_path: Path) -> None:
    made = exported(write_grid(tmp_path, budget={"usd": 5}, deadline=60))
    assert made.note.startswith("budget, deadline of the grid's file: no effect on AWS Batch")
    assert made.note in made.files["README.md"].decode()
    plain = exported(write_grid(tmp_path))
    assert (plain.note, "Not here" in plain.files["README.md"].decode()) == ("", False)


def test_the_example_is_the_grid_of_the_seeds_four_files(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "examples" / "seed-grid"
    made = exported(folder / "array.yaml")
    assert (folder / "sage_array.txt").read_text() == SEED
    assert made.bundle["array.txt"].decode() == SEED
    for index, row in enumerate(csv.reader(io.StringIO(SEED))):
        job = read_job(made.bundle[JOBS], index)
        assert f".{row[0]}." in job["image_uri"], "the image of its own region"
        assert job["output_path"].split("/")[2] == row[1].split("/")[2], "the bucket of its own region"
        assert job["instance_count"] * 8 == 80


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "sage_array.txt:2: engine local": ("region,engine\nus-east-1,local\n", {}),
    "must be copied to us-west-2, and copy_to names no place there": (
        "us-west-2,s3://far/a\n",
        {"placement": {"data": {"s3://far/a": {"region": "eu-west-1", "gigabytes": 3}}}},
    ),
    "no region where they can run": (
        "us-west-2,s3://far/a\n",
        {"placement": {"data": {"s3://far/a": {"region": "eu-west-1", "stays_in": ["eu-west-1"]}}}},
    ),
    "sage_array.txt:2: inputs.train.s3_data": ("us-west-2,s3://bucket/a\nus-west-2,data/b\n", {}),
    "batch.queue is missing": (SEED, {"batch": {**BATCH, "queue": None}}),
    "batch.bundle is missing": (SEED, {"batch": {**BATCH, "bundle": None}}),
    "the account cannot be told": (
        "region,role\nus-east-1,arn:aws:iam::123456789012:role/a\nus-east-1,arn:aws:iam::210987654321:role/a\n",
        {},
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_child_could_do_is_refused_before_anything_is_written(message: str, tmp_path: Path) -> None:
    lines, other = REFUSED[message]
    with pytest.raises(HeadraceError) as found:
        exported(write_grid(tmp_path, lines, **other))
    assert message in found.value.message


def test_what_sagemaker_would_refuse_is_told_for_all_lines_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid) as found:
        exported(write_grid(tmp_path, SEED, job={"role": "nobody", "image_uri": None}))
    named = {problem.file.rpartition("/")[2] for problem in found.value.problems}
    assert named == {f"sage_array.txt:{number}" for number in (1, 2, 3, 4)}


def allowed(policy: dict[str, Any], action: str, resource: str) -> bool:
    return any(
        action in each["Action"] and any(fnmatch.fnmatchcase(resource, pattern) for pattern in each["Resource"])
        for each in policy["Statement"]
    )


@pytest.mark.promise("grid-batch", "the job role of a grid on AWS Batch may touch its own names only")
def test_the_job_role_may_touch_this_grids_names_only(tmp_path: Path) -> None:
    made = exported(write_grid(tmp_path))
    document = yaml.safe_load(made.files["roles.yaml"])
    policy = document["Resources"]["JobRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert len(json.dumps(policy)) < 10_240  # what IAM takes
    own, other = read_frozen_grid(made.bundle[GRID], GRID).lines[1].job_name, "resnet-0123456789ab"
    for name, may in ((own, True), (other, False)):
        there = "arn:aws:sagemaker:us-west-2:123456789012:training-job"
        for action in ("sagemaker:CreateTrainingJob", "sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"):
            assert allowed(policy, action, f"{there}/{name}") is may
            assert not allowed(policy, action, f"{there.replace('us-west-2', 'ap-south-1')}/{name}")
        base = "arn:aws:s3:::ragab-ml/out/headrace"
        assert allowed(policy, "s3:PutObject", f"{base}/channels/{name}/run.tar.gz") is may
        assert allowed(policy, "s3:GetObject", f"{base}/runs/{name}-20261123-010203-abcd/state.json") is may
    assert not allowed(policy, "s3:DeleteObject", "arn:aws:s3:::ragab-ml/out/headrace/shared/0123/code.tar.gz")
    assert not allowed(policy, "s3:GetObject", "arn:aws:s3:::ragab-ml/imagenet2012/tf-imagenet/resized/0")
    assert allowed(policy, "s3:GetObject", f"arn:aws:s3:::ragab-ml/grids/{made.names.job}/grid.json")
    for each in policy["Statement"]:
        assert "*" not in each["Resource"], each["Sid"]
    (give,) = [each for each in policy["Statement"] if each["Action"] == ["iam:PassRole"]]
    assert give["Resource"] == ["arn:aws:iam::123456789012:role/sagemaker-sdk"]
    assert give["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}


def test_roles_and_image_that_the_user_names_are_taken(tmp_path: Path) -> None:
    roles = {"job_role": "arn:aws:iam::123456789012:role/a", "execution_role": "arn:aws:iam::123456789012:role/b"}
    made = exported(write_grid(tmp_path, batch={**BATCH, **roles, "image": "team/image:1"}))
    container = made.definition["containerProperties"]
    assert [container["jobRoleArn"], container["executionRoleArn"]] == list(roles.values())
    assert container["image"] == "team/image:1"
    assert not [name for name in made.files if name.startswith("image/") or name == "roles.yaml"]


def action_after(exit_code: int | None, reason: str, status_reason: str) -> str:
    """What AWS Batch does, by its documentation: the first rule whose conditions all hold, else RETRY."""
    seen = {"onExitCode": str(exit_code or ""), "onReason": reason, "onStatusReason": status_reason}
    for rule in retry_strategy(3)["evaluateOnExit"]:  # type: ignore[attr-defined]
        if all(fnmatch.fnmatchcase(seen[name], rule[name]) for name in seen if name in rule):
            return str(rule["action"])
    return "RETRY"


def test_batch_tries_again_only_what_says_nothing_about_the_line() -> None:
    after = {code: action_after(code, "", "Essential container in task exited") for code in (*EXITS, 137)}
    assert {code for code, action in after.items() if action == "RETRY"} == {75, 137}
    assert action_after(None, "", "Host EC2 (instance i-0123) terminated.") == "RETRY"
    assert action_after(None, "CannotPullContainerError: no such image", "Task failed to start") == "EXIT"


def test_the_wrapper_fails_loudly_without_array_or_index(tmp_path: Path) -> None:
    wrapper = tmp_path / "sage_wrapper.sh"
    wrapper.write_bytes(exported(write_grid(tmp_path)).image["sage_wrapper.sh"])
    for environment, words in (
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, "S3_ARRAY_FILE is not set"),
        ({"S3_ARRAY_FILE": "s3://bucket/array.txt"}, "nothing says which line"),
    ):
        path = {"PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", wrapper], env=path | environment, capture_output=True, text=True, timeout=20)
        assert (done.returncode, words in done.stderr) == (2, True)


def test_an_index_out_of_range_and_an_empty_region_are_errors(tmp_path: Path) -> None:
    grid = read_frozen_grid(exported(write_grid(tmp_path)).bundle[GRID], GRID)
    for index in (-1, 4):
        with pytest.raises(HeadraceError, match="has 4 lines"):
            line_of(grid, index)
    assert line_of(grid, 3).region == "eu-central-1"
    empty = msgspec.structs.replace(grid, lines=(msgspec.structs.replace(grid.lines[0], region=""),))
    with pytest.raises(HeadraceError, match="names no region"):
        line_of(empty, 0)
