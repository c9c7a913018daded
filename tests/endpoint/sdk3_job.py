"""Runs in .venv-sagemaker3, by `make sagemaker-sdk3`: a job on two groups by version 3 of the SageMaker SDK."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sagemaker.core.resources import TrainingJob
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, InstanceGroup, SourceCode

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu-py310"
SCRIPT = """
import os
print("runs on", os.environ["SM_CURRENT_HOST"], os.listdir(os.environ["SM_CHANNEL_TRAIN"]), flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]), "w").write("trained")
"""


def main() -> None:
    """Trains, and looks at the job."""
    with tempfile.TemporaryDirectory() as folder:
        code, data = Path(folder, "code"), Path(folder, "data")
        code.mkdir()
        data.mkdir()
        (code / "train.py").write_text(SCRIPT)
        (data / "x.txt").write_text("data")
        groups = [
            InstanceGroup(instance_group_name="data", instance_type="ml.c5.xlarge", instance_count=1),
            InstanceGroup(instance_group_name="dnn", instance_type="ml.m5.xlarge", instance_count=1),
        ]
        trainer = ModelTrainer(
            training_image=IMAGE,
            role="arn:aws:iam::000000000000:role/headrace",
            base_job_name="by-v3",
            source_code=SourceCode(source_dir=str(code), entry_script="train.py"),
            compute=Compute(instance_groups=groups),
        )
        trainer.train(input_data_config=[InputData(channel_name="train", data_source=str(data))])
        name = trainer._latest_training_job.training_job_name
    job = TrainingJob.get(training_job_name=name)
    assert job.training_job_status == "Completed", job.failure_reason
    print(
        "RESULT",
        name,
        job.model_artifacts.s3_model_artifacts,
        [each.training_job_name for each in TrainingJob.get_all()],
    )


if __name__ == "__main__":
    main()
