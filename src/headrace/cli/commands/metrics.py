"""`headrace metrics`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("metrics", short_help="Show what a run did over time: step time, data wait, CPU, bytes/s ...")
@click.argument("run")
@click.option(
    "--points", type=click.IntRange(1, 2000), default=400, show_default=True, help="Maximum number of values a line."
)
@click.option("--start", type=float, metavar="SECONDS", help="Show values from this time on, seconds since the epoch.")
@click.option("--end", type=float, metavar="SECONDS", help="Show values until this time, seconds since the epoch.")
@output_option
def command(run: str, points: int, start: float | None, end: float | None, output: str) -> None:
    """Show the metrics of RUN, a run id or a job name (its newest run), over time.

    Seconds are summed into buckets, so that a long run shows as quickly as a short one; --output json has every
    value with its minimum and maximum, and the formula. The page of `headrace ui` draws it.

    \b
    Examples:
      headrace metrics my-job
      headrace metrics my-job --points 1000 --output json
    """
    from headrace.cli.options import ask_engines, echo_json
    from headrace.insight.run_cache import RunIndex
    from headrace.runs import Run

    found = RunIndex(Run.open(run).paths, ask_engines()).metrics(start, end, points)
    if output == "json":
        echo_json(found)
    else:
        from headrace.cli.views.timeseries_tables import show_metrics

        show_metrics(found)
