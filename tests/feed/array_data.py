"""Datasets of NumPy arrays. Imported where there is no torch."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np

from headrace.feed import pipeline


class Pictures:
    """Samples that depend on the index and on the random generators; the first over index 13 ends its process."""

    def __init__(self, n: int = 96, kill_once: str = "") -> None:
        self.n = n
        self.kill_once = Path(kill_once) if kill_once else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        if index == 13 and self.kill_once is not None and not self.kill_once.exists():
            self.kill_once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        image = np.random.rand(4, 3).astype(np.float32) + index
        return {"image": image, "noise": random.random()}, index


@pipeline
def pictures(n: int = 96, kill_once: str = "") -> Pictures:
    return Pictures(n, kill_once)


class Words(Pictures):
    def __getitem__(self, index: int) -> Any:
        return "word", index


@pipeline
def words() -> Words:
    return Words()


class Raising(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("thirteen")
        return super().__getitem__(index)


@pipeline
def raising() -> Raising:
    return Raising()
