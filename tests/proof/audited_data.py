"""The datasets of the proof. No headrace here: the plain loop imports this module too."""

from __future__ import annotations

import errno
import random
import time
from typing import Any

import numpy as np
import torch


class Samples:
    """Samples that depend on the index and on all three random generators.

    Args:
        n: how many.
        floats: length of the large tensor.
        delay: seconds that a sample takes.
        words: whether a sample holds strings too, so that batches do not stack row by row.
    """

    def __init__(self, n: int = 240, floats: int = 64, delay: float = 0.001, words: bool = False) -> None:
        self.n, self.floats, self.delay, self.words = n, floats, delay, words

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.delay)
        sample: dict[str, Any] = {
            "image": torch.randint(0, 256, (5, 7), dtype=torch.uint8),
            "large": torch.randn(self.floats),
            "pair": (np.random.rand(3), random.random()),
            "index": index,
        }
        if self.words:
            sample["word"] = f"{index}-{random.randrange(10**9)}"
        return sample


class FullDisk(Samples):
    """A dataset whose own cache is on a full disk."""

    def __getitem__(self, index: int) -> Any:
        if index == self.n // 2:
            raise OSError(errno.ENOSPC, "No space left on device", f"/cache/{index}")
        return super().__getitem__(index)
