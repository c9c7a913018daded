"""`headrace grid run`."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.cli.views.grid_progress import GridProgress
    from headrace.grid.controller.grid_changes import GridChanges
    from headrace.grid.controller.grid_controller import GridController
    from headrace.grid.journal.grid_record import GridRecord, LineRecord
    from headrace.grid.load_grid import Grid
    from headrace.grid.plan_grid import GridPlan

INTERRUPTED, TERMINATED = 130, 143


class _Terminated(KeyboardInterrupt):
    """SIGTERM."""


@click.command("run", short_help="Copy data, start every line, watch and retry, until all are over.")
@click.argument("file", metavar="ARRAY.yaml")
@click.option("-y", "--yes", is_flag=True, help="Go on though the file says something else than at the last start.")
@click.option(
    "--digest", default="", help="Only the lines of this digest, as `headrace grid plan --output json` has it."
)
@click.option(
    "--on-interrupt",
    type=click.Choice(["ask", "leave", "stop"]),
    help="What Ctrl-C and SIGTERM do: leave runs going, or stop all of them.  [default: Ctrl-C asks on a terminal, "
    "else leave]",
)
@click.option(
    "--measure", is_flag=True, help="First list data of unknown size in S3, so that they can be copied; at each start."
)
@click.option("--again", is_flag=True, help="Lines that are over run again too, with the code and job of now.")
@output_option
def command(
    file: str, yes: bool, digest: str, on_interrupt: str | None, measure: bool, again: bool, output: str
) -> int:
    """Run the grid of ARRAY.yaml: place its lines, copy data, start each line's job, watch it, try again what may work.

    What is done is written down first. If this command ends, however it does, runs go on, and the same command goes on
    with the grid: no line is lost, and none is started twice. What the file says now in another way than at the last
    start is shown and must be confirmed, or given --yes.

    Exit code 0: every line has completed, or was stopped early as the file says; 1: some have not; 130: Ctrl-C; 143:
    SIGTERM.

    \b
    Examples:
      headrace grid run array.yaml
      headrace grid run array.yaml --yes
      headrace grid run array.yaml --again
      headrace grid run array.yaml --on-interrupt stop
    """
    from headrace.cli.options import answer
    from headrace.cli.views.grid_progress import GridProgress
    from headrace.cli.views.grid_status_tables import end_document
    from headrace.grid.controller.control_grid import controlling
    from headrace.grid.journal.grid_record import LineState
    from headrace.grid.report.read_report import without_objective

    choice = on_interrupt or ("ask" if sys.stdin.isatty() and sys.stderr.isatty() else "leave")

    def confirm(changes: GridChanges, known: GridRecord) -> bool:
        from headrace.cli.views.grid_status_tables import changes_text

        click.echo(changes_text(changes, known, str(Path(file).absolute()), again=again), err=True)
        return yes or (sys.stdin.isatty() and click.confirm("Go on with that?", err=True))

    def look(grid: Grid, plan: GridPlan) -> None:
        from headrace.errors import UsageError

        objective[0] = grid.file.objective.metric if grid.file.objective else ""
        from headrace.grid.data_places import check_places
        from headrace.grid.journal.journal_file import journal_path

        if digest and grid.digest != digest:
            message = f"{file} has other lines now: their digest is {grid.digest}"
            raise UsageError(message, "`headrace grid plan` shows them")
        if not journal_path(plan.name).exists():  # its first start: is everything there that it reads?
            check_places(grid, plan, only_missing=True)

    objective = [""]  # its metric, until a line has completed

    def told(line: LineRecord, trouble: str) -> None:
        progress.line(line, trouble)
        if objective[0] and line.state is LineState.COMPLETED and line.attempt is not None and not trouble:
            metric, objective[0] = objective[0], ""
            if words := without_objective(line.attempt, metric):
                progress.line(line, words)

    with (
        GridProgress() as progress,
        controlling(
            file, confirm=confirm, look=look, measure=measure, again=again, told=told, told_copy=progress.copy
        ) as controller,
        _told_sigterm(),
    ):
        interrupted = _run(controller, progress, choice)
        grid = controller.grid
    answer(grid, output, lambda: end_document(grid))
    if interrupted:
        return interrupted
    return 0 if all(line.state.as_asked for line in grid.lines if line.in_file) else 1


@contextlib.contextmanager
def _told_sigterm() -> Iterator[None]:
    """Raises `_Terminated` at the first SIGTERM; another one ends the process as ever."""
    before = signal.getsignal(signal.SIGTERM)

    def told(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before)
        raise _Terminated

    signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(controller: GridController, progress: GridProgress, choice: str) -> int:
    """Runs a grid to its end. Returns the exit code after a signal; 0 when there was none."""
    try:
        progress.begin(controller)
        controller.run()
        return 0
    except KeyboardInterrupt as interrupt:
        code = TERMINATED if isinstance(interrupt, _Terminated) else INTERRUPTED
    if code == TERMINATED and choice == "ask":
        choice = "leave"
    if choice == "ask":
        progress.pause()
        choice = _asked()
    if choice == "leave":
        click.echo("headrace: runs go on; the same command goes on with the grid", err=True)
        return code
    click.echo("headrace: stopping all runs (Ctrl-C again leaves them)", err=True)
    controller.ask_stop()
    try:
        controller.run()
    except KeyboardInterrupt:
        click.echo(f"headrace: runs go on until they have stopped: headrace grid stop {controller.grid.name}", err=True)
    return code


def _asked() -> str:
    try:
        answer = click.prompt(
            "\nLeave the runs going, or stop all of them?",
            type=click.Choice(["leave", "stop"]),
            default="leave",
            err=True,
        )
        return str(answer)
    except click.Abort:
        return "leave"
