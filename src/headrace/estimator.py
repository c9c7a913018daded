"""The SageMaker-style estimators, under the name that users import. See `headrace.adapters.estimator`."""

from __future__ import annotations

from headrace.adapters.estimator import (
    Estimator,
    InstanceGroup,
    PyTorch,
    Session,
    TensorFlow,
    TrainingInput,
    TrainingJob,
    get_execution_role,
)

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
