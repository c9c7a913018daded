"""`headrace report`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("report", short_help="Figures of a run: steps, samples/s, data wait, CPU, how it ended.")
@click.argument("run")
@output_option
def command(run: str, output: str) -> None:
    """Show the figures of RUN, a run id or a job name (its newest run).

    Each figure has its unit, its window and its formula; the JSON output holds all three. The first second of every
    loader is left out as warm-up.

    \b
    Examples:
      headrace report my-job
      headrace report my-job --output json
    """
    from headrace import insight
    from headrace.cli.options import echo_json, open_run

    found = insight.report(open_run(run))
    if output == "json":
        echo_json(found)
    else:
        from headrace.cli.tables import show_report

        show_report(found)
