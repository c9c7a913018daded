"""What happened when, as tables, with rich: for `headrace timeline` and `headrace metrics`. It computes no figure."""

from __future__ import annotations

from headrace.cli.views.run_tables import moment
from headrace.cli.views.table import columns, console, notes
from headrace.insight.render.plain_text import duration
from headrace.insight.reports.timeline import Timeline
from headrace.insight.timeseries.chart_data import Line, Metrics

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 40  # bars of a line


def show_timeline(found: Timeline) -> None:
    """Prints the events of a run."""
    out = console()
    table = columns(("since start", "time (UTC)", "where", ""))
    for event in found.events:
        place = f"{event.group}/{event.host}" if event.host else ""
        style = "bold red" if event.fault else ""
        cells = (duration(max(0.0, event.t - found.start)), moment(event.t), place, event.text)
        table.add(*cells, style=style)
    out.print(table)
    if found.damage:
        notes(out, (str(damage) for damage in found.damage))


def show_metrics(found: Metrics) -> None:
    """Prints a row of bars for every line of every chart, with its least, last and greatest value.

    Least and greatest are of single records where a line knows them, else of the values that are shown.
    """
    out = console()
    table = columns(("", "", "least", "last", "greatest", ""), right=("least", "last", "greatest"))
    for chart in found.charts:
        top = max((value for line in chart.lines for value in _known(line.values)), default=0.0)
        for index, line in enumerate(chart.lines):
            known = _known(line.values)
            least, greatest = min(_known(line.low) or known), max(_known(line.high) or known)
            cells = (_text(value) for value in (least, known[-1], greatest))
            title = f"{chart.title}, {chart.unit}" if not index else ""
            table.add(title, line.name, *cells, bars(line, top))
    means = [chart.title for chart in found.charts if any(line.low is None for line in chart.lines)]
    of = [f"least and greatest of {', '.join(means)}: of values of {found.width:g} s each"] if means else []
    out.print(table)
    notes(
        out,
        (*map(str, found.damage), *found.notes, *of, f"a value stands for {found.width:g} s; formulas: --output json"),
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
