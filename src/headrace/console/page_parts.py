"""The pages, and the parts of them that are made anew while something goes on: HTML by the templates of this folder.

A part is elements with an id each; the script puts each in the place of the one that has its id.

    /parts/runs                   the rows of all runs           /parts/runs/RUN/row      what its report adds to one
    /parts/runs/RUN/life          head, trouble, hosts, events   /parts/runs/RUN/report   verdict, figures, cost, tables
    /parts/compare?run=A&run=B    runs side by side
    /parts/grids                  the list of grids              /parts/grids/GRID        one grid, ?words, state
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import jinja2
import msgspec
from starlette.requests import Request

from headrace import insight
from headrace.errors import UsageError
from headrace.grid.grid_documents import best_table, lanes_of, metric_names
from headrace.grid.grid_record import LineState
from headrace.grid.grid_report import GridReport, LineResult, told, why
from headrace.grid.read_report import list_grids
from headrace.insight import Report
from headrace.insight.billing import amount, origin
from headrace.insight.figures.run_files import why_unread
from headrace.insight.render.html import Source, environment
from headrace.insight.render.plain_text import clock
from headrace.insight.render.run_documents import (
    compared_table,
    cost_tables,
    evidence_table,
    report_tables,
    status_badge,
    verdict_badge,
)
from headrace.insight.render.svg import Axis, merged, plot
from headrace.insight.run_cache import MOST_SECONDS, SINCE, RunCache, RunIndex
from headrace.runs import Run, Status
from headrace.runs.describe import RunLine, describe

MOST_LINES = 500
"""Lines of a grid that a page shows; a filter finds the others."""

_KINDS = {
    LineState.COMPLETED: "good",
    LineState.FAILED: "bad",
    LineState.RUNNING: "going",
    LineState.STARTING: "going",
    LineState.STOPPED_EARLY: "stopped",
    LineState.STOPPED: "stopped",
    LineState.UNPLACED: "warn",
}
_ORDER = (
    LineState.COMPLETED,
    LineState.RUNNING,
    LineState.STARTING,
    LineState.WAITING,
    LineState.STOPPED_EARLY,
    LineState.STOPPED,
    LineState.UNPLACED,
    LineState.FAILED,
)
_LIFE = ("starting", "ready", "running", "done", "stopping", "lost")
_TRAINING = ("step_time", "samples_per_second", "data_wait", "h2d", "compute", "queue", "steps")
_SUMS = ("total", "platform", "per_hour", "per_step", "per_epoch", "per_1000_samples")


@functools.cache
def templates() -> jinja2.Environment:
    """Returns the templates of the page."""
    made = environment(Path(__file__).parent / "templates")
    made.filters |= {
        "clock": clock,
        "ago": _ago,
        "amount": amount,
        "in_order": _in_order,
        "states_text": _states_text,
        "told": told,
    }
    made.filters |= {"why": why, "verdict_badge": verdict_badge}
    made.filters["line_badge"] = _line_badge
    made.filters["status_badge"] = lambda run: status_badge(run.status, run.degraded)
    return made


def _rendered(template: str, **values: object) -> str:
    return templates().get_template(template).render(**values)


def _ago(seconds: float) -> str:
    """Returns how long ago something was, roughly."""
    for limit, size, unit in ((5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return "just now" if seconds < 90 else f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} d ago"


def _line_badge(line: RunLine) -> tuple[str, str]:
    second = line.secondary_status if line.secondary_status != line.status else line.status
    return status_badge(Status(line.status))[0], _spaced(second)


def _in_order(states: dict[str, int]) -> dict[str, int]:
    """Returns how many lines are in which state, the state that is hoped for first."""
    return {state.value: states[state.value] for state in _ORDER if states.get(state.value)}


def _states_text(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in _in_order(states).items())


class Pages:
    """What is behind the addresses. The methods read files: they run in threads."""

    def __init__(self, library: RunCache, grid: Callable[[str], GridReport]) -> None:
        self._library = library
        self._grid = grid

    def runs(self, request: Request) -> str:
        """Returns the page of all runs."""
        asked = request.query_params
        words, state = asked.get("words", ""), asked.get("state", "")
        return self._page("runs.html", "Runs", "Runs", ("css/base", "css/runs"), words=words, state=state)

    def run(self, request: Request) -> str:
        """Returns the page of one run."""
        return self._page("run.html", request.path_params["run"], "", ("css/base", "css/run"))

    def grids(self, request: Request) -> str:
        """Returns the page of all grids."""
        return self._page("grids.html", "Grids", "Grids", ("css/base", "css/grids"))

    def grid(self, request: Request) -> str:
        """Returns the page of one grid."""
        asked = request.query_params
        states = ["", *(state.value for state in LineState)]
        found = {"words": asked.get("words", ""), "state": asked.get("state", ""), "states": states}
        return self._page("grid.html", request.path_params["grid"], "Grids", ("css/base", "css/grids"), **found)

    def compare(self, request: Request) -> str:
        """Returns the page of some runs side by side."""
        chosen = request.query_params.getlist("run")
        styles = ("css/base", "css/run", "css/compare")
        url = f"/api/compare?{request.url.query}"
        return self._page("compare.html", "Compare", "Compare", styles, chosen=chosen, url=url)

    @staticmethod
    def _page(template: str, name: str, current: str, styles: tuple[str, ...], **values: object) -> str:
        script = template.removesuffix(".html")
        return _rendered(template, name=name, current=current, styles=styles, script=script, **values)

    def run_rows(self, request: Request) -> str:
        """Returns a row for every run, the newest one first, and which cannot be read."""
        lines = self._library.lines(time.time())
        return _rendered("runs_rows.html", lines=lines[::-1], unreadable=self._library.unreadable(), now=time.time())

    def run_row(self, request: Request) -> str:
        """Returns the last cells of a run's row, which come from its report."""
        report = self._index(request).report()
        wait = None if report.training is None else report.training.data_wait
        total = None if report.cost is None else report.cost.total
        return _rendered("runs_row.html", report=report, wait=wait, total=total, origin=_origin(report))

    def life(self, request: Request) -> str:
        """Returns the life of a run: how it stands, what is wrong, its hosts and its events."""
        index = self._index(request)
        timeline = index.timeline(time.time())
        seen = {part.state for group in timeline.groups for lane in group.hosts for part in lane.segments}
        known = {"timeline": timeline, "states": [state for state in _LIFE if state in seen]}
        empty = {"status": None, "sign": None, "cause": None, "last_lines": (), "error": "", "hint": ""}
        try:
            shown = self._status(index.run)
        except (OSError, msgspec.DecodeError) as error:
            shown = _damage(index, error)
        return _rendered("run_life.html", **{**empty, **known, **shown})

    @staticmethod
    def _status(run: Run) -> dict[str, object]:
        state = run.state()
        second = state.secondary_status.value if state.secondary_status.value != state.status.value else ""
        kind, words = status_badge(state.status)
        failed = state.cause is not None and state.status.value != "Completed"
        return {
            "status": describe(run),
            "sign": (kind, _spaced(second or words)),
            "cause": str(state.cause) if failed else None,
            "last_lines": state.cause.last_lines if failed and state.cause is not None else (),
        }

    def report(self, request: Request) -> str:
        """Returns the report of a run."""
        index = self._library.open(request.path_params["run"], metrics=True)  # its charts are beside it
        try:
            report = index.report()
        except (OSError, msgspec.DecodeError) as error:
            return _rendered("run_damaged.html", **_damage(index, error))
        cards = [(report.time_to_train, "time_to_train", "")]
        if report.training is not None:
            cards += [(getattr(report.training, name), f"training.{name}", "") for name in _TRAINING]
        cost = report.cost
        if cost is not None:
            cards.append((cost.total, "cost.total", "Cost so far" if report.ended is None else "Cost"))
        always = ("time_to_train", "training.data_wait", "cost.total")
        sums = [] if cost is None else [(getattr(cost, name), f"cost.{name}") for name in _SUMS]
        costs = () if cost is None else cost_tables(cost, "cost.")
        titles = {table.title for table in costs}
        return _rendered(
            "run_report.html",
            report=report,
            origin=_origin(report),
            sign=verdict_badge(report.verdict),
            evidence=evidence_table(report.verdict),
            cards=[card for card in cards if card[0].value is not None or card[1] in always],
            costs=costs,
            sums=[sum_ for sum_ in sums if sum_[0].value is not None or sum_[1] == "cost.per_1000_samples"],
            origins=dict.fromkeys(origin(group.price) for group in cost.groups if group.price) if cost else (),
            tables=[table for table in report_tables(report) if table.title not in titles],
        )

    def charts(self, request: Request) -> str:
        """Returns the charts of a run over a stretch of time."""
        start, end, points = stretch(request)
        asked = request.query_params
        index = self._library.open(request.path_params["run"], metrics=True)
        found = index.metrics(start, end, points)
        timeline = index.timeline(time.time())
        groups = [group.name for group in timeline.groups]
        faults = [mark.t for group in timeline.groups for lane in group.hosts for mark in lane.marks]
        until = math.inf if found.until is None else found.until - found.width
        scale = (found.start, max(found.end, found.start + found.width)) if start is None else (start, end or found.end)
        plots = []
        for chart in found.charts:
            stepped = [(line, line.steps) for line in chart.lines if line.steps]
            if stepped and chart.name in asked.getlist("step"):
                places, lines = merged(stepped)
                changed = msgspec.structs.replace(chart, lines=lines)
                plots.append(plot(changed, places, "step", groups=groups, steps=True))
            else:
                plots.append(
                    plot(
                        chart,
                        found.t,
                        "time",
                        found.width,
                        scale=scale,
                        groups=groups,
                        until=until,
                        marks=faults,
                        steps=bool(stepped),
                    )
                )
        zoom = "" if start is None else f" --start {scale[0]:.1f} --end {scale[1]:.1f}"
        command = f"headrace metrics {found.run_id}{zoom} --output json"
        return _rendered(
            "run_charts.html",
            plots=plots,
            command=command,
            url=f"/api/runs/{quote(found.run_id)}/metrics?{request.url.query}",
            zoomed=start is not None,
            start=scale[0],
            end=scale[1],
            width=found.width,
            notes=found.notes,
            **{"from": {"command": command, "width": found.width}},
        )

    def curves(self, request: Request) -> str:
        """Returns one quantity of some runs in one chart, by step or by the time since their start."""
        asked = request.query_params
        runs = [self._library.open(name, metrics=True) for name in asked.getlist("run")]
        every = [index.metrics(None, None, stretch(request)[2]) for index in runs]
        charts = {chart.name: chart for found in every for chart in found.charts}
        if not charts:
            return _rendered("curves.html", it=None)
        ordered = sorted(charts, key=lambda name: not name.startswith("value:"))
        chart = charts.get(asked.get("chart", ""), charts[ordered[0]])
        lines = []
        for found in every:
            own = next((each.lines for each in found.charts if each.name == chart.name), ())
            for line in own:
                name = f"{found.run_id} · {line.name}" if len(own) > 1 else found.run_id
                since = [t - found.start for t in found.t]
                lines.append((msgspec.structs.replace(line, name=name, group=found.run_id), line.steps, since))
        steps = any(line_steps for _, line_steps, _ in lines)
        axis: Axis = "since" if not steps or asked.get("axis") == "since" else "step"
        drawn = [(line, by_step if axis == "step" else since) for line, by_step, since in lines]
        places, together = merged([(line, at) for line, at in drawn if at])
        ends = [number(request, name) for name in ("start", "end")]
        scale = (ends[0], ends[1]) if ends[0] is not None and ends[1] is not None else None
        shown = msgspec.structs.replace(chart, lines=together, stacked=False)
        it = plot(shown, places, axis, groups=[found.run_id for found in every], steps=steps, scale=scale)
        return _rendered("curves.html", it=it, charts={name: charts[name].title for name in ordered})

    def compared(self, request: Request) -> str:
        """Returns some runs side by side, and what else can be chosen."""
        asked = request.query_params.getlist("run")
        chosen = [self._library.open(name) for name in asked]
        comparison = insight.compare([index.report() for index in chosen]) if len(chosen) > 1 else None
        names = [index.paths.id for index in chosen]
        command = f"headrace compare {' '.join(asked)} --output json"
        return _rendered(
            "compared.html",
            chosen=[*names, "", ""][: max(2, len(names) + 1)],
            lines=self._library.lines(time.time())[::-1],
            comparison=comparison,
            figures=compared_table(comparison) if comparison else None,
            origin=Source(command, comparison.formulas) if comparison else None,
        )

    def grid_list(self, request: Request) -> str:
        """Returns the list of grids."""
        grids, unread = list_grids()
        going = any(grid.ended is None for grid in grids)
        return _rendered("grids_list.html", grids=grids, unread=unread, going=going, now=time.time())

    def grid_parts(self, request: Request) -> str:
        """Returns what of one grid is made anew."""
        report = self._grid(request.path_params["grid"])
        state, words = request.query_params.get("state", ""), request.query_params.get("words", "").lower().split()
        found = [line for line in report.lines if state in ("", line.state.value) and _holds(line, words)]
        of = f" of {len(report.lines)}" if len(found) < len(report.lines) else ""
        metrics = metric_names(report)
        money = (f"Planned, {report.currency}", f"Cost, {report.currency}")
        totals = {region.region: region for region in report.regions}
        lanes = lanes_of(report)
        return _rendered(
            "grid_parts.html",
            report=report,
            span=max(report.seconds, 1.0),
            regions=[(name, totals.get(name), lanes.get(name, ())) for name in sorted({*totals, *lanes})],
            best=best_table(report),
            runs={line.job_name: line.run_id for line in report.lines},
            lines=found[:MOST_LINES],
            count=f"{len(found)}{of} lines" + (f", the first {MOST_LINES} shown" if len(found) > MOST_LINES else ""),
            metrics=metrics,
            heads=["Line", "State", "Engine", "Region", "Time", *money, *metrics, "Why"],
            kinds={kind.value: words for kind, words in _KINDS.items()},
        )

    def _index(self, request: Request) -> RunIndex:
        return self._library.open(request.path_params["run"])


def _damage(index: RunIndex, error: Exception) -> dict[str, object]:
    """Returns what to say of a run whose header cannot be read."""
    hint = "its timeline, metrics and logs may still be readable; see /api/unreadable"
    return {"error": f"the run cannot be read: {index.paths.header.name}: {why_unread(error)}", "hint": hint}


def _holds(line: LineResult, words: list[str]) -> bool:
    if not words:
        return True
    shown = " ".join((line.job_name, line.place, told(line), line.region, line.engine, why(line))).lower()
    return all(word in shown for word in words)


def _origin(report: Report) -> Source:
    return Source(f"headrace report {report.run_id} --output json", report.formulas)


def _spaced(words: str) -> str:
    """Returns ``MaxRuntimeExceeded`` as words."""
    return "".join(f" {letter}" if letter.isupper() and at else letter for at, letter in enumerate(words))


DEFAULT_POINTS = 400
_DIGITS = 15  # of a number that says how many


def stretch(request: Request) -> tuple[float | None, float | None, int]:
    """Returns start and end of what is asked for, seconds since the epoch, and in how many points."""
    return number(request, "start"), number(request, "end"), count(request, "points") or DEFAULT_POINTS


def count(request: Request, name: str) -> int | None:
    """Returns a whole number; None where it is not named."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal() or len(text) > _DIGITS:
        raise UsageError(f"{name} is {text[:80]!r}, which is not a whole number", hint=f"for example {name}=100")
    return int(text)


def number(request: Request, name: str) -> float | None:
    """Returns a number; None where it is not named."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < MOST_SECONDS:
        raise UsageError(f"{name} is {text!r}, which is not a number", hint=SINCE)
    return value
