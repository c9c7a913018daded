"""Figures that a job's metric definitions found in what its programs printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.insight.figures.columns import Columns, Table
from headrace.insight.figures.figure import Figure, missing
from headrace.insight.figures.quantities import AS_PRINTED, VALUE_MEAN, joined, span
from headrace.runs import Stream


class ValueReport(msgspec.Struct, frozen=True):
    """One metric, of all programs together, whole run.

    Attributes:
        name: of the metric definition.
        programs: those that printed it, ``group/host[rank]``.
        count: how many values were found.
        last: the last one.
        min, max, mean: of all values.
    """

    name: str
    programs: tuple[str, ...]
    count: Figure
    last: Figure
    min: Figure
    max: Figure
    mean: Figure


def value_reports(names: Iterable[str], columns: Columns) -> tuple[ValueReport, ...]:
    """Returns the figures of every metric. Pure.

    Args:
        names: of the job's metric definitions; one that no program printed has figures without a value.
        columns: the metrics of the run.
    """
    found: dict[str, list[tuple[Stream, Table]]] = {name: [] for name in names}
    for key in sorted(columns.keys("value"), key=lambda key: key.stream):
        program = Stream(key.stream.group, key.stream.host, key.source)
        found.setdefault(key.name, []).append((program, columns.table(key)))
    return tuple(_report(name, tables) for name, tables in found.items())


def _report(name: str, told: Sequence[tuple[Stream, Table]]) -> ValueReport:
    programs, tables = sorted({program for program, _ in told}), [table for _, table in told]
    if not tables:
        note = "no line of a program matched its regex"
        figures = {what: missing(f"value_{what}", AS_PRINTED, note) for what in ("last", "min", "max", "mean")}
        return ValueReport(name=name, programs=(), count=Figure("value_count", "1", 0, note=note), **figures)
    count, low, high = (joined(table[field] for table in tables) for field in ("count", "low", "high"))
    window = span(tables)
    latest, newest = max(told, key=lambda one: one[1]["t"].max())
    last = newest["last"][newest["t"].argmax()].item()
    from_whom = f"of {latest}, the newest of {len(programs)} programs" if len(programs) > 1 else ""
    return ValueReport(
        name=name,
        programs=tuple(map(str, programs)),
        count=Figure("value_count", "1", int(sum(count)), window),
        last=Figure("value_last", AS_PRINTED, last, window, note=from_whom),
        min=Figure("value_min", AS_PRINTED, min(low), window),
        max=Figure("value_max", AS_PRINTED, max(high), window),
        mean=VALUE_MEAN.figure(tables, window, ""),
    )
