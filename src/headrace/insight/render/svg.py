"""Line charts as inline SVG: lines over time with the band of the seconds around each. Pure, no script.

Colours and dashes are the style sheet's (`.s0` to `.s7`), so that a chart follows the reader's light or dark page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.insight.render.document import Chart
from headrace.insight.render.plain_text import quantity
from headrace.insight.render.plain_text import title as title_of
from headrace.insight.reports.comparison import Comparison
from headrace.insight.reports.run_report import Report
from headrace.insight.timeseries.chart_data import Line, Metrics

WIDTH, HEIGHT = 560, 240
STYLES = 8
"""Line styles; a ninth line looks like the first."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
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
        edges = (line.low or line.values, line.high or line.values)
        found = [
            (t + metrics.width / 2 - start, value, value if low is None else low, value if high is None else high)
            for t, value, low, high in zip(metrics.t, line.values, *edges, strict=True)
            if value is not None
        ]
        t, values, low, high = zip(*found, strict=True)
        return cls(label, metrics.width, t, values, low, high, style)


def run_charts(report: Report, metrics: Metrics) -> list[Chart]:
    """Returns the charts of one run.

    Args:
        report: the run.
        metrics: its lines, see `headrace.insight.timeseries.charts`.
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
    axes = _Axes(left, max(right, left + 1.0), _top(max(max(line.high) for line in lines), unit))
    parts = [*_grid(axes), *(part for line in lines for part in _drawn(line, unit, axes))]
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


@dataclass(frozen=True)
class _Axes:
    left: float
    right: float
    top: float

    def x(self, seconds: float) -> float:
        return _LEFT + (seconds - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - min(max(value, 0.0), self.top) / self.top * (HEIGHT - _TOP - _BOTTOM)


def _top(highest: float, unit: str) -> float:
    """The upper end of the value axis: a round number; a share never has more than 100 %."""
    if unit == "%" and highest > 50:
        return 100.0
    ticks = nice_ticks(0.0, highest if highest > 0 else 1.0)
    step = ticks[1] - ticks[0]
    return ticks[-1] if ticks[-1] >= highest else ticks[-1] + step


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Returns round numbers between two values, about as many as asked for.

    >>> nice_ticks(0, 23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _grid(axes: _Axes) -> Iterable[str]:
    for value in nice_ticks(0.0, axes.top):
        y = axes.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    for seconds in nice_ticks(axes.left, axes.right):
        x = axes.x(seconds)
        yield f'<path class="grid" d="M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">{_clock(seconds)}</text>'
    yield f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">since the programs started</text>'


def _clock(seconds: float) -> str:
    if abs(seconds) < 600:
        return f"{seconds:g} s"
    if abs(seconds) < 36_000:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _drawn(line: Trace, unit: str, axes: _Axes) -> Iterable[str]:
    """The band and the line, broken where nothing was measured."""
    style = line.style % STYLES
    band, path = [], []
    for part in _unbroken(line):
        xs = [axes.x(line.t[index]) for index in part]
        upper = [f"{x:.1f} {axes.y(line.high[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        lower = [f"{x:.1f} {axes.y(line.low[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        band.append(f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z")
        points = [f"{x:.1f} {axes.y(line.values[index]):.1f}" for x, index in zip(xs, part, strict=True)]
        path.append(f"M{'L'.join(points)}" + (f"L{points[0]}" if len(points) == 1 else ""))
    yield f'<path class="band s{style}" d="{"".join(band)}"/>'
    yield f'<path class="line s{style}" d="{"".join(path)}"><title>{html.escape(_summary(line, unit))}</title></path>'


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
