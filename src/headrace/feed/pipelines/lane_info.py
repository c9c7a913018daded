"""Which lane this code works for: what `torch.utils.data.get_worker_info()` and `feed.lane()` return while it runs.

A dataset that divides its data by `get_worker_info()` divides it among lanes: `id` is the lane, `num_workers` the
number of lanes. Without torch it asks `feed.lane()`.
"""

from __future__ import annotations

import functools
import sys
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


class WorkingFor:
    """Lets the code inside see which lane it works for."""

    def __init__(self, info: LaneInfo) -> None:
        self._info = info
        self._worker: Any = None
        self._before: Any = None

    def __enter__(self) -> None:
        info = self._info
        _current.append(info)
        self._worker = sys.modules.get("torch.utils.data._utils.worker")
        if self._worker is not None:
            self._before, self._worker._worker_info = self._worker._worker_info, None
            if info.shown:
                told = {"id": info.number, "num_workers": info.num_workers, "seed": info.seed, "dataset": info.dataset}
                self._worker._worker_info = _worker_info()(**told)

    def __exit__(self, *raised: object) -> None:
        if self._worker is not None:
            self._worker._worker_info = self._before
        _current.pop()
