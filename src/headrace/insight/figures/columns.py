"""The metrics of a run as columns of numbers: read once, small in memory, quick to sum over any stretch of time.

A run of a million steps has some hundred thousand records. As objects they would need a gigabyte; as rows of 64-bit
floats they need a few dozen megabytes, and NumPy sums them in milliseconds. What was not measured is NaN.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.insight.figures.figure import Window
from headrace.runs import (
    Metric,
    MetricFollower,
    Run,
    Selector,
    Stream,
    ValueNotFinite,
    ValueSecond,
    WorkerSecond,
)
from headrace.runs.metric_records import HostSecond, PlatformMinute, ServiceSecond

Floats = npt.NDArray[np.float64]


class Key(NamedTuple):
    """Whose rows these are.

    Attributes:
        kind: ``loader``, ``worker``, ``host``, ``gpu``, ``service`` (of tf.data), ``platform`` or ``value``.
        stream: whose metrics file it is.
        name: of the loader (also of one whose own data workers these are), of the metric definition, or the role of a
            server; empty otherwise.
        source: the program that printed a value; number and model of a GPU; who measured a platform's minutes; empty
            otherwise.
    """

    kind: str
    stream: Stream
    name: str = ""
    source: str = ""


FIELDS: dict[str, tuple[str, ...]] = {
    "loader": (
        "t", "epoch", "steps", "samples", "wait", "step", "step_min", "step_max", "bytes", "h2d", "compute", "queue",
    ),
    "worker": (
        "t", "seconds", "executors", "produce", "blocked", "idle", "cpu", "samples", "bytes", "sent", "sending",
    ),
    "host": ("t", "cpu", "busy", "cores", "rss", "memory", "used", "received", "sent", "read", "written", "disk"),
    "gpu": ("t", "use", "memory", "memory_total", "power"),
    "service": ("t", "cpu", "rss", "restarts", "tasks", "sent"),
    "platform": ("t", "seconds", "cpu", "memory", "gpu", "gpu_memory", "disk"),
    "value": ("t", "count", "last", "low", "high", "total", "step"),
}  # fmt: skip
"""The columns of each kind: fields of the metric records."""

_READ = {kind: attrgetter(*fields[1:]) for kind, fields in FIELDS.items()}


class Table:
    """Rows of one stream in the order of its file, as columns by name. They must not be written to."""

    def __init__(self, columns: Mapping[str, Floats]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name] if name in self.columns else _DERIVED[name](self)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def where(self, kept: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> Table:
        """Returns the rows that a mask, their places or a slice name."""
        return Table({name: column[kept] for name, column in self.columns.items()})

    def parted(self, name: str) -> dict[int, Table]:
        """Returns the rows of each value of a column of whole numbers, in one pass however many there are."""
        rows = self.where(np.argsort(self[name], kind="stable"))
        numbers, starts = np.unique(rows[name], return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        return {int(n): rows.where(slice(*edges)) for n, *edges in zip(numbers, starts, ends, strict=True)}

    def measured(self, *names: str) -> Table:
        """Returns the rows in which all these columns were measured."""
        kept = np.ones(len(self), dtype=bool)
        for name in names:
            kept &= ~np.isnan(self[name])
        return self.where(kept)

    def within(self, window: Window) -> Table:
        """Returns the rows of a stretch of time, both ends included."""
        return self.where((window.start <= self["t"]) & (self["t"] <= window.end))

    def after(self, window: Window) -> Table:
        """Returns the rows whose own stretch ends in a window: that which ends where it begins is not of it."""
        return self.where((window.start < self["t"]) & (self["t"] <= window.end))

    def grown(self, counter: str, *others: str) -> Table:
        """Returns what counters grew by from each row to the next one, at the time of the later; `seconds` lie between.

        Rows without the counter are passed over. What lies between two of which it began anew, as with the agent of
        another attempt or a server's start, is left out.
        """
        rows = self.measured(counter)
        growth = {name: np.diff(rows[name]) for name in (counter, *others)}
        seconds = np.diff(rows["t"])
        kept = (seconds > 0) & (growth[counter] >= 0)
        if "restarts" in rows.columns:
            kept &= np.diff(rows["restarts"]) == 0
        later = {name: column[1:] for name, column in rows.columns.items()}
        return Table({**later, **growth, "seconds": seconds}).where(kept)


_DERIVED: dict[str, Callable[[Table], Floats]] = {
    "one": lambda table: np.ones(len(table)),
    "no_wait": lambda loader: loader["step"] - loader["wait"],
    "rest": lambda loader: loader["no_wait"] - np.nan_to_num(loader["h2d"], nan=0.0),
    "compute_or_rest": lambda loader: np.where(
        np.isnan(loader["compute"]), np.maximum(0.0, loader["rest"]), loader["compute"]
    ),
    "in_use": lambda host: np.where(np.isnan(host["used"]), host["rss"], host["used"]),
}
"""Columns that follow from others: what is left of a step without waits, and without copies; computing, or what is left
where no device told it; a host's memory, without a control group all that its processes have."""


class Columns:
    """Rows of every stream of a run, in the order of their files.

    Attributes:
        records: how many records were taken.
        last_record: of each, for what is no number.
        first, last: times of the earliest and the latest, seconds since the epoch; NaN when there is none.
    """

    def __init__(self, metrics: Iterable[tuple[Stream, Metric]] = ()) -> None:
        self.records = 0
        self.first = math.nan
        self.last = math.nan
        self.last_record: dict[Key, Metric] = {}
        self._rows: dict[Key, array[float]] = {}
        self._tables: dict[Key, tuple[int, Table]] = {}
        self.take(metrics)

    def take(self, metrics: Iterable[tuple[Stream, Metric]]) -> None:
        """Takes new records."""
        for stream, metric in metrics:
            if isinstance(metric, ValueNotFinite):
                continue  # no figure and no chart can show it
            for key, record in _parts(stream, metric):
                rows = self._rows.get(key)
                if rows is None:
                    rows = self._rows[key] = array("d")
                self.last_record[key] = metric
                rows.append(metric.t)
                rows.extend(map(_number, _READ[key.kind](record)))
            self.records += 1
            if not self.first <= metric.t:  # also when it is NaN
                self.first = metric.t
            if not self.last >= metric.t:
                self.last = metric.t

    def keys(self, kind: str) -> list[Key]:
        """Returns who has rows of a kind, in the order of groups, hosts and ranks."""
        return sorted((key for key in self._rows if key.kind == kind), key=lambda key: (key.name, key.stream))

    def table(self, key: Key) -> Table:
        """Returns the rows of one key."""
        taken = len(self._rows[key])
        known = self._tables.get(key)
        if known is None or known[0] != taken:
            fields = FIELDS[key.kind]
            rows = np.array(self._rows[key], dtype=np.float64).reshape(-1, len(fields)).T.copy()
            known = self._tables[key] = (taken, Table(dict(zip(fields, rows, strict=True))))
        return known[1]

    def tables(self, kind: str) -> dict[Key, Table]:
        """Returns all rows of a kind, in the order of `keys`."""
        return {key: self.table(key) for key in self.keys(kind)}

    def streams(self, kind: str) -> dict[Stream, Table]:
        """Returns the rows of a kind of which each stream has one table, in the order of `keys`."""
        return {key.stream: table for key, table in self.tables(kind).items()}

    def loaders(self) -> dict[str, dict[Stream, Table]]:
        """Returns every loader with the rows of its ranks, in the order in which the ranks, by number, tell of them."""
        found: dict[str, dict[Stream, Table]] = {}
        for key in sorted((key for key in self._rows if key.kind == "loader"), key=lambda key: _rank_order(key.stream)):
            found.setdefault(key.name, {})[key.stream] = self.table(key)
        return found


def read_columns(run: Run, selector: Selector | None = None) -> Columns:
    """Reads the metrics of a run; those of some streams if a selector names them."""
    return Columns(MetricFollower(run.paths, run.on_damage, selector).poll())


def _rank_order(stream: Stream) -> tuple[int, Stream]:
    """Sort key: ranks by number, then all others."""
    return (int(stream.name) if stream.name.isdecimal() else 1 << 62, stream)


def _parts(stream: Stream, metric: Metric) -> Iterator[tuple[Key, object]]:
    """Yields whose rows a record is made into, and what has their fields."""
    if isinstance(metric, HostSecond):
        yield Key("host", stream), metric
        for gpu in metric.gpus:
            yield Key("gpu", stream, source=f"{gpu.index}: {gpu.name}"), gpu
    elif isinstance(metric, ValueSecond):
        yield Key("value", stream, metric.name, metric.stream), metric
    elif isinstance(metric, ServiceSecond):
        yield Key("service", stream, metric.role), metric
    elif isinstance(metric, PlatformMinute):
        yield Key("platform", stream, source=metric.source), metric
    elif not isinstance(metric, ValueNotFinite):
        yield Key("worker" if isinstance(metric, WorkerSecond) else "loader", stream, metric.loader), metric


def _number(value: float | None) -> float:
    return math.nan if value is None else value
