"""The SageMaker-style estimators, under the name that users import. See `headrace.adapters.estimator`."""

from __future__ import annotations

from headrace.adapters.estimator import Estimator, InstanceGroup, PyTorch, TensorFlow, TrainingInput, TrainingJob

__all__ = ["Estimator", "InstanceGroup", "PyTorch", "TensorFlow", "TrainingInput", "TrainingJob"]
