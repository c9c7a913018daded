"""`headrace logs`."""

from __future__ import annotations

import click


@click.command("logs", short_help="Show or follow what the programs of a run wrote.")
@click.argument("selector", metavar="RUN[/GROUP[/HOST[/RANK]]]")
@click.option("-f", "--follow", is_flag=True, help="Wait for further lines until the run has finished.")
@click.option("--timestamps", is_flag=True, help="Show when each line was written (UTC).")
def command(selector: str, follow: bool, timestamps: bool) -> int:
    """Show the lines of all programs of a run, or of some, in the order of time.

    RUN is a run id or a job name (its newest run). RANK is a global rank, `feed` or `agent`; GROUP/HOST[RANK], as
    the lines themselves say it, works too.

    \b
    Examples:
      headrace logs my-job
      headrace logs my-job/dnn_group/algo-1/0 -f
      headrace logs my-job/data_group --timestamps
    """
    from headrace.cli.options import open_run
    from headrace.cli.terminal import Terminal
    from headrace.runs import parse_selector

    name, chosen = parse_selector(selector)
    run = open_run(name)
    terminal = Terminal.standard()
    for line in run.logs(chosen, follow=follow, on_idle=terminal.flush):
        terminal.log(line, timestamps)
    for damage in run.damage:
        click.echo(f"headrace: {damage}", err=True)
    if follow:
        state = run.state()
        click.echo(f"headrace: {run.id}: {state.status.value}" + (f": {state.cause}" if state.cause else ""), err=True)
    return 0
