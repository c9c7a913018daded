"""Jobs for the SageMaker engine, and what they become, for tests."""

from __future__ import annotations

from pathlib import Path

from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, plan_sagemaker_job
from headrace.job import Job
from headrace.runs import RunPaths

ROLE = "arn:aws:iam::123456789012:role/training"
GROUPS = [
    {"name": "data_group", "type": "ml.c5.xlarge", "count": 2},
    {"name": "dnn_group", "type": "ml.p3.2xlarge", "count": 1},
]
OPTIONS: dict[str, object] = {"region": "eu-west-1", "framework": "pytorch"}
RUN = "digits-20261122-130000-00ff"


def sagemaker_job(options: dict[str, object] | None = None, **fields: object) -> Job:
    """Returns a heterogeneous job. What is given replaces what it has; None takes it out."""
    given: dict[str, object] = {
        "source_dir": "code",
        "entry_point": "train.py",
        "hyperparameters": {"lr": 0.1},
        "instance_groups": GROUPS,
        "inputs": {"training": {"s3_data": "s3://bucket/data", "instance_groups": ["data_group"]}},
        "distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["dnn_group"]},
        "data_service": {"feed": {"enabled": True}, "instance_groups": ["data_group"]},
        "role": ROLE,
        "output_path": "s3://bucket/out",
        "framework_version": "2.6",
        "engines": {"sagemaker": {**OPTIONS, **(options or {})}},
    }
    return Job("digits", **{key: value for key, value in {**given, **fields}.items() if value is not None})  # type: ignore[arg-type]


def planned(options: dict[str, object] | None = None, run: str = RUN, **fields: object) -> SageMakerJob:
    """Returns such a job as the engine plans it."""
    return plan_sagemaker_job(sagemaker_job(options, **fields), RunPaths(Path("/runs") / run), {})
