"""How far a pass over a loader is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """How far a pass is.

    Attributes:
        epoch: number of the epoch.
        step: number of the next batch; those before it have left the loader, or ended in an error of the dataset.
        ended: whether the pass came to the epoch's end.
    """

    epoch: int
    step: int = 0
    ended: bool = False
