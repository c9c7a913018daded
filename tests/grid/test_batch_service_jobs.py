"""Lines as SageMaker service jobs of AWS Batch: the requests against botocore's models, and each submitted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber
from botocore.validate import validate_parameters

from batch_grids import BATCH, SEED, exported, write_grid
from headrace.cloud.aws_calls import Aws
from headrace.errors import HeadraceError
from headrace.grid.batch.service_jobs import MAX_PAYLOAD, ServiceJob, service_jobs
from headrace.grid.batch.submit_service_jobs import submit_service_jobs

SESSION = botocore.session.get_session()
REGIONS = ("us-east-1", "us-west-2", "eu-west-1", "eu-central-1")
QUEUES = {**BATCH, "service_queues": {region: f"service-{region}" for region in REGIONS}}


def made(folder: Path, lines: Any = SEED, **other: Any) -> tuple[ServiceJob, ...]:
    export = exported(write_grid(folder, lines, **{"batch": QUEUES, **other}))
    return service_jobs(export.bundle, export.names, export.options, export.images)


def test_each_line_is_a_request_that_batch_and_sagemaker_take_and_the_same_one_each_time(tmp_path: Path) -> None:
    jobs = made(tmp_path / "a")
    assert jobs == made(tmp_path / "b"), "tokens too: Batch takes a second submission for the first one"
    assert len({request["clientToken"] for _, request in jobs}) == 4
    submit = SESSION.get_service_model("batch").operation_model("SubmitServiceJob").input_shape
    create = SESSION.get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    for (region, request), row in zip(jobs, SEED.splitlines(), strict=True):
        validate_parameters(request, submit)
        payload = json.loads(request["serviceRequestPayload"])
        validate_parameters(payload, create)
        assert [region, payload["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]] == row.split(",")
        assert request["jobName"] == payload["TrainingJobName"]
        assert request["jobQueue"] == f"service-{region}"
        code = json.loads(payload["HyperParameters"]["sagemaker_submit_directory"])
        assert code.startswith("s3://ragab-ml/grids/imagenet-")
        assert code.endswith(".tar.gz")
        assert "ContainerEntrypoint" not in payload["AlgorithmSpecification"], "the image starts the program"


@pytest.mark.parametrize(
    ("message", "other"),
    [
        (
            "no queue for service jobs is named for us-west-2",
            {"batch": {**QUEUES, "service_queues": {"us-east-1": "a"}}},
        ),
        ("completion: has no place in a service job", {"job": {"completion": {"instance_groups": ["dnn_group"]}}}),
        (
            f"must have at most {MAX_PAYLOAD} bytes",
            {"job": {"hyperparameters": {f"k{n}": "x" * 2000 for n in range(6)}}},
        ),
    ],
    ids=["queue", "agents", "size"],
)
def test_what_no_service_job_can_be_is_refused(tmp_path: Path, message: str, other: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError) as found:
        made(tmp_path, **other)
    assert message in found.value.message


def test_a_line_is_submitted_once_and_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    (job,) = made(tmp_path, SEED.splitlines()[1] + "\n")
    aws = Aws("us-east-1")
    asked = {"jobQueue": "service-us-west-2", "filters": [{"name": "JOB_NAME", "values": [job.request["jobName"]]}]}
    there = {
        "jobName": job.request["jobName"],
        "jobId": "a-b",
        "status": "RUNNING",
        "serviceJobType": "SAGEMAKER_TRAINING",
    }
    told: list[str] = []
    with Stubber(aws.client("batch", "us-west-2")) as service:
        service.add_response("list_service_jobs", {"jobSummaryList": []}, asked)
        assert submit_service_jobs([job], aws, told.append, dry_run=True) == ("",)
        service.add_response("list_service_jobs", {"jobSummaryList": []}, asked)
        service.add_response("submit_service_job", {"jobName": job.request["jobName"], "jobId": "a-b"}, job.request)
        assert submit_service_jobs([job], aws, told.append) == ("a-b",)
        service.add_response("list_service_jobs", {"jobSummaryList": [there]}, asked)
        assert submit_service_jobs([job], aws, told.append) == ("a-b",)
    aws.close()
    assert len(told) == 1
