"""Estimators and jobs that are fitted on SageMaker: what of their arguments reaches the request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.engines.sagemaker.sagemaker_job import plan_sagemaker_job
from headrace.errors import EngineRefused, JobInvalid, UsageError
from headrace.estimator import Estimator, InstanceGroup, PyTorch, Session, TensorFlow, TrainingInput
from headrace.job import Job
from headrace.runs import RunPaths

ROLE = "arn:aws:iam::123456789012:role/training"
GROUPS = [InstanceGroup("data_group", "ml.c5.xlarge", 2), InstanceGroup("dnn_group", "ml.g5.xlarge", 1)]


def request_of(job: Job) -> dict[str, object]:
    return plan_sagemaker_job(job, RunPaths(Path("/runs/j-1")), {}).request()


def test_an_estimators_arguments_are_members_of_the_request_and_its_framework_chooses_the_image() -> None:
    session = Session(SimpleNamespace(region_name="eu-west-1"))
    estimator = PyTorch(
        "train.py",
        "2.6",
        source_dir="code",
        role=ROLE,
        instance_groups=GROUPS,
        output_path="s3://bucket/out",
        code_location="s3://bucket/code",
        distribution={"torch_distributed": {"enabled": True}, "instance_groups": [GROUPS[1]]},
        sagemaker_session=session,
        enable_remote_debug=True,
        enable_sagemaker_metrics=True,
        hyperparameters={"lr": 0.1},
    )
    inputs = {"training": TrainingInput("s3://bucket/data", instance_groups=["data_group"])}
    request = request_of(estimator.job(inputs, "j", "sagemaker"))
    assert request["RoleArn"] == ROLE
    assert request["RemoteDebugConfig"] == {"EnableRemoteDebug": True}
    algorithm = request["AlgorithmSpecification"]
    assert algorithm["TrainingImage"].endswith(".eu-west-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312")  # type: ignore[index]
    assert algorithm["EnableSageMakerMetricsTimeSeries"] is True  # type: ignore[index]
    ours = request["InputDataConfig"][-1]["DataSource"]["S3DataSource"]["S3Uri"]  # type: ignore[index]
    assert ours.startswith("s3://bucket/code/headrace/")
    here = estimator.job(inputs, "j")
    assert here.engines.sagemaker is None
    assert "RemoteDebugConfig" not in here.request_extras


def test_tensorflow_takes_its_own_image_and_an_image_that_is_named_is_taken_as_it_is() -> None:
    session = Session(SimpleNamespace(region_name="us-east-1"))
    common = {"role": ROLE, "instance_type": "ml.c5.xlarge", "instance_count": 1, "output_path": "s3://bucket/out"}
    common |= {"entry_point": "train.py", "source_dir": "code", "sagemaker_session": session}
    images = [
        request_of(each.job(None, "j", "sagemaker"))["AlgorithmSpecification"]["TrainingImage"]  # type: ignore[index]
        for each in (TensorFlow(framework_version="2.19", **common), PyTorch(image_uri="own:1", **common))  # type: ignore[arg-type]
    ]
    assert images == ["763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.19.0-cpu-py312", "own:1"]


def test_an_argument_that_only_the_service_has_is_never_dropped_in_silence() -> None:
    estimator = Estimator("own:1", ROLE, 1, "ml.c5.xlarge", entry_point="train.py", source_dir="code", rules=["r"])
    estimator.job(None, "j")
    with pytest.raises(UsageError) as caught:
        estimator.job(None, "j", "sagemaker")
    assert "rules is not possible" in caught.value.message


def test_fit_says_which_engine_and_with_which_role_output_and_region(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Job] = []

    class Service:
        @staticmethod
        def start(job: Job, detach: bool) -> object:
            started.append(job)
            return SimpleNamespace(isolation="", id="j-1")

    monkeypatch.setattr("headrace.job.job.find_engine", lambda name, _="": {"sagemaker": Service}[name])
    job = Job(
        "j", source_dir="code", entry_point="train.py", instance_type="ml.c5.xlarge", instance_count=1, image_uri="i"
    )
    job.fit("sagemaker", wait=False, role=ROLE, output_path="s3://bucket/out", region="eu-west-1")
    assert request_of(started[0])["RoleArn"] == ROLE
    assert request_of(started[0])["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/out"}
    assert started[0].sagemaker.region == "eu-west-1"
    assert job.role is None
    estimator = Estimator("own:1", ROLE, 1, "ml.c5.xlarge", entry_point="train.py", source_dir="code")
    estimator.fit(wait=False, engine="sagemaker")
    assert started[1].image_uri == "own:1"
    with pytest.raises(JobInvalid):
        job.fit("sagemaker", wait=False, output_path="ftp://host/out")
    with pytest.raises(JobInvalid):
        job.fit("sagemaker", wait=False, region="Ireland")
    with pytest.raises(EngineRefused):
        job.fit("local", wait=False, region="eu-west-1")
    assert len(started) == 2
