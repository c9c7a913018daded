"""`headrace plan` and `headrace schema`: what of a job has no effect here, requests as job files, the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from command_line import Cli


def request(tmp_path: Path, **members: object) -> str:
    path = tmp_path / "request.json"
    written = {
        "TrainingJobName": "from-request",
        "RoleArn": "arn:aws:iam::123456789012:role/Train",
        "AlgorithmSpecification": {"TrainingImage": "image:1", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **members,
    }
    path.write_text(json.dumps(written, indent=2))
    return str(path)


def test_what_has_no_effect_here_is_listed_for_people_and_for_programs(cli: Cli, job_file: Callable[..., str]) -> None:
    path = job_file("", extra="role: me\nstopping_condition: {max_run: 5, max_wait: 9}\n")
    shown = cli("plan", path)
    assert shown.returncode == 0, shown.stderr
    assert "without effect here" in shown.stdout
    told = json.loads(cli("plan", path, "--output", "json").stdout)["without_effect"]
    assert [item["field"] for item in told] == ["role", "stopping_condition.max_wait"]
    assert all(item["why"] in shown.stdout for item in told)
    assert "without effect" not in cli("plan", job_file("", name="other")).stdout


def test_a_request_is_planned_as_it_is_or_refused_with_a_hint(cli: Cli, tmp_path: Path) -> None:
    refused = cli("plan", request(tmp_path))
    assert refused.returncode == 2
    where = "AlgorithmSpecification.TrainingImage: the image brings the program, and the local engine runs no images"
    assert where in refused.stderr
    assert "hint: name the code" in refused.stderr
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    path = request(tmp_path, HyperParameters={"sagemaker_program": '"train.py"', "epochs": "3"})
    planned = cli("plan", path, "--set", "source_dir=code", "--output", "json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert [host["name"] for host in plan["hosts"]] == ["algo-1", "algo-2"]
    assert plan["hosts"][0]["programs"][0]["argv"][1:] == ["train.py", "--epochs", "3"]
    assert {item["field"] for item in plan["without_effect"]} == {"image_uri", "role"}


def test_the_schemas_are_printed(cli: Cli) -> None:
    for arguments, key in (((), "job_name"), (("--request",), "TrainingJobName")):
        schema = json.loads(cli("schema", *arguments).stdout)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert key in schema["properties"]
