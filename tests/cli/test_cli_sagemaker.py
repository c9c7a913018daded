"""`headrace plan` and `run` for Amazon SageMaker: what is shown, what the options stand for; nothing is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli

ROLE = "arn:aws:iam::123456789012:role/training"
JOB = """
source_dir: .
entry_point: train.py
instance_groups:
  - {name: data_group, type: ml.c5.xlarge, count: 2}
  - {name: dnn_group, type: ml.p3.2xlarge, count: 1}
inputs: {training: {s3_data: s3://bucket/data, instance_groups: [data_group]}}
framework_version: "2.6"
engines: {sagemaker: {framework: pytorch}}
"""
SENT = ["--engine", "sagemaker", "--role", ROLE, "--output", "s3://bucket/out", "--region", "us-west-2"]


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "digits.yaml").write_text(JOB)
    return str(tmp_path / "digits.yaml")


@pytest.mark.promise("engines", "limits, on sagemaker")
def test_plan_shows_the_request_the_uploads_the_actions_and_the_price_as_text_and_json(cli: Cli, job: str) -> None:
    done = cli("plan", job, *SENT)
    assert done.returncode == 0, done.stderr
    for words in (
        "region: us-west-2; image: 763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.6.0-gpu-py312",
        "upload: headrace, the job, its code and its secret: s3://bucket/out/headrace/channels/digits/",
        "sagemaker:CreateTrainingJob",
        '"TrainingJobName": "digits"',
        "USD",
    ):
        assert words in done.stdout, words
    both = cli("plan", job, *SENT, "--output", "json")
    shown = json.loads(both.stdout)
    assert shown["submission"]["request"]["RoleArn"] == ROLE
    assert shown["submission"]["operation"] == "CreateTrainingJob"
    assert set(shown["submission"]["permissions"]) == {"submitter", "role"}
    assert shown["cost"]["region"] == "us-west-2"
    assert "submission" not in json.loads(cli("plan", job, "--set", "inputs=", "--output", "json").stdout)


@pytest.mark.promise("engines", "what it submits, on sagemaker")
def test_what_would_be_sent_is_written_as_files(cli: Cli, job: str, tmp_path: Path) -> None:
    assert cli("plan", job, *SENT, "--render", str(tmp_path / "out")).returncode == 0
    request = json.loads((tmp_path / "out" / "request.json").read_text())
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/out"}
    needed = json.loads((tmp_path / "out" / "needed.json").read_text())
    assert needed["permissions"]["submitter"][0]["actions"][0] == "sagemaker:CreateTrainingJob"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--region", "eu-west-1"], "the local engine has no regions"),
        (["run", "--output", "xml"], "'xml' is not 'text', 'json' or an s3:// URI"),
        (["plan", "--region", "mars-1"], "no price in 'mars-1' is known"),
        (["plan", "--engine", "sagemaker", "--region", "us-west-2"], "role: is required in a request"),
        (["plan", *SENT, "--region", "mars"], "must be a region of AWS"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed_and_nothing_is_sent(
    cli: Cli, job: str, arguments: list[str], words: str
) -> None:
    command, *others = arguments
    done = cli(command, job, *others)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_plan_for_the_service_loads_no_library_of_aws(job: str) -> None:
    code = (
        "import sys\nfrom headrace.cli.main import invoke\n"
        f"code = invoke({['plan', job, *SENT]!r})\n"
        "found = sorted({'boto3', 'botocore'} & set(sys.modules))\nsys.exit(f'{code} {found}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1:] == ["0 []"]
