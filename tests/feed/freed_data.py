"""A dataset whose samples free memory, as a decoder does. It needs no torch."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from headrace.feed import pipeline

PIECES, PIECE = 80, 100_000  # bytes; small enough to lie in the heap


class Freeing:
    """Fills and frees 8 MB a sample, in pieces, and gives the page faults of the process so far."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        pieces = [np.full(PIECE, index, np.uint8) for _ in range(PIECES)]
        del pieces
        return np.array([resource.getrusage(resource.RUSAGE_SELF).ru_minflt])


@pipeline
def freeing() -> Freeing:
    return Freeing()
