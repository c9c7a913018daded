"""`headrace compare`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("compare", short_help="Two or more runs side by side.")
@click.argument("runs", metavar="RUN_A RUN_B...", nargs=-1, required=True)
@output_option
def command(runs: tuple[str, ...], output: str) -> None:
    """Compare runs: step time, samples/s, data wait %, CPU % per group, time to train.

    Beside each figure stand the spread of its per-second values (10th to 90th percentile) and the ratio to the first
    run.

    \b
    Examples:
      headrace compare homogeneous heterogeneous
      headrace compare RUN_A RUN_B RUN_C --output json
    """
    from headrace import insight
    from headrace.cli.options import echo_json, open_run

    found = insight.compare([insight.report(open_run(run)) for run in runs])
    if output == "json":
        echo_json(found)
    else:
        from headrace.cli.tables import show_comparison

        show_comparison(found)
