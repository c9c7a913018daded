"""Figures that a job's metric definitions found in what its programs printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.insight.figures.figure import Figure, Window, missing, spread_of
from headrace.runs import Stream, ValueSecond

AS_PRINTED = ""
"""Unit of a value: what the program meant by it."""


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


def value_reports(names: Iterable[str], seconds: Mapping[Stream, Sequence[ValueSecond]]) -> tuple[ValueReport, ...]:
    """Returns the figures of every metric. Pure.

    Args:
        names: of the job's metric definitions; one that no program printed has figures without a value.
        seconds: what was found, by host.
    """
    found: dict[str, list[tuple[Stream, ValueSecond]]] = {name: [] for name in names}
    for stream, records in sorted(seconds.items()):
        for second in records:
            program = Stream(stream.group, stream.host, second.stream)
            found.setdefault(second.name, []).append((program, second))
    return tuple(_report(name, records) for name, records in found.items())


def _report(name: str, records: list[tuple[Stream, ValueSecond]]) -> ValueReport:
    programs = tuple(str(stream) for stream in sorted({stream for stream, _ in records}))
    if not records:
        note = "no line of a program matched its regex"
        low, high, mean, last = (missing(f"value_{what}", AS_PRINTED, note) for what in ("min", "max", "mean", "last"))
        return ValueReport(name, programs, Figure("value_count", "1", 0, note=note), last, low, high, mean)
    seconds = [second for _, second in records]
    window = Window(min(second.t for second in seconds), max(second.t for second in seconds))
    count = sum(second.count for second in seconds)
    latest, newest = max(records, key=lambda record: record[1].t)
    from_whom = f"of {latest}, the newest of {len(programs)} programs" if len(programs) > 1 else ""
    spread = spread_of([second.total / second.count for second in seconds])
    mean_value = sum(second.total for second in seconds) / count
    return ValueReport(
        name=name,
        programs=programs,
        count=Figure("value_count", "1", count, window),
        last=Figure("value_last", AS_PRINTED, newest.last, window, note=from_whom),
        min=Figure("value_min", AS_PRINTED, min(second.low for second in seconds), window),
        max=Figure("value_max", AS_PRINTED, max(second.high for second in seconds), window),
        mean=Figure("value_mean", AS_PRINTED, mean_value, window, spread),
    )
