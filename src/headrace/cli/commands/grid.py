"""`headrace grid`: job arrays, one job over many regions, data sets and settings: what would run where, running it, and
what came of it. `headrace.cli.commands.grid_batch` has what is AWS Batch's."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.commands.grid_batch import copy, export, step, submit
from headrace.cli.options import output_option, table_options
from headrace.exit_status import INTERRUPTED

if TYPE_CHECKING:
    from headrace.cli.views.grid_status_tables import GridProgress
    from headrace.grid.controller.control_grid import GridChanges
    from headrace.grid.controller.grid_controller import GridController
    from headrace.grid.grid_file import Objective
    from headrace.grid.grid_record import GridRecord, LineRecord
    from headrace.grid.load_grid import Grid
    from headrace.grid.plan_grid import GridPlan
    from headrace.insight.render.document import Document

TERMINATED = 143


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
def run(file: str, yes: bool, digest: str, on_interrupt: str | None, measure: bool, again: bool, output: str) -> int:
    """Run the grid of ARRAY.yaml: place its lines, copy data, start each line's job, watch it, try again what may work.

    What is done is written down first. If this command ends, however it does, runs go on, and the same command goes on
    with the grid: no line is lost, and none is started twice. What the file says now in another way than at the last
    start is shown and must be confirmed, or given --yes.

    Exit code 0: every line has completed, or was stopped early as the file says; 1: some have not; 130: Ctrl-C; 143:
    SIGTERM. A line that the file has no more counts while it goes on; once it is over it is only shown.

    \b
    Examples:
      headrace grid run array.yaml
      headrace grid run array.yaml --yes
      headrace grid run array.yaml --again
      headrace grid run array.yaml --on-interrupt stop
    """
    from headrace.cli.options import answer
    from headrace.cli.views.grid_status_tables import GridProgress, end_document
    from headrace.grid.controller.control_grid import controlling
    from headrace.grid.grid_record import LineState
    from headrace.grid.read_report import without_objective

    choice = on_interrupt or ("ask" if sys.stdin.isatty() and sys.stderr.isatty() else "leave")

    def confirm(changes: GridChanges, known: GridRecord) -> bool:
        from headrace.cli.views.grid_status_tables import changes_text

        click.echo(changes_text(changes, known, str(Path(file).absolute()), again=again), err=True)
        return yes or (sys.stdin.isatty() and click.confirm("Go on with that?", err=True))

    def look(grid: Grid, plan: GridPlan) -> None:
        from headrace.errors import UsageError

        objective[0] = grid.file.objective.metric if grid.file.objective else ""
        from headrace.grid.data_places import check_places
        from headrace.grid.read_grid import journal_path

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
        dropped = {line.key for line in controller.grid.lines if line.state.over and not line.in_file}
        interrupted = _run(controller, progress, choice)
        grid = controller.grid
    answer(grid, output, lambda: end_document(grid, dropped))
    if interrupted:
        return interrupted
    return 0 if all(line.state.as_asked for line in grid.lines if line.key not in dropped) else 1


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


@click.command("plan", short_help="Every line: what runs where, why there, at what price; starts nothing.")
@click.argument("file", metavar="ARRAY.yaml")
@click.option("--lines", "shown", type=click.IntRange(0), default=20, show_default=True, help="Lines to show as text.")
@click.option("--why", is_flag=True, help="Show for every line each other region, and what is against it.")
@click.option("--measure", is_flag=True, help="List data of unknown size in S3, so that copies can be planned.")
@click.option("--check", is_flag=True, help="Look whether data and places for copies are there in S3, too.")
@output_option
def plan(file: str, shown: int, why: bool, measure: bool, check: bool, output: str) -> None:
    """Read the lines of ARRAY.yaml, check the job of each, and place it. Nothing is copied, sent or started.

    A line that is wrong is named by its file and line number, all of them at once. Exit code 1 when a line can run
    nowhere.

    \b
    Examples:
      headrace grid plan array.yaml
      headrace grid plan array.yaml --why --lines 3
      headrace grid plan array.yaml --measure --check
      headrace grid plan array.yaml --output json
    """
    from headrace.cli.options import answer
    from headrace.cli.views.grid_tables import plan_document, plan_values
    from headrace.grid.data_places import MeasuredPlaces, check_places, measure_places
    from headrace.grid.load_grid import load_grid
    from headrace.grid.plan_grid import check_budget, plan_grid

    grid = load_grid(file)
    measured = measure_places(grid) if measure else MeasuredPlaces()
    planned = plan_grid(grid, measured.sizes)
    check_budget(grid, planned)
    check_places(grid, planned, only_local=not check)
    measured.check()
    values = plan_values(planned) if output == "json" else None
    answer(values, output, lambda: plan_document(planned, shown, why))
    if planned.unplaced:
        click.get_current_context().exit(1)


@click.command("stop", short_help="Stop all lines of a grid, or some.")
@click.argument("grid", metavar="GRID")
@click.argument("lines", metavar="[LINE]...", nargs=-1)
@output_option
def stop(grid: str, lines: tuple[str, ...], output: str) -> int:
    """Stop GRID, or these lines of it: what waits is not started, and every run is asked to stop, with time to save.

    LINE is a line's place (array.txt:3) or its number (3; of a query or matrix from 1), its key, or the name of its
    job. The other lines go on.

    The process that controls the grid does it. Where there is none, this command stops the whole grid and waits for
    the end; lines that are named it asks to stop, and does not wait. `headrace grid retry` lets lines go on that were
    stopped.

    \b
    Examples:
      headrace grid stop campaigns
      headrace grid stop campaigns array.txt:3 8c355a6b7188
      headrace grid stop campaigns --output json
    """
    import time

    from headrace import engines
    from headrace.cli.views.grid_status_tables import GridProgress
    from headrace.grid.controller.control_grid import stopping
    from headrace.grid.grid_record import LineState
    from headrace.grid.journal import Journal
    from headrace.grid.read_grid import (
        GridInUse,
        has_controller,
        journal_path,
        lines_named,
        read_grid,
        require_own,
    )
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
    from headrace.grid.grid_record import LineState
    from headrace.grid.journal import Journal
    from headrace.grid.read_grid import has_controller, journal_path, lines_named, read_grid

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
    from headrace.grid.grid_report import counted

    click.echo(f"{grid}: {counted(count)} may run again")
    if count and not controlled:
        click.echo(f"no process controls the grid: headrace grid run {record.file}")
    if limit := used_up(record, time.time()) if count else "":
        click.echo(f"{limit}they are started, else stopped at once")
    return 0


_MOST_LINES = 200
F = TypeVar("F", bound=Callable[..., object])


def _objective_options(command: F) -> F:
    least = click.option("--min", "least", metavar="METRIC", help="The least METRIC is the best.")
    greatest = click.option(
        "--max", "greatest", metavar="METRIC", help="The greatest METRIC is the best.  [default: the file's objective]"
    )
    return least(greatest(command))


def _objective(least: str | None, greatest: str | None) -> Objective | None:
    from headrace.grid.grid_file import Objective

    if least and greatest:
        raise click.UsageError("--min and --max exclude each other")
    metric, goal = (least, "min") if least else (greatest, "max")
    return Objective.model_construct(metric=metric, goal=goal) if metric else None


@click.command("report", short_help="A row a line, totals, planned against spent, the best; text, JSON, CSV, HTML.")
@click.argument("grid", metavar="GRID")
@_objective_options
@table_options
def report(grid: str, least: str | None, greatest: str | None, output: str, file: str | None) -> None:
    """Show what came of GRID, the name of a grid: live, or after its end.

    A row for each line: its state, region, attempts, time, cost, last metrics, and why it failed. Totals by region, the
    cost planned and spent, the best lines by a metric, and those that no other line beats in cost and metric together.

    \b
    Examples:
      headrace grid report campaigns
      headrace grid report campaigns --max accuracy
      headrace grid report campaigns --file campaigns.html
      headrace grid report campaigns --output csv
    """
    from headrace.cli.options import deliver
    from headrace.grid.grid_documents import grid_csv, grid_document, grid_page
    from headrace.grid.read_report import read_report

    found = read_report(grid, _objective(least, greatest))

    def document(width: int) -> Document:
        return grid_page(found) if output == "html" else grid_document(found, _MOST_LINES if output == "text" else None)

    deliver(found, output, file, document, title=found.name, csv=lambda: grid_csv(found))


@click.command("best", short_help="The best lines by a metric, and those not beaten in cost and metric.")
@click.argument("grid", metavar="GRID")
@_objective_options
@click.option("--lines", "most", type=click.IntRange(1), default=5, show_default=True, help="How many to show.")
@output_option
def best(grid: str, least: str | None, greatest: str | None, most: int, output: str) -> None:
    """Show the best lines of GRID by a metric, the best one first, and those not beaten in cost and metric together.

    Lines that have completed count. Exit code 1 when none has the metric.

    \b
    Examples:
      headrace grid best campaigns --max accuracy
      headrace grid best campaigns --min loss --lines 1 --output json
    """
    from headrace.cli.options import answer
    from headrace.errors import UsageError
    from headrace.grid.grid_documents import best_of_document, best_values
    from headrace.grid.read_report import read_report

    found = read_report(grid, _objective(least, greatest))
    if found.objective is None:
        names = sorted({name for each in found.lines for name in each.metrics})
        there = f"its runs have printed {', '.join(names)}; " if names else ""
        hint = f"{there}give --min METRIC or --max METRIC, or `objective: {{metric: ..., goal: max}}` in its file"
        raise UsageError(f"nobody said by which metric a line of {grid} is the best", hint)
    answer(best_values(found, most), output, lambda: best_of_document(found, most))
    if not found.best:
        click.get_current_context().exit(1)


@click.command("list", short_help="The grids of this machine.")
@output_option
def grids(output: str) -> None:
    """Show the grids that were started on this machine, the newest one first.

    \b
    Examples:
      headrace grid list
      headrace grid list --output json
    """
    from headrace.cli.options import answer
    from headrace.grid.grid_documents import grids_document
    from headrace.grid.read_report import list_grids

    found, unread = list_grids()
    answer({"grids": found, "unread": unread}, output, lambda: grids_document(found, unread, time.time()))


@click.command("status", short_help="How far a grid has come: lines, regions, copies, cost.")
@click.argument("grid", metavar="GRID")
@click.option("--lines", "shown", type=click.IntRange(0), default=20, show_default=True, help="Lines to show as text.")
@click.option("--notes", is_flag=True, help="Show what happened, too.")
@output_option
def status(grid: str, shown: int, notes: bool, output: str) -> int:
    """Show how far GRID has come: first lines that failed, then those that run, wait and have completed.

    \b
    Examples:
      headrace grid status campaigns
      headrace grid status campaigns --lines 1000
      headrace grid status campaigns --output json
    """
    from headrace.cli.options import answer
    from headrace.cli.views.grid_status_tables import status_document
    from headrace.grid.read_grid import has_controller, journal_path, read_grid, read_notes
    from headrace.grid.read_report import with_running_costs
    from headrace.own_runs import started_here

    record = with_running_costs(read_grid(grid))
    folder = journal_path(grid).parent
    foreign = not started_here(folder)
    controlled = not foreign and has_controller(folder)
    told = read_notes(grid) if notes else ()
    answer(
        {"controlled": controlled, "foreign": foreign, "grid": record, "notes": told},
        output,
        lambda: status_document(record, controlled, foreign, shown, told),
    )
    return 0


@click.command("logs", short_help="What the programs of a line have written.")
@click.argument("grid", metavar="GRID")
@click.argument("line", metavar="LINE")
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt.  [default: the latest]")
@click.option("-f", "--follow", is_flag=True, help="Wait for further lines until the run has finished.")
@click.option("--agent", is_flag=True, help="Also the agents' own notes.")
@output_option
@click.pass_context
def logs(
    context: click.Context, grid: str, line: str, attempt: int | None, follow: bool, agent: bool, output: str
) -> int:
    """Show what the programs of a line of GRID have written. LINE is its place (array.txt:3) or number (3; of a query
    or matrix from 1), its key, or its job's name.

    It is what `headrace logs` shows of the run of the line's latest attempt; `headrace grid status` names it.

    \b
    Examples:
      headrace grid logs campaigns array.txt:3
      headrace grid logs campaigns 8c355a6b7188 --attempt 1
    """
    from headrace.cli.commands.output import logs as logs_of_run
    from headrace.errors import UsageError
    from headrace.grid.read_grid import lines_named, read_grid

    record = read_grid(grid)
    (found,) = lines_named(record, (line,))
    number = attempt or len(found.attempts)
    mine = next((each for each in found.attempts if each.number == number), None)
    if mine is None or not mine.run_id:
        if mine is None and found.attempts:
            raise UsageError(f"{found.place} has no attempt {number}", f"it has {len(found.attempts)}")
        why = mine.cause if mine is not None and mine.cause is not None else found.reason or found.state.value
        raise UsageError(f"{found.place} has no run{f' of attempt {attempt}' if attempt else ''}: {why}")
    code = context.invoke(logs_of_run, selector=mine.run_id, follow=follow, agent=agent, output=output)
    return int(code)


@click.group("grid", short_help="Job arrays: one job over many regions, data sets and settings.")
def grid() -> None:
    """One job over many regions, data sets and settings. ARRAY.yaml names a job file and where the lines come from.

    \b
    name: campaigns
    job: job.yaml
    lines: {file: array.txt}       # region,s3 lines, CSV with a header, JSON lines; or query and database; or product
    placement: {regions: [us-west-2, eu-central-1], wishes: [data_local, cheapest]}

    \b
    Examples:
      headrace grid plan array.yaml
      headrace grid run array.yaml
      headrace grid status campaigns
    """


for _each in (plan, run, status, logs, retry, stop, report, best, grids, export, submit, step, copy):
    grid.add_command(_each)
