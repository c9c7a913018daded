"""What happened when, as documents, for `headrace timeline` and `headrace metrics`. It computes no figure."""

from __future__ import annotations

from headrace.insight.render.document import Document, document, notes, section, table
from headrace.insight.render.plain_text import duration, moment
from headrace.insight.reports.timeline import Timeline
from headrace.insight.timeseries.chart_data import Line, Metrics

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 40  # bars of a line


def timeline_document(found: Timeline) -> Document:
    """Returns the events of a run."""
    rows = (
        (
            duration(max(0.0, event.t - found.start)),
            moment(event.t),
            f"{event.group}/{event.host}" if event.host else "",
            event.text,
        )
        for event in found.events
    )
    faults = (index for index, event in enumerate(found.events) if event.fault)
    names = ("since start", "time (UTC)", "where", "")
    return document(section(table(names, rows, faults=faults)), notes(map(str, found.damage)))


def metrics_document(found: Metrics) -> Document:
    """Returns a row of bars for every line of every chart, with its least, last and greatest value.

    Least and greatest are of single records where a line knows them, else of the values that are shown.
    """
    rows = []
    for chart in found.charts:
        top = max((value for line in chart.lines for value in _known(line.values)), default=0.0)
        for index, line in enumerate(chart.lines):
            known = _known(line.values)
            least, greatest = min(_known(line.low) or known), max(_known(line.high) or known)
            title = f"{chart.title}, {chart.unit}" if not index else ""
            rows.append((title, line.name, *map(_text, (least, known[-1], greatest)), bars(line, top)))
    means = [chart.title for chart in found.charts if any(line.low is None for line in chart.lines)]
    of = [f"least and greatest of {', '.join(means)}: of values of {found.width:g} s each"] if means else []
    value = f"a value stands for {found.width:g} s; formulas: --output json"
    numbers = ("least", "last", "greatest")
    return document(
        section(table(("", "", *numbers, ""), rows, numbers) if rows else None),
        notes((*map(str, found.damage), *found.notes, *of, value)),
    )


def _known(values: list[float | None] | None) -> list[float]:
    return [value for value in values or () if value is not None]


def bars(line: Line, top: float) -> str:
    """Returns a line as bars, from 0 to `top`, the greatest value of its chart; a space where nothing was measured."""
    size = -(-len(line.values) // _WIDE)
    shown = []
    for start in range(0, len(line.values), size):
        known = _known(line.values[start : start + size])
        mean = sum(known) / len(known) if known else None
        level = 0 if mean is None or top <= 0 else round(max(0.0, mean) / top * (len(_BARS) - 1))
        shown.append(" " if mean is None else _BARS[level])
    return "".join(shown)


def _text(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3g}"
