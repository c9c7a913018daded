"""`headrace grid report`, `best`, `list`, `status` and `logs`: what came of a grid."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.options import output_option, table_options

if TYPE_CHECKING:
    from headrace.grid.grid_report import Objective
    from headrace.insight.render.document import Document


_MOST_LINES = 200
F = TypeVar("F", bound=Callable[..., object])


def _objective_options(command: F) -> F:
    least = click.option("--min", "least", metavar="METRIC", help="The least METRIC is the best.")
    greatest = click.option(
        "--max", "greatest", metavar="METRIC", help="The greatest METRIC is the best.  [default: the file's objective]"
    )
    return least(greatest(command))


def _objective(least: str | None, greatest: str | None) -> Objective | None:
    from headrace.grid.grid_report import Objective

    if least and greatest:
        raise click.UsageError("--min and --max exclude each other")
    return Objective(least, "min") if least else Objective(greatest, "max") if greatest else None


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
