"""Estimators in the shape of the SageMaker Python SDK: the same classes, arguments and habits; the job runs here.

    from headrace.estimator import PyTorch, InstanceGroup, TrainingInput

Both generations of argument names work, those of SDK version 1 (`train_instance_type`, `distributions`) and those of
version 2 (`instance_type`, `distribution`). Objects of the SDK itself (`sagemaker.instance_group.InstanceGroup`,
`sagemaker.inputs.TrainingInput`) are understood too.

    estimators  `Estimator`, `PyTorch`, `TensorFlow`: from arguments to a `headrace.Job`, and `fit`
    arguments   what each argument of the SDK becomes, and what `fit(inputs=...)` takes
    sdk_session `Session` and `get_execution_role`, for a notebook's first cell; `TrainingJob`
    local_bucket    the bucket of this machine, which a session has by default
"""

from __future__ import annotations

from headrace.adapters.estimator.estimators import Estimator, PyTorch, TensorFlow
from headrace.adapters.estimator.sdk_session import Session, TrainingJob, get_execution_role
from headrace.job import InstanceGroup, TrainingInput

__all__ = [
    "Estimator",
    "InstanceGroup",
    "PyTorch",
    "Session",
    "TensorFlow",
    "TrainingInput",
    "TrainingJob",
    "get_execution_role",
]
