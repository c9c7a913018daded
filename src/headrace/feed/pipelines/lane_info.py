"""Which lane this code works for: what `torch.utils.data.get_worker_info()` and `feed.lane()` return while it runs.

A dataset that divides its data by `get_worker_info()` divides it among lanes: `id` is the lane, `num_workers` the
number of lanes. Without torch it asks `feed.lane()`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class LaneInfo:
    """A lane.

    Attributes:
        num_workers: number of lanes.
        seed: of this lane in this epoch.
        dataset: this lane's own copy of it.
        asked: whether somebody wanted to know which lane it is.
        shown: whether torch's `get_worker_info()` names it.
    """

    number: int
    num_workers: int
    seed: int
    dataset: Any
    asked: bool = False
    shown: bool = True

    @property
    def id(self) -> int:
        """Number of the lane, from 0."""
        self.asked = True
        return self.number


_current: list[LaneInfo] = []


def lane() -> LaneInfo | None:
    """Returns the lane that this code works for, as `get_worker_info()` does with torch; None outside of lanes."""
    return _current[-1] if _current else None


@functools.cache
def _worker_info() -> type:
    from torch.utils.data._utils import worker

    class LaneOfTorch(worker.WorkerInfo):
        """torch's own type, that notes when it is asked which lane it is."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name == "id" and _current:
                _current[-1].asked = True
            return super().__getattribute__(name)

    return LaneOfTorch


@contextmanager
def working_for(info: LaneInfo) -> Iterator[None]:
    """Lets the code inside see which lane it works for."""
    _current.append(info)
    try:
        if "torch.utils.data" not in sys.modules:
            yield
            return
        from torch.utils.data._utils import worker

        before = worker._worker_info
        told = {"id": info.number, "num_workers": info.num_workers, "seed": info.seed, "dataset": info.dataset}
        worker._worker_info = _worker_info()(**told) if info.shown else None
        try:
            yield
        finally:
            worker._worker_info = before
    finally:
        _current.pop()
