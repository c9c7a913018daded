"""`headrace ps`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("ps", short_help="List the runs that are going on.")
@click.option("-a", "--all", "every", is_flag=True, help="Include runs that have ended; newest last.")
@output_option
def command(every: bool, output: str) -> None:
    """List the runs that were started here and are going on, or all of them.

    Runs of every engine are listed; a platform is asked what became of those that have not ended. A run whose engine
    was killed is shown as Failed. A run by which `headrace serve` plays the service for another one
    that is listed is shown with --all only. With --all, every run has its size on disk (`headrace rm` and
    `headrace prune` remove runs), and standard error names the runs whose header cannot be read; the list leaves them
    out.

    \b
    Examples:
      headrace ps
      headrace ps --all --output json
    """
    import time

    import msgspec

    from headrace.cli.options import answer, ask_engines
    from headrace.cli.views.run_tables import runs_document
    from headrace.engines.served_runs import served_runs
    from headrace.runs import list_runs
    from headrace.runs.disk.remove_runs import size_of
    from headrace.runs.run_listing import run_line
    from headrace.runs.store import unreadable_headers

    found = list_runs(alive=ask_engines())
    serves = served_runs(found)
    runs = [run for run in found if every or not (run.finished or run.id in serves)]
    lines = [msgspec.structs.replace(run_line(run, time.time()), serves=serves.get(run.id, "")) for run in runs]
    if every:
        lines = [msgspec.structs.replace(line, bytes=size_of(run.paths)) for line, run in zip(lines, runs, strict=True)]
    answer(lines, output, lambda: runs_document(lines, every))
    if every:
        for damage in unreadable_headers():
            click.echo(f"headrace: {damage}", err=True)
