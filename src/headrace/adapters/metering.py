"""What the callbacks that measure a training's steps have in common, whichever library calls them."""

from __future__ import annotations

from typing import Any

from headrace import feed
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.metrics.track import Tracked


class Metering:
    """A callback with a meter. Put it before the library's own class, whose constructor takes no arguments.

    Args:
        name: name of the loader in the run's metrics.
    """

    def __init__(self, name: str = "train") -> None:
        super().__init__()
        self._meter = StepMeter(name)
        self._epoch = 0

    def step_ends(self, *_: Any, **__: Any) -> None:
        """What comes next, validation say, belongs to no step."""
        self._meter.pause()

    def epoch_ends(self, *_: Any, **__: Any) -> None:
        """The last step of the epoch has ended; no further batch is asked for."""
        self._meter.ended()

    def training_ends(self, *_: Any, **__: Any) -> None:
        """Writes what is left."""
        self._meter.close()

    def _wants(self, *loaders: object) -> bool:
        """Tells whether loaders are to be measured: in a job, and where they are not measured already."""
        return bool(self._meter.file) and not any(
            isinstance(one, (feed.DataLoader, Tracked)) or getattr(one, "headrace_measures", False) for one in loaders
        )
