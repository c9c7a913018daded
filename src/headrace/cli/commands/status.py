"""`headrace status`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("status", short_help="Show the state of a run, why it failed, and for how long each host was needed.")
@click.argument("run")
@output_option
def command(run: str, output: str) -> None:
    """Show the status of RUN, a run id or a job name (its newest run).

    With --output json the keys are those of the service's DescribeTrainingJob; what only headrace knows is under
    `headrace`.

    \b
    Examples:
      headrace status my-job
      headrace status my-job --output json
    """
    import time

    from headrace.cli.options import answer, open_run
    from headrace.cli.views.run_tables import status_document
    from headrace.runs.describe import describe

    found = open_run(run)
    answer(describe(found), output, lambda: status_document(found, time.time()))
