"""The metrics of a run as columns of numbers: read once, small in memory, quick to sum over any stretch of time.

A run of a million steps has some hundred thousand records. As objects they would need a gigabyte; as rows of 64-bit
floats they need a few dozen megabytes, and NumPy sums them in milliseconds. What was not measured is NaN.

What is computed from them is declared once, as a quantity, a ratio of two sums over rows: report, verdict, charts,
advice and progress read these.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import attrgetter, mul
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.insight.figures.figure import FIGURES, Figure, Window, figure_of, missing, share_range, spread_of
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


Number = TypeVar("Number", float, Floats)


class Rows(NamedTuple):
    """Of one stream, row by row: times, and the numerator and denominator of a quantity; only rows that have both."""

    t: Floats
    over: Floats
    under: Floats


class Quantity(NamedTuple):
    """scale * sum(over) / sum(under) of the rows that have both.

    Attributes:
        name: of its figures, as `FIGURES` declares them.
        over, under: columns, or products of columns as ``queue * steps``; `under` is ``one`` for a mean over the rows.
        scale: e.g. 100 for %.
        counter: `over` is a counter, of which the growth from row to row counts; `seconds` lie between two.
        spread: its figures have that of its values row by row.
        noise: its figures have a confidence range; of shares only.
    """

    name: str
    over: str
    under: str = "one"
    scale: int = 1
    counter: bool = False
    spread: bool = True
    noise: bool = False

    @property
    def unit(self) -> str:
        """Of its figures."""
        return FIGURES[self.name].unit

    @property
    def ratio(self) -> str:
        """The ratio in words, e.g. ``100 * sum(wait) / sum(step)``."""
        return f"{f'{self.scale} * ' if self.scale != 1 else ''}sum({self.over}) / sum({self.under})"

    def _parts(self, column: Callable[[str], Number]) -> tuple[Number, Number]:
        over, under = (reduce(mul, map(column, part.split(" * "))) for part in (self.over, self.under))
        return over, under

    def rows(self, table: Table) -> Rows:
        """Returns the rows of a table in which it was measured."""
        rows = table.grown(self.over) if self.counter else table
        over, under = self._parts(rows.__getitem__)
        unknown = np.isnan(over) | np.isnan(under)
        if not unknown.any():
            return Rows(rows["t"], over, under)
        return Rows(rows["t"][~unknown], over[~unknown], under[~unknown])

    def each(self, table: Table) -> Rows:
        """Returns its values row by row, as `over`; rows without a denominator have none."""
        t, over, under = self.rows(table)
        some = under > 0
        return Rows(t[some], self.scale * over[some] / under[some], under[some])

    def of(self, tables: Iterable[Table]) -> float | None:
        """Returns its value over all rows of some tables; None where it was not measured."""
        rows = [self.rows(table) for table in tables]
        under = total(each.under for each in rows)
        return self.scale * total(each.over for each in rows) / under if under else None

    def of_records(self, records: Iterable[object]) -> float | None:
        """Returns its value over records that have its fields; None where they are zero in sum."""
        parts = [self._parts(partial(getattr, record)) for record in records]
        under = math.fsum(part for _, part in parts)
        return self.scale * math.fsum(part for part, _ in parts) / under if under else None

    def figure(self, tables: Sequence[Table], window: Window | None, absent: str, note: str = "") -> Figure:
        """Returns the figure of its value over all rows of some tables.

        Args:
            tables: a stream each.
            window: where they were measured.
            absent: why there is no value if there is none.
            note: what to know about it.
        """
        value = self.of(tables)
        if value is None:
            return missing(self.name, absent)
        spread = spread_of(joined(self.each(table).over for table in tables)) if self.spread else None
        rows = [self.rows(table) for table in tables] if self.noise else []
        known = share_range([each.over.tolist() for each in rows], [each.under.tolist() for each in rows], value)
        return figure_of(self.name, value, window, spread, note, known)

    def greatest(self, each: Iterable[Rows], window: Window | None, absent: str, note: str = "") -> Figure:
        """Returns the figure of its greatest value in a row.

        Args:
            each: its values row by row, of each stream.
            window, absent, note: as for `figure`.
        """
        values = joined(rows.over for rows in each)
        if not values:
            return missing(self.name, absent)
        spread = spread_of(values) if self.spread else None
        return figure_of(self.name, _counted(self.unit, max(values)), window, spread, note)


def _counted(unit: str, value: float) -> float:
    return int(value) if unit == "bytes" else value


def at_once(each: Iterable[Rows], how: np.ufunc) -> Rows:
    """Returns what several streams of one host show at the same moments, made one by `np.add`, `np.maximum` ..."""
    t, over, under = (np.concatenate(column) for column in zip(*each, strict=True))
    order = np.argsort(t, kind="stable")
    moments, first = np.unique(t[order], return_index=True)
    return Rows(moments, how.reduceat(over[order], first), how.reduceat(under[order], first))


def span(tables: Iterable[Table]) -> Window | None:
    """Returns the time from the first row of some tables to the last; None without a row."""
    t = joined(table["t"] for table in tables)
    return Window(min(t), max(t)) if t else None


def total(columns: Iterable[Floats]) -> float:
    """Returns the sum of all numbers of some columns, correctly rounded: it does not depend on their order. Beyond what
    a double holds, as of the losses of a training that diverges, it is infinite, or NaN."""
    values = joined(columns)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large; infinities of both signs
        return sum(values)


def joined(columns: Iterable[Floats]) -> list[float]:
    """Returns the numbers of some columns, one after another."""
    return [value for column in columns for value in column.tolist()]


STEP_TIME = Quantity("step_time", "step", "steps", 1000)
SAMPLES_PER_SECOND = Quantity("samples_per_second", "samples", "step")
DATA_WAIT = Quantity("data_wait", "wait", "step", 100, noise=True)
H2D = Quantity("h2d", "h2d", "step", 100)
COMPUTE = Quantity("compute", "compute", "step", 100)
COMPUTE_OR_REST = COMPUTE._replace(over="compute_or_rest")
QUEUE = Quantity("queue", "queue * steps", "steps")
SUPPLY = Quantity("supply", "samples", "produce")
PRODUCE, BLOCKED, IDLE = (Quantity(name, name, "executors * seconds", 100) for name in ("produce", "blocked", "idle"))
WORKER_CPU = Quantity("worker_cpu", "cpu", "samples", 1000, spread=False)
BYTES_PER_SAMPLE = Quantity("bytes_per_sample", "bytes", "samples", spread=False)
LINK = Quantity("link", "sending", "seconds", 100)
BANDWIDTH = Quantity("bandwidth", "sent", "sending")
SERVER_CPU = Quantity("server_cpu", "cpu", "seconds", 100, counter=True, spread=False)
SERVER_RSS = Quantity("server_rss", "rss", spread=False)
SERVER_SENT = Quantity("server_sent", "sent", "seconds", counter=True, spread=False)
CPU = Quantity("cpu", "cpu", "seconds * cores", 100, counter=True, noise=True)
CORES_BUSY = Quantity("cores_busy", "cpu", "seconds", counter=True)
MAX_RSS = Quantity("max_rss", "rss")
MEMORY = Quantity("memory", "in_use", "memory", 100)
NETWORK_RECEIVED = Quantity("network_received", "received", "seconds", counter=True)
NETWORK_SENT = Quantity("network_sent", "sent", "seconds", counter=True)
DISK_READ = Quantity("disk_read", "read", "seconds", counter=True)
DISK_WRITTEN = Quantity("disk_written", "written", "seconds", counter=True)
DISK = Quantity("disk", "disk")
GPU_USE = Quantity("gpu_use", "use")
GPU_MEMORY = Quantity("gpu_memory", "memory", "memory_total", 100)
GPU_POWER = Quantity("gpu_power", "power")
VALUE_MEAN = Quantity("value_mean", "total", "count")
