"""headrace: one training job on two kinds of machines.

CPU hosts prepare the batches, GPU hosts only train. This module is the public face; every name is imported
when it is first used, so that `import headrace` costs nothing and loads no torch, grpc or pydantic.

Logging is left to the application, unless $HEADRACE_LOG is set (see `headrace.log_setup`).
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING

from headrace._version import __version__

_EXPORTS = {
    "Environment": "headrace.instance",
    "Job": "headrace.job",
    "InstanceGroup": "headrace.job",
    "TrainingInput": "headrace.job",
    "HeadraceError": "headrace.errors",
    "log": "headrace.feed.metrics.metric_file",
    "track": "headrace.feed",
}

__all__ = ["Environment", "HeadraceError", "InstanceGroup", "Job", "TrainingInput", "__version__", "log", "track"]

if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace.feed import track
    from headrace.feed.metrics.metric_file import log
    from headrace.instance import Environment
    from headrace.job import InstanceGroup, Job, TrainingInput

logging.getLogger(__name__).addHandler(logging.NullHandler())
if _levels := os.environ.get("HEADRACE_LOG"):
    importlib.import_module("headrace.log_setup").log_to_stderr(_levels)


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
