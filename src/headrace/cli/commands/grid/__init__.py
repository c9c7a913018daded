"""`headrace grid`: job arrays, one job over many regions, data sets and settings."""

from __future__ import annotations

import click

from headrace.cli.commands.grid import copy, export, plan, run, step, submit
from headrace.cli.commands.grid.report import best, grids, report
from headrace.cli.commands.grid.status import logs, status
from headrace.cli.commands.grid.stop import retry, stop


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
      headrace grid run array.yaml
      headrace grid status campaigns
    """


for _each in (
    plan.command,
    run.command,
    status,
    logs,
    retry,
    stop,
    report,
    best,
    grids,
    export.command,
    submit.command,
    step.command,
    copy.command,
):
    command.add_command(_each)
