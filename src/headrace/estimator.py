"""The SageMaker-style estimators, under the name that users import. See `headrace.adapters.estimator`."""

from __future__ import annotations

from headrace.adapters import estimator as _adapter
from headrace.adapters.estimator import *  # noqa: F403  (another name of the same things)

__all__ = _adapter.__all__
