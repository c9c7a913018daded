"""Where a training loop's time goes: waiting for batches, or working on them.

A step lasts from one `next()` call to the following one of the same epoch; its wait is the time blocked in `next()`.
Inside a job (HEADRACE_METRICS names a file) a line a second is appended to that file, summed at the source; the
fields are those of the run's `loader` metric. Outside a job nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.feed.tree import bytes_of, rows_of

METRICS_VARIABLE = "HEADRACE_METRICS"
T = TypeVar("T")


@dataclass
class Totals:
    """Sums since the meter was made, of steps that have ended. Times in seconds; `cpu` is this thread's in `next()`."""

    steps: int = 0
    samples: int = 0
    bytes: int = 0
    wait: float = 0.0
    step: float = 0.0
    cpu: float = 0.0


class StepMeter:
    """Measures one loader.

    Args:
        name: name of the loader, e.g. ``train``.
        path: file for the lines; None for what HEADRACE_METRICS says; empty for none.
    """

    def __init__(self, name: str, path: str | None = None) -> None:
        self._name = name
        self._path = os.environ.get(METRICS_VARIABLE, "") if path is None else path
        self._owner = os.getpid()
        self._begun = 0.0
        self._waited = 0.0
        self._cpu_begun = self._cpu = 0.0
        self._batch = (0, 0)
        self._epoch = 0
        self._open = False  # a step is under way
        self.totals = Totals()
        self._reset(time.monotonic())

    def _reset(self, now: float) -> None:
        self._since = now
        self._window = Totals()
        self._shortest, self._longest = float("inf"), 0.0

    def begin(self) -> None:
        """A pass begins. A step that was under way has no end that is known: its loop was broken off."""
        self._open = False

    def waiting(self) -> None:
        """`next()` was called: the step under way ends, another one begins."""
        now = time.monotonic()
        if self._open:
            self._end_step(now)
        self._begun, self._cpu_begun = now, time.thread_time()

    def got(self, samples: int, size: int, epoch: int) -> None:
        """`next()` returns a batch of `samples` rows and `size` bytes."""
        self._waited, self._cpu = time.monotonic() - self._begun, time.thread_time() - self._cpu_begun
        self._batch = (samples, size)
        if epoch != self._epoch:
            self._flush()
            self._epoch = epoch
        self._open = True

    def ended(self) -> None:
        """The epoch is over: the time until the next one is no step. Called after `waiting`."""
        self._open = False
        self._flush()

    def _end_step(self, now: float) -> None:
        self._open = False
        length = now - self._begun
        for sums in (self.totals, self._window):
            sums.steps += 1
            sums.samples += self._batch[0]
            sums.bytes += self._batch[1]
            sums.wait += self._waited
            sums.cpu += self._cpu
            sums.step += length
        self._shortest, self._longest = min(self._shortest, length), max(self._longest, length)
        if now - self._since >= 1.0:
            self._flush()

    def _flush(self) -> None:
        sums = self._window
        if sums.steps and self._path and os.getpid() == self._owner:
            line = {
                "metric": "loader",
                "t": round(time.time(), 6),
                "loader": self._name,
                "epoch": self._epoch,
                "steps": sums.steps,
                "samples": sums.samples,
                "wait": round(sums.wait, 6),
                "step": round(sums.step, 6),
                "step_min": round(self._shortest, 6),
                "step_max": round(self._longest, 6),
                "bytes": sums.bytes,
            }
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o644)  # once a second: cheaper than to keep one that may leak
            try:
                os.write(descriptor, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(descriptor)
        self._reset(time.monotonic())

    def close(self) -> None:
        """Writes what is left."""
        self._flush()


class Tracked(Generic[T]):
    """A loader that is measured; otherwise it is the loader itself (`len`, attributes). See `track`."""

    def __init__(self, loader: Iterable[T], name: str) -> None:
        self._loader = loader
        self._meter = StepMeter(name)
        self._epoch = 0

    def __iter__(self) -> Iterator[T]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        meter = self._meter
        meter.begin()
        iterator = iter(self._loader)
        while True:
            meter.waiting()
            try:
                batch = next(iterator)
            except StopIteration:
                meter.ended()
                return
            meter.got(rows_of(batch), bytes_of(batch), epoch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def track(loader: Iterable[T], name: str = "train") -> Tracked[T]:
    """Measures step time and data wait of any loader. headrace's own DataLoader does this by itself.

    Args:
        loader: anything that is iterated once an epoch, e.g. torch's DataLoader.
        name: name of the loader in the run's metrics.

    Example:
        for images, labels in headrace.track(loader):
            ...
    """
    return Tracked(loader, name)
