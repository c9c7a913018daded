"""`headrace grid plan`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("plan", short_help="Every line: what runs where, why there, at what price; starts nothing.")
@click.argument("file", metavar="ARRAY.yaml")
@click.option("--lines", "shown", type=click.IntRange(0), default=20, show_default=True, help="Lines to show as text.")
@click.option("--why", is_flag=True, help="Show for every line each other region, and what is against it.")
@click.option("--measure", is_flag=True, help="List data of unknown size in S3, so that copies can be planned.")
@click.option("--check", is_flag=True, help="Look whether all data and places for copies are there.")
@output_option
def command(file: str, shown: int, why: bool, measure: bool, check: bool, output: str) -> None:
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
    if check:
        check_places(grid, planned)
    measured.check()
    values = plan_values(planned) if output == "json" else None
    answer(values, output, lambda: plan_document(planned, shown, why))
    if planned.unplaced:
        click.get_current_context().exit(1)
