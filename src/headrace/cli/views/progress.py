"""The progress of a run in one line: elapsed, downloads, steps, samples/s, data wait. Pure: records in, text out."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.insight.render.plain_text import duration
from headrace.runs import LoaderSecond, Metric, Stream
from headrace.runs.events import ChannelProgress

_SILENT = 60.0  # seconds without output or step from which the line says so
_RECENT = 5.0  # seconds after which the last record of a rank says nothing about now


@dataclass
class Progress:
    """What the loaders of all ranks have done so far.

    The loader shown is ``train`` once it has reported, else the one that reported last. Ranks move in step, so the
    steps are those of the furthest rank; samples/s are added over the ranks, data wait is of all their step time.

    Attributes:
        part: what the run is at, in words.
    """

    part: str = ""
    _steps: dict[tuple[str, Stream], int] = field(default_factory=dict)
    _last: dict[tuple[str, Stream], LoaderSecond] = field(default_factory=dict)
    _loader: str = ""
    _download: ChannelProgress | None = None
    _heard: float = 0.0

    def heard(self, t: float) -> None:
        """Takes a sign of life of a program, of the time `t`: its start, a line, a step."""
        self._heard = max(self._heard, t)

    def staged(self, event: ChannelProgress) -> None:
        """Takes the progress of a channel; a complete one is not shown any more."""
        self._download = event if event.files < event.files_total else None

    def add(self, stream: Stream, metric: Metric) -> None:
        """Takes in one metric."""
        if not isinstance(metric, LoaderSecond):
            return
        self.heard(metric.t)
        key = (metric.loader, stream)
        self._steps[key] = self._steps.get(key, 0) + metric.steps
        self._last[key] = metric
        if self._loader != "train":
            self._loader = metric.loader

    def text(self, elapsed: float, now: float) -> str:
        """Returns the line.

        Args:
            elapsed: seconds since the run was made.
            now: seconds since the epoch.
        """
        parts = [duration(elapsed)]
        if self._download is not None:
            here = self._download
            files = f"{here.files}/{here.files_total} files"
            parts.append(f"channel {here.channel}: {files}, {here.bytes / 1e6:.0f}/{here.bytes_total / 1e6:.0f} MB")
        steps = [count for (loader, _), count in self._steps.items() if loader == self._loader]
        if not steps and self.part:
            parts.append(self.part)
        if steps:
            parts.append(f"{max(steps)} steps")
        recent = [
            second
            for (loader, _), second in self._last.items()
            if loader == self._loader and now - second.t <= _RECENT and second.step > 0
        ]
        if recent:
            from headrace.insight.figures.quantities import DATA_WAIT, SAMPLES_PER_SECOND  # NumPy, once there are steps

            rates = [SAMPLES_PER_SECOND.of_records([second]) or 0.0 for second in recent]
            if any(rates):
                parts.append(f"{sum(rates):.1f} samples/s")
            parts.append(f"data wait {DATA_WAIT.of_records(recent):.1f} %")
        if self._heard and now - self._heard >= _SILENT:
            parts.append(f"no output and no step for {duration(now - self._heard)}")
        return "  ".join(parts)
