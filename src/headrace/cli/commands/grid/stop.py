"""`headrace grid stop` and `headrace grid retry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.grid.journal.grid_record import GridRecord


@click.command("stop", short_help="Stop all lines of a grid, or some.")
@click.argument("grid", metavar="GRID")
@click.argument("lines", metavar="[LINE]...", nargs=-1)
@output_option
def stop(grid: str, lines: tuple[str, ...], output: str) -> int:
    """Stop GRID, or these lines of it: what waits is not started, and every run is asked to stop, with time to save.

    LINE is a line's place (array.txt:3) or its number (3; of a query or matrix from 1), its key, or the name of its
    job. The other lines go on.

    The process that controls the grid does it; where there is none, this command does, and waits for the end.
    `headrace grid retry` lets lines go on that were stopped.

    \b
    Examples:
      headrace grid stop campaigns
      headrace grid stop campaigns array.txt:3 8c355a6b7188
      headrace grid stop campaigns --output json
    """
    import time

    from headrace import engines
    from headrace.cli.views.grid_progress import GridProgress
    from headrace.grid.controller.control_grid import stopping
    from headrace.grid.journal.grid_record import LineState
    from headrace.grid.journal.journal import Journal
    from headrace.grid.journal.journal_file import GridInUse, has_controller, journal_path, require_own
    from headrace.grid.journal.read_grid import lines_named, read_grid
    from headrace.runs import Run

    record = read_grid(grid)
    path = journal_path(grid)
    require_own(path)
    chosen = lines_named(record, lines) if lines else record.lines
    if all(line.state.over for line in chosen):
        _show(record, False, output)
        return 0
    if not lines and not has_controller(path.parent):
        try:
            with GridProgress() as progress, stopping(grid, progress.line) as controller:
                progress.begin(controller)
                _show(controller.run(), False, output)
                return 0
        except GridInUse:
            pass  # somebody has taken it meanwhile, and will be told
    journal = Journal(path)
    try:
        journal.ask_stop(time.time(), [line.key for line in chosen] if lines else None)
    finally:
        journal.close()
    controlled = has_controller(path.parent)
    if not controlled:
        for line in chosen:
            if line.state is LineState.RUNNING:
                engines.stop(Run.open(line.attempts[-1].run_id))
    if output == "json":
        _show(read_grid(grid), controlled, output)
    elif not controlled:
        click.echo(f"asked to stop; no process controls the grid: headrace grid run {record.file} goes on")
    else:
        what = ", ".join(line.place for line in chosen) if lines else grid
        click.echo(f"{what}: being stopped by the process that controls {grid}")
    return 0


def _show(record: GridRecord, controlled: bool, output: str) -> None:
    from headrace.cli.options import answer
    from headrace.cli.views.grid_status_tables import end_document

    answer({"controlled": controlled, "grid": record}, output, lambda: end_document(record))


@click.command("retry", short_help="Let lines run again that failed or were stopped.")
@click.argument("grid", metavar="GRID")
@click.argument("lines", metavar="[LINE]...", nargs=-1)
@output_option
def retry(grid: str, lines: tuple[str, ...], output: str) -> int:
    """Let lines of GRID run again, with one attempt more: those that are named, else all that failed or were stopped
    (but not early, by the file's early_stop: these are named).

    LINE is a line's place (array.txt:3) or its number (3; of a query or matrix from 1), its key, or the name of its
    job. The process that controls the grid starts them; where there is none, `headrace grid run` does.

    \b
    Examples:
      headrace grid retry campaigns
      headrace grid retry campaigns array.txt:3 8c355a6b7188
    """
    import time

    from headrace.errors import UsageError
    from headrace.grid.journal.grid_record import LineState
    from headrace.grid.journal.journal import Journal
    from headrace.grid.journal.journal_file import has_controller, journal_path
    from headrace.grid.journal.read_grid import lines_named, read_grid

    record = read_grid(grid)
    chosen = lines_named(record, lines) if lines else record.lines
    states = (LineState.FAILED, LineState.STOPPED, *((LineState.STOPPED_EARLY,) if lines else ()))
    again = [line for line in chosen if line.in_file and line.state in states]
    others = [f"{line.place}: {line.state.value}" for line in chosen if lines and line not in again]
    if others:
        raise UsageError(f"only lines run again that failed or were stopped: {'; '.join(others)}")
    path = journal_path(grid)
    journal = Journal(path)
    try:
        count = journal.retry([line.key for line in again])
    finally:
        journal.close()
    controlled = has_controller(path.parent)
    if output == "json":
        from headrace.cli.options import echo_json

        echo_json({"controlled": controlled, "lines": [line.key for line in again], "grid": read_grid(grid)})
        return 0
    from headrace.cli.views.grid_status_tables import used_up
    from headrace.grid.report.grid_report import counted

    click.echo(f"{grid}: {counted(count)} may run again")
    if count and not controlled:
        click.echo(f"no process controls the grid: headrace grid run {record.file}")
    if limit := used_up(record, time.time()) if count else "":
        click.echo(f"{limit}they are started, else stopped at once")
    return 0
