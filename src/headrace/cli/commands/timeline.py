"""`headrace timeline`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("timeline", short_help="Show the life of every host of a run, and its events.")
@click.argument("run")
@output_option
def command(run: str, output: str) -> None:
    """Show what happened in RUN, a run id or a job name (its newest run): its events by time.

    With --output json also the life of every host: starting, ready, running, done, stopping, released or lost. The page
    of `headrace ui` draws it.

    \b
    Examples:
      headrace timeline my-job
      headrace timeline my-job --output json
    """
    import time

    from headrace.cli.options import answer, ask_engines
    from headrace.cli.views.timeseries_tables import timeline_document
    from headrace.insight.run_cache import RunIndex
    from headrace.runs import Run

    found = RunIndex(Run.open(run).paths, ask_engines()).timeline(time.time())
    answer(found, output, lambda: timeline_document(found))
