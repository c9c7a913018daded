"""`headrace grid`: job arrays, one job over many regions, data sets and settings."""

from __future__ import annotations

import click

from headrace.cli.commands.grid.batch import copy, export, step, submit
from headrace.cli.commands.grid.report import best, grids, logs, report, status
from headrace.cli.commands.grid.run import plan, retry, run, stop


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
