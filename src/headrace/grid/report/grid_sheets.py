"""The report of a grid as sheets of plain cells, which text, Markdown and HTML all show, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

from headrace.grid.journal.grid_record import CopyRecord
from headrace.grid.lines.line import ENGINE, REGION, said_of
from headrace.grid.report.best_lines import value_of
from headrace.grid.report.grid_report import GridReport, counted
from headrace.grid.report.line_result import LineResult
from headrace.insight.cost.billing import amount
from headrace.insight.render.plain_text import MISSING, duration, size_text
from headrace.insight.render.tables import Sheet


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


def grid_sheets(report: GridReport, most: int | None = None, *, why_first: bool = False) -> list[Sheet]:
    """Returns the tables of a report; those without a row are left out.

    Args:
        report: of a grid.
        most: lines to show; None for all.
        why_first: why a line did not complete stands beside its state, where a page is not as wide as the table.
    """
    shown = report.lines if most is None else report.lines[:most]
    lines = lines_sheet("lines", report, shown)
    if why_first:
        lines = _moved(lines, len(lines.columns) - 1, 3)
    sheets = [best_sheet(report), lines, _regions(report), _copies(report.copies)]
    return [sheet for sheet in sheets if sheet.rows]


def best_sheet(report: GridReport, most: int = 5) -> Sheet:
    """Returns the best lines by the objective, and those that no other one beats in cost and metric together."""
    if report.objective is None:
        return Sheet("best", (), ())
    front = set(report.front)
    chosen = list(dict.fromkeys([*report.best[:most], *report.front]))
    by_index = {each.index: each for each in report.lines}
    rank = {index: number for number, index in enumerate(report.best, start=1)}
    rows = tuple(
        (
            str(rank[index]),
            by_index[index].job_name,
            told(by_index[index]),
            _value(value_of(by_index[index], report.objective)),
            _money(by_index[index].cost),
            "not beaten in both" if index in front else "",
        )
        for index in sorted(chosen, key=lambda one: rank[one])
    )
    goal = "least" if report.objective.goal == "min" else "greatest"
    title = f"{goal} {report.objective.metric}"
    columns = ("rank", "job", "line", report.objective.metric, "cost", "cost and metric")
    return Sheet(title, columns, rows, frozenset({0, 3, 4}), frozenset({(0, 3)} if rows else ()))


def lines_sheet(title: str, report: GridReport, lines: Sequence[LineResult]) -> Sheet:
    """Returns a row for each of some lines."""
    names = _metric_names(report)
    columns = ("line", "says", "state", "engine", "region", "attempts", "time", "planned", "cost", *names, "why")
    rows = tuple(
        (
            place_of(each),
            told(each),
            each.state.value,
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
    marked = {(y, 2) for y, each in enumerate(lines) if not each.completed and each.state.over}
    return Sheet(title, columns, rows, frozenset(range(5, 9 + len(names))), frozenset(marked))


def _moved(sheet: Sheet, column: int, to: int) -> Sheet:
    """Returns a table with a column farther to the left."""
    order = [*range(to), column, *(x for x in range(to, len(sheet.columns)) if x != column)]
    return Sheet(
        sheet.title,
        tuple(sheet.columns[x] for x in order),
        tuple(tuple(row[x] for x in order) for row in sheet.rows),
        frozenset(order.index(x) for x in sheet.right),
        frozenset((y, order.index(x)) for y, x in sheet.marked),
    )


def why(result: LineResult) -> str:
    """Returns why a line did not complete: what the grid has decided about it comes before what befell its run."""
    return result.reason or (str(result.cause) if result.cause is not None else "")


def told(result: LineResult) -> str:
    """Returns what a line says, in few words; its region and engine have columns of their own."""
    return said_of(result.fields, beside=(REGION, ENGINE))


def place_of(result: LineResult) -> str:
    """Returns where a line was written; of one that the grid's file has no more it says so."""
    return result.place if result.in_file else f"{result.place} (not in the file now)"


def span(seconds: float) -> str:
    """Returns a time in words, with its unit.

    >>> span(4.25), span(75), span(3723)
    ('4.2 s', '1:15 min', '1:02:03 h')
    """
    return duration(seconds) + ("" if seconds < 60 else " min" if int(seconds) < 3600 else " h")


def grid_csv(report: GridReport) -> str:
    """Returns a row for each line as CSV with a header: its fields, its figures, each metric in a column of its own.

    Numbers are as in the JSON; seconds since the epoch; an empty cell is what is not known.
    """
    fields = list(dict.fromkeys(name for each in report.lines for name in each.fields))
    names = _metric_names(report)
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


def _regions(report: GridReport) -> Sheet:
    names = ("region", "lines", "completed", "failed", "stopped", "going", "attempts", "planned", "cost", "copies")
    rows = tuple(
        (
            each.region or MISSING,
            *map(str, (each.lines, each.completed, each.failed, each.stopped, each.going, each.attempts)),
            *map(amount, (each.planned_cost, each.cost, each.copy_cost)),
        )
        for each in report.regions
    )
    return Sheet("regions", names, rows, frozenset(range(1, len(names))))


def _copies(copies: Iterable[CopyRecord]) -> Sheet:
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
    return Sheet("copies", names, rows, frozenset({4, 5, 6}))


def _metric_names(report: GridReport) -> list[str]:
    names = sorted({name for each in report.lines for name in each.metrics})
    first = report.objective.metric if report.objective else ""
    return sorted(names, key=lambda name: (name != first, name))


def _money(value: float | None) -> str:
    return MISSING if value is None else amount(value)


def _value(value: float | None) -> str:
    return MISSING if value is None else f"{value:.6g}"


def best_document(report: GridReport, most: int) -> dict[str, object]:
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
