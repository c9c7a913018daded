"""The metrics of a run as columns of numbers: small in memory, quick to sum over any stretch of time.

A run of a million steps has some hundred thousand records. As objects they would need a gigabyte; as rows of 64-bit
floats they need a few dozen megabytes, and NumPy sums them in milliseconds. What was not measured is NaN.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from headrace.insight.timeseries.buckets import Floats
from headrace.runs import HostSecond, LoaderSecond, Metric, Stream, ValueNotFinite, ValueSecond, WorkerSecond
from headrace.runs.metric_records import PlatformMinute, ServiceSecond

_Numbers = LoaderSecond | WorkerSecond | ValueSecond | ServiceSecond | PlatformMinute | HostSecond


class Key(NamedTuple):
    """Whose rows these are.

    Attributes:
        kind: ``loader``, ``worker``, ``host``, ``service`` (of tf.data) or ``value``.
        stream: whose metrics file it is.
        name: of the loader (also of one whose own data workers these are), of the metric definition, or the role of a
            server; empty otherwise.
        source: the program that printed a value; empty otherwise.
    """

    kind: str
    stream: Stream
    name: str = ""
    source: str = ""


FIELDS: dict[str, tuple[str, ...]] = {
    "loader": ("t", "steps", "samples", "wait", "step", "step_min", "step_max", "bytes", "h2d", "compute", "queue"),
    "worker": ("t", "seconds", "executors", "produce", "blocked", "idle", "samples", "bytes", "sent"),
    "host": (
        "t",
        "cpu",
        "cores",
        "rss",
        "received",
        "sent",
        "read",
        "written",
        "gpus",
        "use",
        "use_min",
        "use_max",
        "gpu_memory",
        "power",
    ),
    "service": ("t", "cpu", "restarts"),
    "platform": ("t", "seconds", "cpu", "memory", "gpu", "gpu_memory", "disk"),
    "value": ("t", "count", "low", "high", "total", "step"),
}
"""The columns of each kind: fields of the metric records; of a host's GPUs those that tell their use: their number, the
mean, least and greatest use; and sums over all of them."""


class Columns:
    """Rows of every stream of a run, in the order of their files.

    Attributes:
        records: how many records were taken.
        first, last: times of the earliest and the latest, seconds since the epoch; NaN when there is none.
    """

    def __init__(self) -> None:
        self.records = 0
        self.first = math.nan
        self.last = math.nan
        self._rows: dict[Key, array[float]] = {}
        self._tables: dict[Key, tuple[int, dict[str, Floats]]] = {}

    def take(self, metrics: Iterable[tuple[Stream, Metric]]) -> None:
        """Takes new records."""
        for stream, metric in metrics:
            if isinstance(metric, ValueNotFinite):
                continue  # no chart can show it
            key, row = _row(stream, metric)
            rows = self._rows.get(key)
            if rows is None:
                rows = self._rows[key] = array("d")
            rows.extend(row)
            self.records += 1
            t = row[0]
            if not self.first <= t:  # also when it is NaN
                self.first = t
            if not self.last >= t:
                self.last = t

    def keys(self, kind: str) -> list[Key]:
        """Returns who has rows of a kind, in the order of groups, hosts and ranks."""
        return sorted((key for key in self._rows if key.kind == kind), key=lambda key: (key.name, key.stream))

    def table(self, key: Key) -> dict[str, Floats]:
        """Returns a copy of the columns of one key, by field name. It must not be written to."""
        taken = len(self._rows[key])
        known = self._tables.get(key)
        if known is None or known[0] != taken:
            fields = FIELDS[key.kind]
            rows = np.array(self._rows[key], dtype=np.float64).reshape(-1, len(fields)).T.copy()
            known = self._tables[key] = (taken, dict(zip(fields, rows, strict=True)))
        return known[1]


def _row(stream: Stream, metric: _Numbers) -> tuple[Key, tuple[float, ...]]:
    if isinstance(metric, LoaderSecond):
        m = metric
        return Key("loader", stream, m.loader), (
            m.t, m.steps, m.samples, m.wait, m.step, m.step_min, m.step_max, m.bytes,
            _number(m.h2d), _number(m.compute), _number(m.queue),
        )  # fmt: skip
    if isinstance(metric, WorkerSecond):
        w = metric
        return Key("worker", stream, w.loader), (
            w.t, w.seconds, w.executors, w.produce, w.blocked, w.idle, w.samples, w.bytes, w.sent,
        )  # fmt: skip
    if isinstance(metric, ValueSecond):
        v = metric
        return Key("value", stream, v.name, v.stream), (v.t, v.count, v.low, v.high, v.total, _number(v.step))
    if isinstance(metric, ServiceSecond):
        s = metric
        return Key("service", stream, s.role), (s.t, s.cpu, s.restarts)
    if isinstance(metric, PlatformMinute):
        values = (metric.cpu, metric.memory, metric.gpu, metric.gpu_memory, metric.disk)
        return Key("platform", stream), (metric.t, metric.seconds, *map(_number, values))
    h: HostSecond = metric  # the last kind: the type checker complains when another one comes
    gpus = h.gpus
    use = [gpu.use for gpu in gpus if gpu.use is not None]
    power = [gpu.power for gpu in gpus if gpu.power is not None]
    return Key("host", stream), (
        h.t, h.cpu, h.cores, h.rss, _number(h.received), _number(h.sent), _number(h.read), _number(h.written),
        len(use), sum(use) / len(use) if use else math.nan, min(use, default=math.nan), max(use, default=math.nan),
        sum(gpu.memory for gpu in gpus) if gpus else math.nan, sum(power) if power else math.nan,
    )  # fmt: skip


def _number(value: float | None) -> float:
    return math.nan if value is None else value
