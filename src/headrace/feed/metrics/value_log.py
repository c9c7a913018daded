"""`headrace.log`: figures that a script hands over itself, beside those that metric definitions find in its output.

They are records of the same kind, one a metric and second, summed at the source: the first value is written at once,
those of the second after it together, with the next one or at the end of the process. Outside a job nothing is.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed_metrics import ValueNotFinite, ValueSecond

_SECOND = 1.0


class _ValueLog:
    """Sums values up and writes them. Threads may share it."""

    def __init__(self) -> None:
        self._file = MetricFile()
        self._stream = Path(self._file.path).name.partition(".")[0]
        self._lock = threading.Lock()
        self._sums: dict[str, ValueSecond] = {}
        self._not_finite: dict[str, ValueNotFinite] = {}
        self._written: dict[str, float] = {}
        self._warned: set[str] = set()
        if self._file:
            atexit.register(self._flush)

    def take(self, name: str, value: float, step: int | None) -> None:
        """Takes a value in."""
        if not self._file:
            return
        with self._lock:
            now, known, broken = time.time(), self._sums.get(name), self._not_finite.pop(name, None)
            if math.isfinite(value):
                self._sums[name] = ValueSecond(
                    t=now,
                    name=name,
                    stream=self._stream,
                    count=1 + (known.count if known else 0),
                    last=value,
                    low=min(value, known.low) if known else value,
                    high=max(value, known.high) if known else value,
                    total=value + (known.total if known else 0.0),
                    step=step,
                )
            else:
                if name not in self._warned:
                    self._warned.add(name)
                    at = "" if step is None else f" at step {step}"
                    print(f"headrace.log: {name} is {value}{at}; charts leave such values out", file=sys.stderr)
                count = 1 + (broken.count if broken else 0)
                self._not_finite[name] = ValueNotFinite(
                    t=now, name=name, stream=self._stream, count=count, last=str(value), step=step
                )
            if abs(now - self._written.get(name, 0.0)) >= _SECOND:
                self._write(name)

    def _write(self, name: str) -> None:
        for pending in (self._sums, self._not_finite):
            if (record := pending.pop(name, None)) is not None:
                self._written[name] = record.t
                self._file.write(record)

    def _flush(self) -> None:
        with self._lock:
            for name in [*self._sums, *self._not_finite]:
                self._write(name)


_log: _ValueLog | None = None


def log(values: Mapping[str, SupportsFloat], step: int | None = None) -> None:
    """Records figures of a training: `headrace.log({"loss": loss, "accuracy": 0.9}, step=i)`.

    They stand in the run's report, charts, grids and final metrics, as those of metric definitions do. Outside a job it
    only checks its arguments.

    Args:
        values: by the name of the metric; tensors of one element are numbers, too.
        step: of the training.

    Raises:
        TypeError: a name that is no text, or a value that is no number.
    """
    global _log  # noqa: PLW0603 - the file is looked for when the first value comes, in this process
    if _log is None:
        _log = _ValueLog()
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"headrace.log: the name of a metric must be a text that is not empty, not {name!r}")
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)  # torch warns of a loss with a graph
        except (TypeError, ValueError) as error:
            raise TypeError(f"headrace.log: {name!r} must be a number, not {value!r}") from error
        _log.take(name, number, step)
