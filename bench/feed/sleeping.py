"""The work that costs waiting and no CPU. Imports no torch."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from headrace.feed import pipeline

COUNT = 1_000_000_000


class Sleeper:
    """Samples that cost waiting, and no CPU; they hold the process id of the worker, and the index."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return np.array([os.getpid(), index, 0, 0])


@pipeline
def sleeper(seconds: float) -> Sleeper:
    """`Sleeper` on a feed server."""
    return Sleeper(seconds)
