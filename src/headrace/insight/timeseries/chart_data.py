"""Charts as values: lines of some hundred points over one stretch of time."""

from __future__ import annotations

import msgspec

from headrace.runs import Damage


class Line(msgspec.Struct, frozen=True):
    """One line of a chart.

    Attributes:
        name: what it shows, e.g. a loader or a group.
        group: instance group, empty for the whole job.
        values: one a bucket, None where nothing was measured.
        low, high: least and greatest of the records in each bucket; None where a chart has no such range.
        steps: of the training, the last one in each bucket; None where the records have none.
    """

    name: str
    group: str
    values: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    steps: list[float | None] | None = None


class Chart(msgspec.Struct, frozen=True):
    """One quantity over time.

    Attributes:
        name: which, e.g. ``step_time``.
        title, unit: for its axes; ``%``, ``ms``, ``1/s``, ``bytes``, ``bytes/s``, ``W``, ``batches``, ``CPUs``, or
            ``1`` for what a program printed.
        formula: how a bucket's value is computed.
        lines: its lines.
        stacked: they are parts of a whole: each is drawn on top of those before it.
    """

    name: str
    title: str
    unit: str
    formula: str
    lines: tuple[Line, ...]
    stacked: bool = False


class Metrics(msgspec.Struct, frozen=True):
    """The charts of one run over one stretch of time.

    Attributes:
        run_id: which run.
        start, end: the stretch, seconds since the epoch.
        width: seconds of a bucket.
        t: beginnings of the buckets.
        records: metric records of the whole run so far.
        charts: the charts; every line has one value for each of `t`.
        notes: what was not measured.
        damage: what of the run's files cannot be read, and is left out.
        until: when the job was over and its hosts were stopped, seconds since the epoch; None while it goes on.
    """

    run_id: str
    start: float
    end: float
    width: float
    t: list[float]
    records: int
    charts: tuple[Chart, ...]
    notes: tuple[str, ...]
    damage: tuple[Damage, ...] = ()
    until: float | None = None
