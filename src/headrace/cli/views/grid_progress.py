"""How far a grid comes while it runs: a line for each change, and on a terminal one that tells the whole."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from headrace.catalog.prices import CURRENCY
from headrace.cli.views.table import PlainConsole
from headrace.cli.views.terminal import painted
from headrace.grid.grid_record import CopyRecord, CopyState, GridRecord, LineRecord, LineState
from headrace.grid.grid_report import counted
from headrace.insight.cost.billing import amount
from headrace.insight.render.plain_text import duration

if TYPE_CHECKING:
    from headrace.grid.controller.grid_controller import GridController


MOST_CLOSED = 20
"""So many lines are named that end without having run; the end tells how many there are."""
WHOLE_SECONDS = 0.5
"""How often the line that tells the whole is made anew: it counts all lines."""


class GridProgress:
    """Tells of lines and copies as they change, on standard error. Any thread may call it."""

    def __init__(self) -> None:
        self._console = PlainConsole(file=painted(sys.stderr), highlight=False)
        self._status: Status | None = None
        self._closed = 0

    def __enter__(self) -> GridProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, controller: GridController) -> None:
        """Begins: on a terminal a line at its end tells the whole from now on."""
        self._say(whole_text(controller.grid, controller.cost))
        if sys.stderr.isatty():
            self._status = self._console.status(_Whole(controller))
            self._status.start()

    def pause(self) -> None:
        """Ends the line that tells the whole, for a question."""
        if self._status is not None:
            self._status.stop()
            self._status = None

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
        stamped = f"{time.strftime('%H:%M:%S', time.gmtime())} {words}"
        if self._status is None:
            click.echo(stamped, err=True)
            return
        self._console.print(escape(stamped))


class _Whole:
    """The line that tells the whole, for a terminal."""

    def __init__(self, controller: GridController) -> None:
        self._controller = controller
        self._began = self._made = time.monotonic()
        self._text = Text()

    def __rich__(self) -> Text:
        now = time.monotonic()
        if not self._text or now - self._made >= WHOLE_SECONDS:
            self._made = now
            whole = whole_text(self._controller.grid, self._controller.cost)
            self._text = Text(f"{whole}, after {duration(now - self._began)}")
        return self._text


def line_text(line: LineRecord) -> str:
    """Returns what has become of a line, in one line."""
    attempt = line.attempt
    words = [f"{line.written}: {line.state.value}"]
    if attempt is not None:
        where = f" in {attempt.region}" if attempt.region else ""
        number = f" (attempt {attempt.number})" if attempt.number > 1 else ""
        words.append(f"{attempt.run_id or attempt.job_name}{where}{number}")
    if why := why_text(line):
        words.append(why)
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


def why_text(line: LineRecord) -> str:
    """Returns how a line that runs stood last, or why one is not completed: what the grid has decided about it comes
    before what befell its run."""
    attempt = line.attempt
    if line.state is LineState.RUNNING and line.rungs:
        return str(line.early_stop or line.rungs[-1])
    return line.reason or (str(attempt.cause) if attempt is not None and attempt.cause is not None else "")
