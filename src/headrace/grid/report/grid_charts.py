"""The charts of a grid's report as inline SVG: when each line ran, by region, and cost against a metric."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from headrace.grid.journal.grid_record import LineState
from headrace.grid.report.grid_report import GridReport, Objective, value_of
from headrace.grid.report.line_result import AttemptSpan, LineResult, span, told
from headrace.insight.cost.billing import amount
from headrace.insight.render.svg import BOTTOM, HEIGHT, TOP, WIDTH, Axes, grid_lines, nice_ticks

_LANE = 12
_STATES = {
    LineState.COMPLETED: "done",
    LineState.FAILED: "bad",
    LineState.STOPPED: "warn",
}


def lanes_chart(report: GridReport) -> str:
    """Returns a figure with a bar for each attempt that had a run, in the lanes of its region; empty without one."""
    lanes = lanes_of(report)
    if not lanes:
        return ""
    rows = sum(len(lane) + 1 for lane in lanes.values())
    right = max(report.seconds, 1.0)
    height = TOP + rows * _LANE + BOTTOM
    axes = Axes(0.0, right, height=height)
    parts = list(grid_lines(axes, [(at, span(at)) for at in nice_ticks(0.0, right)], ()))
    row = 0
    for region, lane in lanes.items():
        y = TOP + row * _LANE
        parts.append(f'<text x="4" y="{y + 10}">{html.escape(region or "no region")}</text>')
        row += 1
        for there in lane:
            y = TOP + row * _LANE
            parts += [_bar(each, report.created, axes, y) for each in there]
            row += 1
    ran = sum(1 for each in report.lines if each.spans)
    left_out = f"; {len(report.lines) - ran} lines have not run" if ran < len(report.lines) else ""
    label = f"when {ran} lines ran, in {len(lanes)} regions{left_out}"
    styles = {_STATES.get(attempt.state, "") for each in report.lines for attempt in each.spans}
    legend = "".join(
        f'<li><svg class="key" viewBox="0 0 24 8" aria-hidden="true"><rect class="bar {style}" width="24" height="8"/>'
        f"</svg>{words}</li>"
        for style, words in (("done", "completed"), ("bad", "failed"), ("warn", "stopped"), ("", "going"))
        if style in styles
    )
    return (
        f"<figure><figcaption>lines by region<span>since the grid began</span></figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


class Bar(NamedTuple):
    """One attempt of a line."""

    line: LineResult
    span: AttemptSpan

    @property
    def words(self) -> str:
        """What it says to who points at it."""
        attempt = f" (attempt {self.span.number})" if self.line.attempts > 1 else ""
        came = f"{self.span.state.value}, {span(self.span.seconds)}"
        return f"{self.line.job_name}{attempt}: {told(self.line)}; {came}"


def lanes_of(report: GridReport) -> dict[str, list[list[Bar]]]:
    """Returns the attempts that had a run, by region; those that did not run at once are in one lane."""
    bars = [Bar(each, attempt) for each in report.lines for attempt in each.spans]
    lanes: dict[str, list[list[Bar]]] = {}
    ends: dict[str, list[float]] = {}
    for each in sorted(bars, key=lambda one: (one.span.region, one.span.started, one.line.index)):
        start = each.span.started
        there, until = lanes.setdefault(each.span.region, []), ends.setdefault(each.span.region, [])
        number = next((index for index, end in enumerate(until) if end <= start), len(until))
        if number == len(until):
            there.append([])
            until.append(0.0)
        there[number].append(each)
        until[number] = start + each.span.seconds
    return lanes


def _bar(each: Bar, origin: float, axes: Axes, y: int) -> str:
    begin = max(0.0, each.span.started - origin)
    x = axes.x(begin)
    width = max(1.5, axes.x(begin + each.span.seconds) - x - 0.5)
    return (
        f'<rect class="bar {_STATES.get(each.span.state, "")}" x="{x:.1f}" y="{y + 1}" width="{width:.1f}" '
        f'height="{_LANE - 2}" rx="2"><title>{html.escape(each.words)}</title></rect>'
    )


def front_chart(report: GridReport) -> str:
    """Returns a figure with cost and metric of every completed line, and the line of those not beaten in both; empty
    without an objective, or when no line has both."""
    if report.objective is None:
        return ""
    points = [(each, each.cost, value_of(each, report.objective)) for each in report.lines]
    known = [(each, cost, value) for each, cost, value in points if cost is not None and value is not None]
    if not known:
        return ""
    axes = Axes(*_around([cost for _, cost, _ in known]), *_around([value for _, _, value in known]))
    costs = [(cost, amount(cost)) for cost in nice_ticks(axes.left, axes.right)]
    values = [(value, f"{value:.6g}") for value in nice_ticks(axes.bottom, axes.top)]
    parts = list(grid_lines(axes, costs, values))
    spots = {each.index: (axes.x(cost), axes.y(value)) for each, cost, value in known}
    if len(report.front) > 1:
        path = "L".join(f"{spots[index][0]:.1f} {spots[index][1]:.1f}" for index in report.front)
        parts.append(f'<path class="line s2" d="M{path}"/>')
    for each, cost, value in known:
        x, y = spots[each.index]
        words = (
            f"{each.job_name}: {told(each)}; {report.objective.metric} {value:.6g}, {amount(cost)} {report.currency}"
        )
        style = "front" if each.index in report.front else ""
        spot = f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
        parts.append(f"{spot}<title>{html.escape(words)}</title></circle>")
    label = html.escape(_front_words(report.objective, len(known), len(report.front)), quote=True)
    title = html.escape(report.objective.metric)
    return (
        f"<figure><figcaption>{title}<span>by cost, {report.currency}</span></figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        '<ul class="legend"><li><svg class="key" viewBox="0 0 24 8" aria-hidden="true">'
        '<circle class="dot front" cx="12" cy="4" r="4"/></svg>not beaten in both</li></ul></figure>'
    )


def _front_words(objective: Objective, count: int, front: int) -> str:
    goal = "least" if objective.goal == "min" else "greatest"
    return f"cost and {objective.metric} ({goal} is best) of {count} lines; {front} are not beaten in both"


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of an axis, with some room around its values."""
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return max(0.0, low - room) if low >= 0 else low - room, high + room
