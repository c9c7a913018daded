"""Line charts as inline SVG: lines over time with the band of the seconds around each. Pure, no script.

Colours and dashes are the style sheet's (`.s0` to `.s7`), so that a chart follows the reader's light or dark page.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from markupsafe import Markup

from headrace.insight.charts import WIDTHS, Line, Metrics
from headrace.insight.charts import Chart as TimeChart
from headrace.insight.comparison import Comparison
from headrace.insight.render.document import Chart
from headrace.insight.render.plain_text import MISSING, clock, duration, quantity, size_text
from headrace.insight.render.plain_text import title as title_of
from headrace.insight.run_report import Report

WIDTH, HEIGHT = 560, 240
TOP, BOTTOM = 12, 34
"""Room above and below what is drawn."""

STYLES = 8
"""Line styles; a ninth line looks like the first."""

_LEFT, _RIGHT = 52, 12
_GAP = 10.0
"""A line is broken where points are missing for longer than this many buckets: a record of slow steps spans several."""


@dataclass(frozen=True)
class Trace:
    """One line as it is drawn: only the buckets in which something was measured, at their middle.

    Attributes:
        label: what it shows.
        width: of a bucket, seconds.
        t: seconds since the start of the time axis.
        values: one for each of `t`.
        low, high: lower and upper edge of the band around it.
        style: number of its style; lines of one run look alike in all charts.
    """

    label: str
    width: float
    t: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    style: int

    @classmethod
    def of(cls, line: Line, metrics: Metrics, label: str, start: float, style: int) -> Trace:
        """Returns a line of some charts; without a range its band is as thin as the line.

        Args:
            line: with at least one value.
            metrics: the charts that it belongs to.
            label: what it shows.
            start: moment that is 0 on the time axis, seconds since the epoch.
            style: number of its style.
        """
        return cls.over([t + metrics.width / 2 - start for t in metrics.t], line, label, style, metrics.width)

    @classmethod
    def over(cls, places: Sequence[float], line: Line, label: str, style: int, width: float) -> Trace:
        """Returns a line over places, one for each of its values. `width`: of a bucket."""
        edges = (line.low or line.values, line.high or line.values)
        found = [
            (at, value, value if low is None else low, value if high is None else high)
            for at, value, low, high in zip(places, line.values, *edges, strict=True)
            if value is not None
        ]
        t, values, low, high = zip(*found, strict=True) if found else ((), (), (), ())
        return cls(label, width, t, values, low, high, style)


def run_charts(report: Report, metrics: Metrics) -> list[Chart]:
    """Returns the charts of one run.

    Args:
        report: the run.
        metrics: its lines, see `headrace.insight.charts`.
    """
    start = report.started if report.started is not None else report.created
    drawn = []
    for each in metrics.charts:
        grouped = any(line.group for line in each.lines)
        name = title_of(each.name) + (" by group" if grouped else "")
        traces = [
            Trace.of(line, metrics, line.group if grouped else name, start, index)
            for index, line in enumerate(each.lines)
        ]
        drawn.append(chart(name, each.unit, traces))
    return [Chart(markup) for markup in drawn if markup]


def compared_charts(comparison: Comparison, metrics: Sequence[Metrics]) -> list[Chart]:
    """Returns charts of several runs, given the lines of each: one for the whole job or for a group has a line a run;
    those of the groups come last."""
    traces: dict[tuple[str, str, str], list[Trace]] = {}
    for index, (run, found) in enumerate(zip(comparison.runs, metrics, strict=True)):
        start = run.started if run.started is not None else found.start
        for each in found.charts:
            for line in each.lines:
                same = traces.setdefault((each.name, line.group, each.unit), [])
                same.append(Trace.of(line, found, run.run_id, start, index))
    kinds = sorted(traces, key=lambda kind: bool(kind[1]))
    return [Chart(chart(title_of(name, group), unit, traces[name, group, unit])) for name, group, unit in kinds]


def chart(title: str, unit: str, lines: Sequence[Trace]) -> str:
    """Returns a figure element with a chart and its legend; empty without lines.

    Args:
        title: above the chart.
        unit: of all lines.
        lines: what is drawn.
    """
    if not lines:
        return ""
    right = max(max(line.t) for line in lines)
    left = min(0.0, *(min(line.t) for line in lines))
    axes = Axes(left, max(right, left + 1.0), *_range(0.0, max(max(line.high) for line in lines), unit))
    since = [(at, _clock(at)) for at in nice_ticks(axes.left, axes.right)]
    drawn = [(line, f"s{line.style % STYLES}", *_paths(line, axes)) for line in lines]
    parts = [
        *grid_lines(axes, since, _ticks(axes, unit)),
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">since the programs started</text>',
        *(
            f'<path class="band {style}" d="{band}"/><path class="line {style}" d="{path}">'
            f"<title>{html.escape(_summary(line, unit))}</title></path>"
            for line, style, band, path in drawn
        ),
    ]
    label = html.escape(f"{title}: " + "; ".join(_summary(line, unit) for line in lines), quote=True)
    legend = "".join(f"<li>{key(line.style)}{html.escape(line.label)}</li>" for line in lines if line.label != title)
    return (
        f"<figure><figcaption>{html.escape(title)}<span>{html.escape(unit)}</span></figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        + (f'<ul class="legend">{legend}</ul></figure>' if legend else "</figure>")
    )


def key(style: int) -> str:
    """Returns a short piece of a line, for legends."""
    line = f'<path class="line s{style % STYLES}" d="M0 4H24"/>'
    return f'<svg class="key" viewBox="0 0 24 8" aria-hidden="true">{line}</svg>'


Axis: TypeAlias = Literal["time", "since", "step"]
"""What lies on the horizontal axis of a plot: moments, seconds since a start, or steps."""


class Curve(NamedTuple):
    """One line of a plot: name, classes for a style sheet, paths, its value at each place in words, and the last."""

    name: str
    style: str
    band: str
    path: str
    words: list[str]
    last: str


class Plot(NamedTuple):
    """A chart over which a page moves a cursor.

    Attributes:
        chart: what it shows.
        axis: what lies on its horizontal axis, from `left` to `right`.
        scales: the grid and its words, as SVG.
        curves: its lines.
        places: what a cursor stops at, on the axis; `x` in the drawing, `names` in words.
        marks: where in the drawing something went wrong.
        steps: whether it can be drawn by step.
    """

    chart: TimeChart
    axis: Axis
    left: float
    right: float
    scales: Markup
    curves: list[Curve]
    places: list[float]
    x: list[float]
    names: list[str]
    marks: list[float]
    steps: bool = False


def plot(
    chart: TimeChart,
    places: Sequence[float],
    axis: Axis,
    width: float = math.inf,
    *,
    scale: tuple[float, float] | None = None,
    groups: Sequence[str] = (),
    until: float = math.inf,
    marks: Iterable[float] = (),
    steps: bool = False,
) -> Plot:
    """Draws a chart.

    Args:
        chart: it.
        places: of its values on the axis.
        axis: what that is.
        width: of a bucket; lines are broken where many are missing.
        scale: ends of the axis; None for the first and the last place.
        groups: instance groups in their order: each has its colour.
        until: the last place whose values count as the last ones.
        marks: places where something went wrong.
        steps: whether it can be drawn by step.
    """
    left, right = scale or (places[0] if places else 0.0, places[-1] if places else 1.0)
    lines = list(_stacked(chart.lines) if chart.stacked else chart.lines)
    traces = [Trace.over(places, line, line.name, 0, width) for line in lines]
    highest = max((max(trace.high) for trace in traces if trace.high), default=1.0)
    lowest = min((min(trace.low) for trace in traces if trace.low), default=0.0)
    axes = Axes(left, max(right, left + 1e-3), *_range(min(0.0, lowest), highest, chart.unit))
    named: Callable[[float], str] = {"time": clock, "since": duration, "step": "{:g}".format}[axis]
    ticks = _time_ticks(axes) if axis == "time" else [(at, named(at)) for at in nice_ticks(axes.left, axes.right)]
    curves = []
    for line, trace, style in zip(chart.lines, traces, _styles(chart.lines, groups), strict=True):
        known = [(at, value) for at, value in zip(places, line.values, strict=True) if value is not None]
        last = next((value for at, value in reversed(known) if at <= until), known[-1][1] if known else None)
        words = [_value(value, chart.unit) for value in line.values]
        curves.append(Curve(line.name, style, *_paths(trace, axes), words, _value(last, chart.unit)))
    scales = Markup("".join(grid_lines(axes, ticks, _ticks(axes, chart.unit))))  # made of numbers only
    xs = [round(axes.x(at), 1) for at in places]
    seen = [round(axes.x(at), 1) for at in marks if left <= at <= right]
    return Plot(chart, axis, left, right, scales, curves, list(places), xs, [named(at) for at in places], seen, steps)


def merged(lines: Sequence[tuple[Line, Sequence[float | None]]]) -> tuple[list[float], tuple[Line, ...]]:
    """Returns lines that have places of their own on one common axis: its places, and the lines."""
    known = [
        {at: value for at, value in zip(places, line.values, strict=True) if at is not None and value is not None}
        for line, places in lines
    ]
    every = sorted(set().union(*known))
    return every, tuple(
        Line(line.name, line.group, [values.get(at) for at in every])
        for (line, _), values in zip(lines, known, strict=True)
    )


def _value(value: float | None, unit: str) -> str:
    return MISSING if value is None else quantity(value, unit)


def _stacked(lines: Iterable[Line]) -> Iterator[Line]:
    """Yields parts of a whole, each on top of those before it: the band of each is the part itself."""
    below: list[float] = []
    for line in lines:
        below = below or [0.0] * len(line.values)
        top = [None if value is None else value + under for value, under in zip(line.values, below, strict=True)]
        yield Line(line.name, line.group, top, list(below), top)
        below = [under if value is None else value for value, under in zip(top, below, strict=True)]


def _styles(lines: Sequence[Line], groups: Sequence[str]) -> list[str]:
    """Returns the classes of each line: a group has its colour everywhere; lines of one group differ by dashes."""
    styles, used, free = [], Counter[str](), len(groups)
    for line in lines:
        if line.group in groups:
            styles.append(f"g{groups.index(line.group) % STYLES} d{used[line.group] % 4}")
            used[line.group] += 1
        else:
            styles.append(f"g{free % STYLES} d0")
            free += 1
    return styles


@dataclass(frozen=True)
class Axes:
    """Where values lie in a drawing."""

    left: float
    right: float
    bottom: float = 0.0
    top: float = 1.0
    height: int = HEIGHT

    def x(self, at: float) -> float:
        """Returns how far from the left a value of the horizontal axis is."""
        return _LEFT + (at - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Returns how far from the top a value of the vertical axis is."""
        share = (min(max(value, self.bottom), self.top) - self.bottom) / (self.top - self.bottom)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)


def _range(lowest: float, highest: float, unit: str) -> tuple[float, float]:
    """Returns the ends of the value axis: round numbers; a share never has more than 100 %."""
    if unit == "%" and highest > 50:
        return lowest, max(100.0, highest)
    step = _step(lowest, highest if highest > lowest else lowest + 1.0, unit)
    top = math.ceil(highest / step - 1e-9) * step
    return math.floor(lowest / step + 1e-9) * step, top if top > lowest else lowest + step


def _step(low: float, high: float, unit: str) -> float:
    """Returns a round distance between values: of bytes a power of two, as they are told in KiB, MiB, GiB."""
    if unit.startswith("bytes"):
        return float(2 ** max(0, math.ceil(math.log2((high - low) / 5))))
    ticks = nice_ticks(low, high)
    return ticks[1] - ticks[0]


def _ticks(axes: Axes, unit: str) -> list[tuple[float, str]]:
    step = _step(axes.bottom, axes.top, unit)
    count = int((axes.top - axes.bottom) / step + 1e-9)
    values = [round(axes.bottom + index * step, 10) for index in range(count + 1)]
    return [(value, size_text(value) if unit.startswith("bytes") else f"{value:g}") for value in values]


def _time_ticks(axes: Axes) -> list[tuple[float, str]]:
    span = axes.right - axes.left
    size = next((size for size in WIDTHS if size * 6 >= span), 86400 * max(1, round(span / 6 / 86400)))
    first = math.ceil(axes.left / size) * size
    return [(at, clock(at)[: 8 if size < 60 else 5]) for at in range(first, math.floor(axes.right) + 1, size)]


def nice_ticks(low: float, high: float) -> list[float]:
    """Returns round numbers between two values, about five.

    >>> nice_ticks(0, 23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def grid_lines(axes: Axes, xs: Iterable[tuple[float, str]], ys: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Yields lines of the grid, and what stands beside them."""
    for value, words in ys:
        y = axes.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
    for at, words in xs:
        x = axes.x(at)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{axes.height - BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{axes.height - BOTTOM + 15}" text-anchor="middle">{words}</text>'


def _clock(seconds: float) -> str:
    if abs(seconds) < 600:
        return f"{seconds:g} s"
    if abs(seconds) < 36_000:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _paths(line: Trace, axes: Axes) -> tuple[str, str]:
    """Returns the band and the line, broken where nothing was measured, as paths of SVG."""
    band, path = [], []
    for part in _unbroken(line):
        xs = [axes.x(line.t[index]) for index in part]
        upper = [f"{x:.1f} {axes.y(line.high[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        lower = [f"{x:.1f} {axes.y(line.low[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        band.append(f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z")
        points = [f"{x:.1f} {axes.y(line.values[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        path.append(f"M{'L'.join(points)}" + (f"L{points[0]}" if len(points) == 1 else ""))
    return "".join(band), "".join(path)


def _unbroken(line: Trace) -> list[list[int]]:
    parts: list[list[int]] = []
    for index, time in enumerate(line.t):
        if not parts or time - line.t[index - 1] > _GAP * line.width:
            parts.append([])
        parts[-1].append(index)
    return parts


def _summary(line: Trace, unit: str) -> str:
    low, high = quantity(min(line.low), unit), quantity(max(line.high), unit)
    return f"{line.label}, {len(line.t)} points, {low} to {high}"
