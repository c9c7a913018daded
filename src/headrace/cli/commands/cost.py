"""`headrace cost`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option, region_option


@click.command("cost", short_help="What a run costs, by group, host, step or epoch, with prices and formulas.")
@click.argument("run")
@click.option(
    "--by",
    type=click.Choice(["group", "host", "step", "epoch"]),
    default="group",
    show_default=True,
    help="What the rows of the table are. The JSON output holds all four.",
)
@region_option
@output_option
def command(run: str, by: str, region: str | None, output: str) -> None:
    """Show what RUN costs, a run id or a job name (its newest run). It may still be going on.

    The cost is the list price of the instance types that the job names, for the time that was measured; every
    price has its source and date. It also shows what the platform would bill, where no instance is released early.

    \b
    Examples:
      headrace cost my-job
      headrace cost my-job --by step --region eu-west-1
      headrace cost my-job --output json
    """
    from headrace import insight
    from headrace.cli.options import answer, open_run
    from headrace.cli.views.cost_tables import cost_document

    found = open_run(run)
    report = insight.cost_report(found, region=region)
    answer(report, output, lambda: cost_document(report, by, found.id))
