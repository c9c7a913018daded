"""The report of a grid, its best lines and the list of grids as documents, which every writer shows; as CSV; and the
charts of its page as inline SVG: when each line ran, by region, and cost against a metric."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.grid.grid_file import Objective
from headrace.grid.grid_record import CopyRecord, LineState
from headrace.grid.grid_report import AttemptSpan, GridReport, LineResult, counted, span, told, value_of, why
from headrace.grid.read_report import GridLine, UnreadGrid
from headrace.insight.billing import amount
from headrace.insight.render.document import (
    Cell,
    Chart,
    Document,
    Formulas,
    Heading,
    Section,
    Sentence,
    Table,
    document,
    notes,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, duration, moment, size_text
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


def headline(report: GridReport) -> str:
    """Returns a grid in one line: its name and how many lines are in which state."""
    states = ", ".join(f"{count} {state}" for state, count in report.states.items())
    return f"{report.name}: {counted(len(report.lines))}: {states}" if states else f"{report.name}: no lines"


def totals(report: GridReport) -> tuple[str, ...]:
    """Returns time and money of the whole grid, in sentences."""
    spent = f"cost: {amount(report.cost)} {report.currency} so far" if report.ended is None else (
        f"cost: {amount(report.cost)} {report.currency}"
    )  # fmt: skip
    more = f", {counted(report.unpriced)} of unknown cost besides" if report.unpriced else ""
    longest = max((each.planned_seconds or 0.0 for each in report.lines if each.planned_cost), default=0.0)
    assumed = f" for {duration(longest)} a line at most (max_run, or placement.run_seconds)" if longest else ""
    limit = f", budget {amount(report.budget)} {report.currency}" if report.budget is not None else ""
    took = "for" if report.ended is None else "took"
    goes = "it goes on " if report.ended is None else ""
    return (
        f"{spent}{more}, planned {amount(report.planned_cost)} {report.currency}{assumed}{limit}",
        f"{goes}{took} {span(report.seconds)}",
    )


def grid_document(report: GridReport, most: int | None = None) -> Document:
    """Returns the report of a grid.

    Args:
        report: it.
        most: lines to show; None for all.
    """
    left = 0 if most is None else len(report.lines) - most
    more = [f"{left} lines more: --output csv or json has all"] if left > 0 else []
    return document(
        section(Heading(headline(report)), *sentences(totals(report))),
        *_tables(report, most),
        notes([*more, *report.notes]),
    )


def grid_page(report: GridReport) -> Document:
    """Returns the report of a grid as its HTML has it, with charts. Why a line did not complete stands beside its
    state: a page is not as wide as the table."""
    charts = [chart for chart in (lanes_chart(report), front_chart(report)) if chart]
    return document(
        section(Heading(headline(report)), *sentences(totals(report))),
        section(*map(Chart, charts), kind="charts"),
        *_tables(report, None, why_first=True),
        notes(report.notes),
        section(Formulas(report.formulas, f"grid report {report.name}")),
    )


def _tables(report: GridReport, most: int | None, *, why_first: bool = False) -> list[Section]:
    """Returns the tables of a report, one a section; those without a row are left out."""
    lines = _lines(report, report.lines[:most], why_first=why_first)
    tables = [best_table(report), lines, _regions(report), _copies(report.copies)]
    return [section(each) for each in tables if each.rows]


def best_of_document(report: GridReport, most: int) -> Document:
    """Returns the best lines of a grid."""
    best = best_table(report, most)
    heading = Heading(f"{report.name}: {best.title}")
    return document(section(heading), section(best if best.rows else None), notes(report.notes))


def grids_document(grids: Sequence[GridLine], unread: Sequence[UnreadGrid], now: float) -> Document:
    """Returns the grids of this machine. `now`: seconds since the epoch."""
    rows = [
        (
            each.name,
            str(each.lines),
            ", ".join(f"{count} {state}" for state, count in each.states.items()),
            " ".join(each.regions),
            f"{moment(each.created)} UTC",
            span(max(0.0, (now if each.ended is None else each.ended) - each.created)),
            amount(each.cost),
        )
        for each in grids
    ]
    names = ("grid", "lines", "states", "regions", "started", "went for", "cost")
    return document(
        section(
            table(names, rows, ("lines", "cost"))
            if rows
            else Sentence("no grid yet: `headrace grid run array.yaml` starts one")
        ),
        notes(f"{each.name} cannot be read: {each.error}" for each in unread),
    )


def best_table(report: GridReport, most: int = 5) -> Table:
    """Returns the best lines by the objective, and those that no other one beats in cost and metric together."""
    if report.objective is None:
        return Table("best", (), ())
    front = set(report.front)
    chosen = list(dict.fromkeys([*report.best[:most], *report.front]))
    by_index = {each.index: each for each in report.lines}
    rank = {index: number for number, index in enumerate(report.best, start=1)}
    rows = tuple(
        (
            str(rank[index]),
            by_index[index].job_name,
            told(by_index[index]),
            Cell(_value(value_of(by_index[index], report.objective)), strong=not number),
            _money(by_index[index].cost),
            "not beaten in both" if index in front else "",
        )
        for number, index in enumerate(sorted(chosen, key=lambda one: rank[one]))
    )
    goal = "least" if report.objective.goal == "min" else "greatest"
    title = f"{goal} {report.objective.metric}"
    columns = ("rank", "job", "line", report.objective.metric, "cost", "cost and metric")
    return Table(title, columns, rows, frozenset({0, 3, 4}))


def _lines(report: GridReport, lines: Sequence[LineResult], *, why_first: bool) -> Table:
    """Returns a row for each of some lines."""
    names = metric_names(report)

    def ordered(row: tuple[str, ...]) -> tuple[str, ...]:
        return (*row[:3], row[-1], *row[3:-1]) if why_first else row

    columns = ("line", "says", "state", "engine", "region", "attempts", "time", "planned", "cost", *names, "why")
    rows = tuple(
        (
            each.written,
            told(each),
            Cell(each.state.value, strong=not each.completed and each.state.over),
            each.engine,
            each.region or MISSING,
            str(each.attempts),
            MISSING if each.seconds is None else span(each.seconds),
            _money(each.planned_cost),
            _money(each.cost),
            *(_value(each.metrics.get(name)) for name in names),
            why(each),
        )
        for each in lines
    )
    return table(ordered(columns), map(ordered, rows), columns[5:-1], "lines")


def grid_csv(report: GridReport) -> str:
    """Returns a row for each line as CSV with a header: its fields, its figures, each metric in a column of its own.

    Numbers are as in the JSON; seconds since the epoch; an empty cell is what is not known.
    """
    fields = list(dict.fromkeys(name for each in report.lines for name in each.fields))
    names = metric_names(report)
    own = ("index", "place", "key", "job_name", "state", "engine", "region", "attempts", "run_id", "started", "ended")
    money = ("seconds", "planned_seconds", "planned_cost", "cost")
    held = io.StringIO(newline="")
    writer = csv.writer(held, lineterminator="\n")
    cause = ("cause", "cause_kind")
    writer.writerow([*own, *money, *(f"line.{name}" for name in fields), *(f"metric.{name}" for name in names), *cause])
    for each in report.lines:
        known = [getattr(each, name) for name in (*own, *money)]
        known[own.index("state")] = each.state.value
        said = [each.fields.get(name) for name in fields]
        plain = [value if isinstance(value, str | int | float | None) else json.dumps(value) for value in said]
        kind = each.cause.kind.value if each.cause is not None else None
        writer.writerow([*known, *plain, *(each.metrics.get(name) for name in names), why(each) or None, kind])
    return held.getvalue()


def _regions(report: GridReport) -> Table:
    names = ("region", "lines", "completed", "failed", "stopped", "going", "attempts", "planned", "cost", "copies")
    rows = tuple(
        (
            each.region or MISSING,
            *map(str, (each.lines, each.completed, each.failed, each.stopped, each.going, each.attempts)),
            *map(amount, (each.planned_cost, each.cost, each.copy_cost)),
        )
        for each in report.regions
    )
    return Table("regions", names, rows, frozenset(range(1, len(names))))


def _copies(copies: Iterable[CopyRecord]) -> Table:
    names = ("copy", "from", "to", "state", "copied", "planned", "cost", "why")
    rows = tuple(
        (
            each.place,
            each.source,
            each.region,
            each.state.value,
            size_text(each.bytes_done) + (f" of {size_text(each.bytes_total)}" if each.bytes_total is not None else ""),
            amount(each.planned_cost),
            _money(each.cost),
            each.reason,
        )
        for each in copies
    )
    return Table("copies", names, rows, frozenset({4, 5, 6}))


def metric_names(report: GridReport) -> list[str]:
    """Returns the metrics that any line has, that of the objective first."""
    names = sorted({name for each in report.lines for name in each.metrics})
    first = report.objective.metric if report.objective else ""
    return sorted(names, key=lambda name: (name != first, name))


def _money(value: float | None) -> str:
    return MISSING if value is None else amount(value)


def _value(value: float | None) -> str:
    return MISSING if value is None else f"{value:.6g}"


def best_values(report: GridReport, most: int) -> dict[str, object]:
    """Returns the best lines as plain data.

    Args:
        report: of a grid with an objective.
        most: how many.
    """
    by_index = {each.index: each for each in report.lines}
    return {
        "name": report.name,
        "objective": report.objective,
        "currency": report.currency,
        "best": [by_index[index] for index in report.best[:most]],
        "front": [by_index[index] for index in report.front],
        "notes": report.notes,
        "formulas": {name: report.formulas[name] for name in ("best", "front", "cost", "metrics")},
    }
