"""How far a grid has come: as a document; while it runs a line for each change, and on a terminal one that tells the
whole; and what its file says now in another way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from headrace.catalog.prices import CURRENCY
from headrace.cli.views.terminal import Terminal, visible
from headrace.grid.grid_record import CopyRecord, CopyState, GridRecord, LineRecord, LineState, Note
from headrace.grid.grid_report import counted, why
from headrace.grid.read_report import FOREIGN
from headrace.insight.billing import amount
from headrace.insight.render.document import Document, Heading, Sentence, document, notes, section, sentences, table
from headrace.insight.render.plain_text import MISSING, duration, moment

if TYPE_CHECKING:
    from headrace.grid.controller.control_grid import GridChanges
    from headrace.grid.controller.grid_controller import GridController

MOST_CLOSED = 20
"""So many lines are named that end without having run; the end tells how many there are."""
WHOLE_SECONDS = 0.5
"""How often the line that tells the whole is made anew: it counts all lines."""


class GridProgress:
    """Tells of lines and copies as they change, on standard error. Any thread may call it."""

    def __init__(self) -> None:
        self._terminal = Terminal.standard(err=True)
        self._lock = threading.Lock()  # the terminal is for one thread at a time
        self._over = threading.Event()
        self._renewal: threading.Thread | None = None
        self._closed = 0

    def __enter__(self) -> GridProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def begin(self, controller: GridController) -> None:
        """Begins: on a terminal a line at its end tells the whole from now on."""
        self._say(whole_text(controller.grid, controller.cost))
        if self._terminal.interactive:
            self._renewal = threading.Thread(target=self._renew, args=(controller,), name="headrace-grid-progress")
            self._renewal.start()

    def pause(self) -> None:
        """Ends the line that tells the whole, for a question, or for good."""
        if self._renewal is not None:
            self._over.set()
            self._renewal.join()
            self._renewal = None
            self._terminal.below("")

    def _renew(self, controller: GridController) -> None:
        began = time.monotonic()
        while not self._over.wait(WHOLE_SECONDS):
            whole = whole_text(controller.grid, controller.cost)
            with self._lock:
                self._terminal.below(f"{whole}, after {duration(time.monotonic() - began)}")

    def line(self, line: LineRecord, trouble: str) -> None:
        """Tells of a line that has changed, or of trouble with it."""
        if line.state.over and not line.attempts:
            self._closed += 1
            if self._closed > MOST_CLOSED + 1:
                return
            if self._closed > MOST_CLOSED:
                self._say("more lines end that have not run")
                return
        self._say(f"{line.place}: {trouble}" if trouble else line_text(line))

    def copy(self, copy: CopyRecord) -> None:
        """Tells of a copy that has changed."""
        self._say(copy_text(copy))

    def _say(self, words: str) -> None:
        with self._lock:
            self._terminal.write(visible(f"{time.strftime('%H:%M:%S', time.gmtime())} {words}"))


def line_text(line: LineRecord) -> str:
    """Returns what has become of a line, in one line."""
    attempt = line.attempt
    words = [f"{line.written}: {line.state.value}"]
    if attempt is not None:
        where = f" in {attempt.region}" if attempt.region else ""
        number = f" (attempt {attempt.number})" if attempt.number > 1 else ""
        words.append(f"{attempt.run_id or attempt.job_name}{where}{number}")
    if (standing := _standing(line)) and (line.rungs or line.state not in (LineState.STARTING, LineState.RUNNING)):
        words.append(standing)
    if line.state is LineState.WAITING and line.not_before:
        wait = max(0.0, line.not_before - time.time())
        words.append(f"again in {wait:.0f} s" + (f" in {line.region}" if line.region else ""))
    return ", ".join(words)


def copy_text(copy: CopyRecord) -> str:
    """Returns how far a copy has come, in one line."""
    done = ""
    if copy.bytes_total and copy.state is CopyState.RUNNING:
        done = f" {100 * copy.bytes_done / copy.bytes_total:.0f} % of {copy.bytes_total / 1e9:.3g} GB"
    return f"copy of {copy.place} to {copy.region}: {copy.state.value}{done}" + (
        f": {copy.reason}" if copy.reason else ""
    )


def whole_text(grid: GridRecord, cost: float) -> str:
    """Returns how far a grid has come and what it has cost, in one line."""
    counts = grid.counts
    parts = [f"{counts[state]} {state.value}" for state in LineState if counts[state]]
    so_far = "" if grid.ended is not None else " so far"
    return f"{grid.name}: {counted(len(grid.lines))}, {', '.join(parts)}; {amount(cost)} {CURRENCY}{so_far}"


def _standing(line: LineRecord) -> str:
    """Returns how a line that runs stood last, or why one has not completed."""
    if line.state is LineState.RUNNING and line.rungs:
        return str(line.early_stop or line.rungs[-1])
    return why(line)


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


def status_document(grid: GridRecord, controlled: bool, foreign: bool, shown: int, told: Sequence[Note]) -> Document:
    """Returns how far a grid has come.

    Args:
        grid: the grid.
        controlled: a process controls it now.
        foreign: it was not started here by this user.
        shown: how many lines are shown.
        told: what happened.
    """
    regions = sorted({line.region_now for line in grid.lines})
    ordered = sorted(grid.lines, key=lambda line: (_ORDER.index(line.state), line.index))
    more = len(ordered) - shown
    states = tuple(state.value for state in _ORDER)
    names = ("line", "state", "region", "engine", "attempts", "run", "cost", "why")
    return document(
        section(Heading(whole_text(grid, grid.cost)), Sentence(FOREIGN if foreign else _who(grid, controlled))),
        section(table(("region", *states, "cost"), (_totals(grid, region) for region in regions), (*states, "cost"))),
        section(
            table(names, map(_line, ordered[:shown]), ("attempts", "cost")),
            Sentence(f"and {counted(more)} more (--lines N shows N; --output json has all)") if more > 0 else None,
            *sentences(map(copy_text, grid.copies)),
        ),
        notes(f"{_when(note.t)} {note.key} {note.text}" for note in told),
    )


def _totals(grid: GridRecord, region: str) -> tuple[str, ...]:
    lines = [line for line in grid.lines if line.region_now == region]
    counts = (sum(line.state is state for line in lines) for state in _ORDER)
    return (region or MISSING, *(str(count or "") for count in counts), amount(sum(line.cost for line in lines)))


def _line(line: LineRecord) -> tuple[str, ...]:
    attempt = line.attempt
    run = "" if attempt is None else attempt.run_id or attempt.job_name
    tried, cost = (str(len(line.attempts)), amount(line.cost)) if line.attempts else ("", "")
    where = line.region_now or MISSING
    return line.written, line.state.value, where, line.engine, tried, run, cost, _standing(line)


def end_document(grid: GridRecord, dropped: Collection[str] = ()) -> Document:
    """Returns how a grid has come to its end, or how far it has come.

    Args:
        grid: the grid.
        dropped: keys of lines that had ended before they left the grid's file: they do not count.
    """
    bad = [line for line in grid.lines if line.state in (LineState.FAILED, LineState.UNPLACED, LineState.STOPPED)]
    lines = [line_text(line) for line in bad[:20]]
    if len(bad) > 20:
        lines.append(f"and {counted(len(bad) - 20)} more: headrace grid status {grid.name}")
    failed = next((line for line in bad if line.state is LineState.FAILED and line.attempts), None)
    if failed is not None:
        lines.append(f"`headrace grid logs {grid.name} {failed.key}` shows what {failed.place} has written")
    if any(line.in_file and line.state in (LineState.FAILED, LineState.STOPPED) for line in bad):
        lines.append(f"{used_up(grid, time.time())}`headrace grid retry {grid.name}` lets them run again")
    if uncounted := sum(line.state is LineState.FAILED and line.key in dropped for line in bad):
        lines.append(f"{counted(uncounted)} failed and then left the grid's file: the exit code ignores that")
    return document(section(Heading(whole_text(grid, grid.cost)), *sentences(lines)))


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
    """Returns what has changed in a grid's file, a line each.

    Args:
        changes: what has changed.
        known: the grid as its journal has it.
        file: the grid's file now.
        again: whether lines that have ended run again.
    """
    said = [f"{known.name} was started before, at {_when(known.created)}; since then {file} has changed:"]
    if changes.file:
        said = [f"{known.name} was started before, at {_when(known.created)}, from another file: {changes.file}"]
        said.append(f"  {file} would go on with that grid: its lines that have ended do not run again")
    for what, lines in (
        ("new", changes.added),
        ("no longer in it (those that have begun go on, the others are not started):", changes.gone),
        ("that will run elsewhere:", changes.moved),
    ):
        if lines:
            named = ", ".join(line.place for line in lines[:_NAMED])
            more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
            said.append(f"  {counted(len(lines))} {what} {named}{more}")
    if failed := sum(line.state is LineState.FAILED for line in changes.gone):
        said.append(f"  {counted(failed)} of those had failed: the record stays, the exit code ignores it")
    if changes.job:
        begun = sum(1 for line in known.lines if line.in_file and line.attempts)
        kept = f"; {begun} of {len(known.lines)} lines have begun with the old one, and keep it" if begun else ""
        said.append(f"  the job, its values for a region, or its code: lines that have not begun use the new one{kept}")
    over = sum(1 for line in known.lines if line.in_file and line.state.over and line.attempts)
    if over:
        run = "will run again" if again else "will not run again; with --again they do"
        said.append(f"  {over} of {len(known.lines)} lines have ended, and {run}")
    for what, pair, unit in (("budget", changes.budget, f" {CURRENCY}"), ("deadline", changes.deadline, " s")):
        if pair is not None:
            before, now = ("none" if each is None else f"{each:g}{unit}" for each in pair)
            said.append(f"  its {what}: {before} before, {now} now")
    return "\n".join(said)


def _who(grid: GridRecord, controlled: bool) -> str:
    if grid.ended is not None:
        return f"over since {_when(grid.ended)}"
    if controlled and grid.controller is not None:
        who = grid.controller
        return f"controlled by process {who.pid} on {who.node} since {_when(who.since)}"
    return f"no process controls it: headrace grid run {grid.file}"


def _when(t: float) -> str:
    return f"{moment(t)} UTC"
