"""Figures over time, thinned to what a chart can show. Pure.

A bucket holds the true mean of its seconds (sums, not a mean of means) and their least and greatest value, so no peak
disappears.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.insight.figures import WARM_UP_RECORDS, Window
from headrace.runs import HostSecond, LoaderSecond, Stream

MOST_POINTS = 120
"""Buckets a series: one every six pixels of a wide chart."""


class Series(msgspec.Struct, frozen=True):
    """One figure over time, all ranks or hosts together; the lists have one entry a bucket, empty buckets left out.

    Attributes:
        name: which figure; the report's `formulas` say how it is computed.
        group: instance group, empty for a figure of the whole job.
        unit: of the values.
        seconds: length of a bucket.
        t: middle of the bucket, seconds since the epoch, UTC.
        value: sum / sum over the bucket.
        low, high: least and greatest value of a second in it.
    """

    name: str
    group: str
    unit: str
    seconds: float
    t: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Point(msgspec.Struct, frozen=True):
    """What one record adds: a part of both sums of a ratio."""

    t: float
    over: float
    under: float


def thinned(
    name: str, unit: str, points: Iterable[Point], *, group: str = "", most: int = MOST_POINTS
) -> Series | None:
    """Returns points as a series of at most `most` buckets of equal length; None when there are none."""
    usable = [point for point in points if point.under > 0]
    if not usable:
        return None
    window = Window(min(point.t for point in usable), max(point.t for point in usable))
    length = max(window.seconds / MOST_POINTS, 1.0)
    buckets: dict[int, list[Point]] = {}
    for point in usable:
        buckets.setdefault(min(int((point.t - window.start) / length), MOST_POINTS - 1), []).append(point)
    found = sorted(buckets.items())
    return Series(
        name=name,
        group=group,
        unit=unit,
        seconds=length,
        t=tuple(window.start + (index + 0.5) * length for index, _ in found),
        value=tuple(sum(p.over for p in inside) / sum(p.under for p in inside) for _, inside in found),
        low=tuple(min(p.over / p.under for p in inside) for _, inside in found),
        high=tuple(max(p.over / p.under for p in inside) for _, inside in found),
    )


def loader_series(ranks: Mapping[Stream, Sequence[LoaderSecond]]) -> tuple[Series, ...]:
    """Returns step time and data wait of one loader over all its ranks, the warm-up left out."""
    records = [second for found in ranks.values() for second in found[WARM_UP_RECORDS:]]
    found = (
        thinned("step_time", "ms", (Point(one.t, 1000 * one.step, one.steps) for one in records)),
        thinned("data_wait", "%", (Point(one.t, 100 * one.wait, one.step) for one in records)),
    )
    return tuple(series for series in found if series is not None)


def group_series(hosts: Mapping[Stream, Sequence[HostSecond]]) -> tuple[Series, ...]:
    """Returns CPU use of its own cores, and GPU use where there is one, of every group over the whole run."""
    groups: dict[str, list[Sequence[HostSecond]]] = {}
    for stream, records in sorted(hosts.items()):
        groups.setdefault(stream.group, []).append(records)
    found: list[Series | None] = []
    for group, members in groups.items():
        cpu = [
            Point(after.t, 100 * (after.cpu - before.cpu), (after.t - before.t) * after.cores)
            for records in members
            for before, after in itertools.pairwise(records)
        ]
        gpu = [
            Point(one.t, gpu.use, 1)
            for records in members
            for one in records
            for gpu in one.gpus
            if gpu.use is not None
        ]
        found += [thinned("cpu", "%", cpu, group=group), thinned("gpu_use", "%", gpu, group=group)]
    return tuple(series for series in found if series is not None)
