"""What is computed from a run's metrics, each declared once: report, verdict, charts, advice and progress read these.

A quantity is a ratio of two sums over the rows of `headrace.insight.figures.columns`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import mul
from typing import NamedTuple, TypeVar

import numpy as np

from headrace.insight.figures.columns import Floats, Table
from headrace.insight.figures.figure import FIGURES, Figure, Window, figure_of, missing, spread_of
from headrace.insight.figures.noise import share_range

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
