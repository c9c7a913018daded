"""The state of a grid as tables, and what its file says now in another way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from rich.text import Text

from headrace.catalog.prices import CURRENCY
from headrace.cli.views.grid_progress import copy_text, line_text, place_text, whole_text, why_text
from headrace.cli.views.table import columns, console, notes
from headrace.grid.controller.grid_changes import GridChanges
from headrace.grid.journal.grid_record import GridRecord, LineRecord, LineState, Note
from headrace.grid.report.grid_report import counted
from headrace.grid.report.read_report import FOREIGN
from headrace.insight.cost.billing import amount
from headrace.insight.render.plain_text import MISSING

_ORDER = (
    LineState.FAILED,
    LineState.UNPLACED,
    LineState.STOPPED,
    LineState.STOPPED_EARLY,
    LineState.RUNNING,
    LineState.STARTING,
    LineState.WAITING,
    LineState.COMPLETED,
)
_NAMED = 5


def show_status(grid: GridRecord, controlled: bool, foreign: bool, shown: int, told: Sequence[Note]) -> None:
    """Prints how far a grid has come.

    Args:
        grid: the grid.
        controlled: a process controls it now.
        foreign: it was not started here by this user.
        shown: how many lines are shown.
        told: what happened.
    """
    out = console()
    out.print(Text(whole_text(grid, grid.cost), style="bold"))
    out.print(Text(FOREIGN if foreign else _who(grid, controlled)))
    out.print()
    regions = sorted({_region(line) for line in grid.lines})
    table = columns(("region", *(state.value for state in _ORDER), "cost"), right=(*(s.value for s in _ORDER), "cost"))
    for region in regions:
        there = [line for line in grid.lines if _region(line) == region]
        counts = [sum(line.state is state for line in there) for state in _ORDER]
        table.add(region or MISSING, *(str(each or "") for each in counts), amount(sum(line.cost for line in there)))
    out.print(table)
    out.print()
    rows = columns(("line", "state", "region", "engine", "attempts", "run", "cost", "why"), right=("attempts", "cost"))
    ordered = sorted(grid.lines, key=lambda line: (_ORDER.index(line.state), line.index))
    for line in ordered[:shown]:
        attempt = line.attempt
        run = "" if attempt is None else attempt.run_id or attempt.job_name
        tried = str(len(line.attempts) or "")
        cost = amount(line.cost) if line.attempts else ""
        where = _region(line) or MISSING
        rows.add(place_text(line), line.state.value, where, line.engine, tried, run, cost, why_text(line))
    out.print(rows)
    if len(ordered) > shown:
        out.print(Text(f"and {counted(len(ordered) - shown)} more (--lines N shows N; --output json has all)"))
    for copy in grid.copies:
        out.print(Text(copy_text(copy)))
    if told:
        notes(out, [f"{_when(note.t)} {note.key} {note.text}" for note in told])


def show_end(grid: GridRecord) -> None:
    """Prints how a grid has come to its end, or how far it has come."""
    out = console()
    out.print(Text(whole_text(grid, grid.cost), style="bold"))
    bad = [line for line in grid.lines if line.state in (LineState.FAILED, LineState.UNPLACED, LineState.STOPPED)]
    for line in bad[:20]:
        out.print(Text(line_text(line)))
    if len(bad) > 20:
        out.print(Text(f"and {counted(len(bad) - 20)} more: headrace grid status {grid.name}"))
    failed = next((line for line in bad if line.state is LineState.FAILED and line.attempts), None)
    if failed is not None:
        out.print(Text(f"`headrace grid logs {grid.name} {failed.key}` shows what {failed.place} has written"))
    if any(line.in_file and line.state in (LineState.FAILED, LineState.STOPPED) for line in bad):
        after = used_up(grid, time.time())
        out.print(Text(f"{after}`headrace grid retry {grid.name}` lets them run again"))


def used_up(grid: GridRecord, now: float) -> str:
    """Returns which limit of the whole grid keeps lines from running again, and how to raise it; empty when none does.

    Args:
        grid: as its journal has it.
        now: seconds since the epoch.
    """
    if grid.budget is not None and grid.cost >= grid.budget:
        spent = f"{amount(grid.cost)} of {amount(grid.budget)} {CURRENCY} are spent"
        return f"{spent}: with a larger budget.usd in {grid.file} "
    if grid.deadline is not None and now >= grid.deadline:
        return f"the deadline was {_when(grid.deadline)}: with a later one in {grid.file} "
    return ""


def changes_text(changes: GridChanges, known: GridRecord, file: str, *, again: bool = False) -> str:
    """Returns what a grid's file says now in another way, a line each.

    Args:
        changes: what is another.
        known: the grid as its journal has it.
        file: the grid's file now.
        again: lines that are over run again.
    """
    said = [f"{known.name} was started before, at {_when(known.created)}; since then {file} has changed:"]
    if changes.file:
        said = [f"{known.name} was started before, at {_when(known.created)}, from another file: {changes.file}"]
        said.append(f"  {file} would go on with that grid: its lines that are over do not run again")
    for what, lines in (
        ("new", changes.added),
        ("gone: what has begun of them goes on, the rest is not started:", changes.gone),
        ("go elsewhere:", changes.moved),
    ):
        if lines:
            named = ", ".join(line.place for line in lines[:_NAMED])
            more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
            said.append(f"  {len(lines)} line{'' if len(lines) == 1 else 's'} {what} {named}{more}")
    if changes.job:
        begun = sum(1 for line in known.lines if line.in_file and line.attempts)
        kept = f"; {begun} of {len(known.lines)} lines have begun with the old one and keep it" if begun else ""
        said.append(
            f"  the job, or what is another in a region, or the code: lines that have not begun get the new one{kept}"
        )
    over = sum(1 for line in known.lines if line.in_file and line.state.over and line.attempts)
    if over:
        run = "run again" if again else "do not run again: --again lets them"
        said.append(f"  {over} of {len(known.lines)} lines are over and {run}")
    for what, pair, unit in (("budget", changes.budget, f" {CURRENCY}"), ("deadline", changes.deadline, " s")):
        if pair is not None:
            before, now = ("none" if each is None else f"{each:g}{unit}" for each in pair)
            said.append(f"  its {what}: {before} before, {now} now")
    return "\n".join(said)


def _region(line: LineRecord) -> str:
    attempt = line.attempt
    return attempt.region if attempt is not None and line.state is not LineState.WAITING else line.region


def _who(grid: GridRecord, controlled: bool) -> str:
    if grid.ended is not None:
        return f"over since {_when(grid.ended)}"
    if controlled and grid.controller is not None:
        who = grid.controller
        return f"controlled by process {who.pid} on {who.node} since {_when(who.since)}"
    return f"no process controls it: headrace grid run {grid.file}"


def _when(t: float) -> str:
    return datetime.fromtimestamp(t, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
