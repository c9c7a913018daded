"""A figure: a number with its unit, its window, its formula and its spread.

A figure that was not measured has the value None and a note that says why. It is never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

WARM_UP_RECORDS = 1
"""Metric records (about one second each) left out at the start of every loader: workers start, caches are cold."""

FORMULAS: dict[str, str] = {
    "time_to_train": (
        "exit of the last program of the completion groups - job_started (all hosts registered and told to start "
        "their programs); only for a run that has completed"
    ),
    "steps": "steps counted by the loader, whole run, warm-up included",
    "samples": "samples in these steps, whole run, warm-up included",
    "step_time": "sum(step) / sum(steps); a step lasts from one next() call to the following one of the same epoch",
    "samples_per_second": (
        "sum(samples) / sum(step) of a rank, added over the ranks; time between epochs is not counted"
    ),
    "data_wait": "100 * sum(wait) / sum(step), where wait is the time blocked in next()",
    "cpu": (
        "100 * CPU seconds (user + system) of all processes of the group's hosts / (seconds * cores that these hosts "
        "may use); 100 % means that all its own cores were busy"
    ),
    "max_rss": "largest sum of resident bytes over the processes of one host of the group, whole run",
    "memory": (
        "largest 100 * bytes in use / bytes that the host may use, over the hosts and seconds of the whole run; in "
        "use: private and shared memory in the host's control group, each page once, without the cache of files; "
        "without a control group: the sum of resident bytes of its processes"
    ),
    "network_received": (
        "growth of the bytes received by all network devices of a host but loopback / seconds, added over the hosts"
    ),
    "network_sent": "the same of the bytes sent",
    "disk_read": (
        "growth of the bytes that a host's processes had read from disks (not from the cache) / seconds, added over "
        "the hosts; read_bytes of /proc/PID/io, of processes that ended too"
    ),
    "disk_written": "the same of the bytes for disks, counted when a page is changed (write_bytes)",
    "gpu_use": (
        "mean share of the time in which a kernel ran on a GPU (NVML), every GPU by itself, then over the GPUs; one "
        "busy multiprocessor counts as much as all"
    ),
    "gpu_memory": "largest 100 * bytes in use / bytes of one GPU (NVML), over the GPUs and seconds of the whole run",
    "gpu_power": "mean power of every GPU (NVML), added over the GPUs; one that hosts share counts for each",
    "value_count": "values that a metric definition's regex found in the programs' lines, whole run",
    "value_last": "the last of them",
    "value_min": "the least of them",
    "value_max": "the greatest of them",
    "value_mean": "their sum / their count; spread: of the means of seconds",
    "spread": "10th to 90th percentile of the per-second values in the window",
    "window": (
        f"training window: the first {WARM_UP_RECORDS} metric record of every loader and rank (about one second) is "
        "left out as warm-up; without loader metrics: from job_started to the last program's exit"
    ),
}
"""How every figure is computed, by its name."""


class Window(msgspec.Struct, frozen=True):
    """Stretch of time in which a figure was measured, seconds since the epoch, UTC."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


class Spread(msgspec.Struct, frozen=True):
    """How the per-second values lie around a figure.

    Attributes:
        low: 10th percentile.
        high: 90th percentile.
        count: how many values.
    """

    low: float
    high: float
    count: int


class Figure(msgspec.Struct, frozen=True):
    """One measured number.

    Attributes:
        name: which figure it is; `FORMULAS` says how it is computed.
        unit: ``s``, ``ms``, ``1/s``, ``%``, ``bytes``, ``bytes/s``, ``W``, ``1`` for a count; empty for a value of a
            metric definition, which has the unit that the program meant.
        value: the number, None if it was not measured.
        window: where it was measured; None when there is no value.
        spread: of the per-second values, None when there are fewer than two.
        note: why there is no value, or what to know about it.
    """

    name: str
    unit: str
    value: float | None
    window: Window | None = None
    spread: Spread | None = None
    note: str = ""


def missing(name: str, unit: str, note: str) -> Figure:
    """Returns a figure without a value, and why."""
    return Figure(name, unit, None, note=note)


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile with linear interpolation between the nearest values.

    >>> percentile([1.0, 2.0, 3.0], 50)
    2.0
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread_of(values: Sequence[float]) -> Spread | None:
    """Returns the spread of per-second values; None when there are fewer than two."""
    if len(values) < 2:
        return None
    return Spread(percentile(values, 10), percentile(values, 90), len(values))
