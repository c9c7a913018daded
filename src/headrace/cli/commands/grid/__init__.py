"""`headrace grid`: job arrays, one job over many regions, data sets and settings."""

from __future__ import annotations

import click

from headrace.cli.commands.grid import export, plan
from headrace.cli.commands.grid.report import best, grids, report


@click.group("grid", short_help="Job arrays: one job over many regions, data sets and settings.")
def command() -> None:
    """One job over many regions, data sets and settings. ARRAY.yaml names a job file and where the lines come from.

    \b
    name: campaigns
    job: job.yaml
    lines: {file: array.txt}       # region,s3 lines, CSV with a header, JSON lines; or query and database; or product
    placement: {regions: [us-west-2, eu-central-1], wishes: [data_local, cheapest]}

    \b
    Examples:
      headrace grid plan array.yaml
      headrace grid plan array.yaml --output json
    """


for _each in (plan.command, report, best, grids, export.command):
    command.add_command(_each)
