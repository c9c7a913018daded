"""Runs, their lives and what happened when, as documents, for `headrace ps`, `status`, `timeline` and `metrics`. It
computes no figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.insight.render.document import (
    Block,
    Document,
    Heading,
    Sentence,
    document,
    notes,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, duration, moment, size_text
from headrace.own_runs import started_here
from headrace.runs import ArtefactsStored, Run, RunState, read_plan
from headrace.runs.describe import RunLine
from headrace.runs.event_text import counted, files_left, losses, record_text, silence_text, worlds_text
from headrace.runs.events import SecondaryStatus
from headrace.runs.state import billable_seconds, billed_seconds

if TYPE_CHECKING:  # what is shown was made before
    from headrace.insight.charts import Line, Metrics
    from headrace.insight.timeline import Timeline


def runs_document(lines: list[RunLine], every: bool) -> Document:
    """Returns a list of runs."""
    if not lines:
        none = "no run yet" if every else "no run is going on (headrace ps --all lists those that have ended)"
        return document(section(Sentence(none)))
    size = ("size",) if every else ()
    names = ("run", "status", "", "hosts", "started", "ran for", *size)
    return document(section(table(names, (_run(line, every) for line in lines), ("hosts", "ran for", *size))))


def _run(line: RunLine, with_size: bool) -> tuple[str, ...]:
    going = line.silent_seconds is not None and line.exit_code is None
    second = (
        line.secondary_status if line.secondary_status != line.status else "",
        f"attempt {line.attempt}" if line.attempt > 1 else "",
        f"nothing new for {duration(line.silent_seconds or 0.0)}" if going else "",
        f"plays the service for {line.serves}" if line.serves else "",
        "not started here" if line.foreign else "",
    )
    hosts, took = str(line.hosts or MISSING), duration(line.seconds)
    size = (MISSING if line.bytes is None else size_text(line.bytes),) if with_size else ()
    return line.run_id, line.status, ", ".join(filter(None, second)), hosts, moment(line.created), took, *size


def status_document(run: Run, now: float) -> Document:
    """Returns the life of a run."""
    state = run.state()
    silent = None if state.finished else run.silent_seconds(now)
    now = run.present(now)
    plan = _plan_of(run)
    lines = (
        worlds_text((world.kind, world.groups) for world in plan.distributions),
        _waits(state, now),
        "" if silent is None else silence_text(silent),
        ""
        if started_here(run.paths.root)
        else "not started here by this user: its record is only read, and nobody is asked about it",
        f"failure reason: {state.failure_reason}" if state.failure_reason else "",
        f"cause: {state.cause}" if state.cause is not None and str(state.cause) != state.failure_reason else "",
    )
    changes = (
        (
            each.status.value,
            moment(each.start),
            "" if each.end == each.start else duration(max(0.0, (now if each.end is None else each.end) - each.start)),
            _brief(each.message),
        )
        for each in state.transitions
    )
    hosts = _hosts(state, now)
    ends = [
        *(_artefact(stored) for stored in state.artefacts),
        *(files_left(left, run.paths) for left in state.files_left),
    ]
    if state.record_not_stored is not None:
        ends.append(f"warning: {record_text(state.record_not_stored)}")
    return document(
        section(Heading(_standing(run, state, plan)), *sentences(filter(None, lines))),
        section(table(("status", "since (UTC)", "for", ""), changes, ("for",)), *(() if hosts else sentences(ends))),
        section(*hosts, *sentences(ends)) if hosts else None,
    )


def _standing(run: Run, state: RunState, plan: _Plan) -> str:
    second = "" if state.secondary_status.value == state.status.value else f" ({state.secondary_status.value})"
    attempt = f", attempt {state.attempt}{_of_attempts(plan, state.attempt)}" if state.attempt > 1 else ""
    degraded = f", degraded: {losses(state.lost)}" if state.degraded else ""
    return f"{run.id}  {state.status.value}{second}{attempt}{degraded}"


def _hosts(state: RunState, now: float) -> list[Block]:
    """Returns what the hosts of a run have cost in time."""
    found: list[Block] = []
    if state.hosts:
        clock = "by its clock" if state.billed else "billable"
        rows = (
            (
                host.group,
                host.host,
                f"{host.seconds(now):.1f} s",
                "released early" if host.released else "runs" if host.ended is None else "",
            )
            for host in state.hosts
        )
        sums = ", ".join(f"{name} {value:.1f} s" for name, value in billable_seconds(state.hosts, now).items())
        own = "seconds of all hosts by headrace's clocks" if state.billed else "billable seconds of all hosts"
        found += [table(("group", "host", clock, ""), rows, (clock,)), Sentence(f"{own}: {sums}")]
    if state.billed:
        sums = ", ".join(f"{name} {seconds} s" for name, seconds in billed_seconds(state.billed).items())
        found.append(Sentence(f"billable seconds of all hosts as the service has told them: {sums}"))
    return found


def _artefact(stored: ArtefactsStored) -> str:
    many = "file differs" if stored.clash_count == 1 else "files differ"
    clashes = f", {stored.clash_count} {many} between hosts" if stored.clash_count else ""
    return f"{stored.name}: {stored.uri} ({counted(stored.files, 'file')}{clashes})"


class _Retry(msgspec.Struct, frozen=True):
    attempts: int = 0


class _World(msgspec.Struct, frozen=True):
    kind: str
    groups: tuple[str, ...]


class _Plan(msgspec.Struct, frozen=True):
    retry: _Retry = _Retry()
    distributions: tuple[_World, ...] = ()


def _plan_of(run: Run) -> _Plan:
    """Returns what the plan of a run says; nothing when it cannot be read."""
    try:
        return read_plan(run.paths, _Plan)
    except (OSError, msgspec.DecodeError):
        return _Plan()


def _of_attempts(plan: _Plan, attempt: int) -> str:
    """Returns ``of 3``, how many attempts the job may have; nothing when its plan does not tell, or its platform gives
    it more: after an interruption of spot instances, for example."""
    most = plan.retry.attempts + 1
    return f" of {most}" if attempt <= most else ""


def _waits(state: RunState, now: float) -> str:
    """Returns since when a run waits for its platform, and why; empty when it does not."""
    if state.finished or state.secondary_status not in (SecondaryStatus.PENDING, SecondaryStatus.INTERRUPTED):
        return ""
    last = state.transitions[-1]
    why = f": {_brief(last.message)}" if last.message else ""
    return f"waits for its instances since {moment(last.start)} UTC ({duration(now - last.start)}){why}"


def _brief(message: str) -> str:
    """The first line of a message; the whole of a cause stands above the table."""
    return message.partition("\n")[0]


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
