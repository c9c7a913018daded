"""`headrace grid report`, `headrace grid best` and `headrace grid list`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.options import output_option, table_options

if TYPE_CHECKING:
    from headrace.grid.report.grid_report import Objective
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
    from headrace.grid.report.grid_report import Objective

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
    from headrace.grid.report.grid_documents import grid_csv, grid_document, grid_page
    from headrace.grid.report.read_report import read_report

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
    from headrace.grid.report.grid_documents import best_of_document, best_values
    from headrace.grid.report.read_report import read_report

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
    from headrace.grid.report.grid_documents import grids_document
    from headrace.grid.report.read_report import list_grids

    found, unread = list_grids()
    answer({"grids": found, "unread": unread}, output, lambda: grids_document(found, unread, time.time()))
