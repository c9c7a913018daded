"""Where a training loop's time goes: waiting for batches, copying them to the device, or computing.

What a step and its wait are: `headrace.feed.metrics.step_timing`.
Inside a job (HEADRACE_METRICS names a file) a `LoaderSecond` is appended to that file every second, summed at the
source. Outside a job nothing is written, and no event is recorded.

With CUDA, a step's compute time is that of the device: from the place in its work where the batch was handed over to
the place where the following `next()` was called. Both are CUDA events, which no thread waits for: a line is written
when all of its steps are done, which is a few steps later if the device lags behind. A line with a step that could not
be measured has no compute time, because that of the other steps would be wrong for the whole line. Work that the user
starts on other streams than the current one is not seen, unless the current one waits for it. torch is not imported
here: without it, or before CUDA is in use, there is nothing to measure.
"""

from __future__ import annotations

import collections
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.step_timing import Step, StepTiming
from headrace.feed_metrics import LoaderSecond


class TimedMark(Protocol):
    """A place in a device's work."""

    def query(self) -> bool:
        """Says whether everything before it is done."""

    def elapsed_time(self, end: Any) -> float:
        """Returns the milliseconds from this place to another one; both have been passed."""


def mark() -> TimedMark | None:
    """Puts an event behind the work of the current stream.

    Returns:
        None without CUDA; when the process uses several devices and the current one is none of them; and while a graph
        is captured, which would be broken by it.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    device = _device(cuda)
    if device is None:
        return None
    event: TimedMark = cuda.Event(enable_timing=True)
    event.record(cuda.current_stream(device))  # type: ignore[attr-defined]
    return event


def _device(cuda: Any) -> int | None:
    """Returns the device in use: the current one, or the only one that has a context."""
    core: Any = sys.modules["torch"]._C
    current: int = cuda.current_device()
    if core._cuda_hasPrimaryContext(current):
        return current
    used = [device for device in range(cuda.device_count()) if core._cuda_hasPrimaryContext(device)]
    return used[0] if len(used) == 1 else None


QUEUE_SECONDS = 0.01  # to count the batches that are ready takes some microseconds: no more often than that

Marks = tuple[TimedMark, TimedMark]


@dataclass
class Totals:
    """Sums since the meter was made, of steps that have ended. Times in seconds; `cpu` is this thread's in `next()`."""

    steps: int = 0
    samples: int = 0
    bytes: int = 0
    wait: float = 0.0
    step: float = 0.0
    cpu: float = 0.0

    def __sub__(self, before: Totals) -> Totals:
        return Totals(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class _Step(Step):
    """A step of one loader: its batch's bytes, the places in the device's work, and how many batches were ready."""

    bytes = 0
    handed: TimedMark | None = None  # where the batch was handed over
    copy: Marks | None = None
    queue: int | None = None


@dataclass
class _Window:
    """The steps of one line, and when the last one ended."""

    loader: str
    epoch: int
    sums: Totals = field(default_factory=Totals)  # of its steps, when it has ended
    shortest: float = float("inf")
    longest: float = 0.0
    queue: float = 0.0
    queued: int = 0  # steps whose queue was counted
    pending: int = 0  # steps that the device may not have done yet
    compute: float = 0.0
    computed: int = 0  # steps whose compute time is known
    h2d: float = 0.0
    copied: int = 0  # steps whose copy was measured
    t: float = 0.0
    needed: float | None = None
    desired: int | None = None
    link: float | None = None

    def record(self) -> LoaderSecond:
        sums = self.sums
        return LoaderSecond(
            t=round(self.t, 6), loader=self.loader, epoch=self.epoch, steps=sums.steps, samples=sums.samples,
            wait=round(sums.wait, 6), step=round(sums.step, 6), step_min=round(self.shortest, 6),
            step_max=round(self.longest, 6), bytes=sums.bytes,
            h2d=round(self.h2d, 6) if self.copied == sums.steps else None,
            compute=round(self.compute, 6) if self.computed == sums.steps else None,
            queue=round(self.queue / self.queued, 3) if self.queued else None,
            needed=None if self.needed is None else round(self.needed, 3), desired_workers=self.desired,
            link=None if self.link is None else round(self.link, 3),
        )  # fmt: skip


class _Lines:
    """The window under way, and those that have ended and wait for the device, in order."""

    def __init__(self, file: MetricFile, window: _Window) -> None:
        self.window = window
        self.totals = Totals()
        self._before = Totals()  # when the window under way began
        self._file = file
        self._windows: collections.deque[_Window] = collections.deque()
        self._steps: collections.deque[tuple[_Window, Marks | None, Marks | None]] = collections.deque()

    def add_step(self, window: _Window, compute: Marks | None, copy: Marks | None) -> None:
        """A step has ended whose work the device may not have done yet."""
        window.pending += 1
        self._steps.append((window, compute, copy))

    def follow(self, window: _Window) -> None:
        """The window under way has ended; another one follows."""
        ended, self.window = self.window, window
        ended.sums, self._before = self.totals - self._before, replace(self.totals)
        if ended.sums.steps:
            self._windows.append(ended)

    def write_rest(self) -> None:
        """Writes all windows at the end, the one under way too, without what is not known of them yet."""
        self.follow(_Window("", 0))
        self.write(all_of_them=True)

    def write(self, *, all_of_them: bool = False) -> None:
        """Writes the windows whose steps are done, or all."""
        while self._steps and all(marks is None or marks[1].query() for marks in self._steps[0][1:]):
            window, compute, copy = self._steps.popleft()
            window.pending -= 1
            if compute is not None:
                window.compute += compute[0].elapsed_time(compute[1]) / 1000
                window.computed += 1
            if copy is not None:
                window.h2d += copy[0].elapsed_time(copy[1]) / 1000
                window.copied += 1
        while self._windows and (all_of_them or not self._windows[0].pending):
            window = self._windows.popleft()
            if self._file:
                self._file.write(window.record())


class StepMeter:
    """Measures one loader.

    Args:
        name: name of the loader, e.g. ``train``.
        path: file for the lines; None for what HEADRACE_METRICS says; empty for none.
        mark: returns the present place in the device's work, None without one.

    Attributes:
        file: where the lines go.
        counts_queue: whether `queued` should be called in the `next()` that has just begun.
        totals: sums since the meter was made.
    """

    def __init__(self, name: str, path: str | None = None, mark: Callable[[], TimedMark | None] = mark) -> None:
        self.file = MetricFile(path)
        self._name = name
        self._mark = mark
        self._lines = _Lines(self.file, _Window(name, 0))
        self._steps = StepTiming(_Step)
        self._epoch = 0
        self._counted = 0.0
        self.counts_queue = False
        self.totals = self._lines.totals
        self._since = time.monotonic()
        weakref.finalize(self, self._lines.write_rest)

    def __reduce__(self) -> tuple[type[StepMeter], tuple[str, str]]:
        """A copy, here or in another process, measures for itself."""
        return type(self), (self._name, self.file.path)

    def begin(self) -> None:
        """A pass begins. The end of a step that was under way is unknown: its loop was left."""
        self._steps.begin_pass()

    def waiting(self) -> None:
        """`next()` was called: the step under way ends, another one begins."""
        now = self.pause()
        self._steps.ask(now, time.thread_time())
        self.counts_queue = bool(self.file) and now - self._counted >= QUEUE_SECONDS

    def queued(self, batches: int) -> None:
        """So many batches were ready when `next()` was called."""
        step = self._steps.asked
        self._counted, step.queue = step.begun, batches

    def demand(self, needed: float, desired: int | None, link: float | None) -> None:
        """What the line under way is to say of the workers that this rank needs; see `LoaderSecond`."""
        window = self._lines.window
        window.needed, window.desired, window.link = needed, desired, link

    def copied(self, begin: TimedMark, end: TimedMark) -> None:
        """The batch that `next()` is about to return was copied to the device between two places in its work."""
        self._steps.asked.copy = (begin, end)

    def got(self, samples: int, size: int, epoch: int) -> None:
        """`next()` returns a batch of `samples` rows and `size` bytes."""
        step = self._steps.got(time.monotonic(), time.thread_time(), samples)
        step.bytes = size
        if epoch != self._epoch:
            self._epoch = epoch
            self._flush()
        step.handed = self._mark() if self.file else None

    def pause(self) -> float:
        """The step under way ends here; time until the next `next()` belongs to no step. Returns the monotonic time,
        behind what it took to write a line: that belongs to no step either."""
        now = time.monotonic()
        step = self._steps.end(now)
        if step is not None:
            self._end_step(step, now)
        return max(now, self._since)

    def ended(self) -> None:
        """The epoch is over, and the step under way with it: the time until the next one belongs to no step."""
        self.pause()
        self._flush()

    def _end_step(self, step: _Step, now: float) -> None:
        length, window = step.length, self._lines.window
        totals = self.totals
        totals.steps += 1
        totals.samples += step.rows
        totals.bytes += step.bytes
        totals.wait += step.wait
        totals.cpu += step.cpu
        totals.step += length
        window.t = time.time()
        window.shortest, window.longest = min(window.shortest, length), max(window.longest, length)
        if step.queue is not None:
            window.queue += step.queue
            window.queued += 1
        end = self._mark() if step.handed is not None else None
        compute = (step.handed, end) if step.handed is not None and end is not None else None
        if compute is not None or step.copy is not None:
            self._lines.add_step(window, compute, step.copy)
        self._lines.write()
        if now - self._since >= 1.0:
            self._flush()

    def _flush(self) -> None:
        self._lines.follow(_Window(self._name, self._epoch))
        self._lines.write()
        self._since = time.monotonic()

    def close(self) -> None:
        """Writes what is left."""
        self._flush()
        self._lines.write(all_of_them=True)
