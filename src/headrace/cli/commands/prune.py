"""`headrace prune`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("prune", short_help="Remove old runs by a rule: by age, all but the newest of each job.")
@click.option("--older", metavar="AGE", help="Runs that ended longer ago than this: 12h, 30d.")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="The newest N runs of each job stay, however old."
)
@click.option("--dry-run", is_flag=True, help="Say which runs would go; remove nothing.")
@output_option
def command(older: str | None, keep: int | None, dry_run: bool, output: str) -> None:
    """Remove runs that have ended, as `headrace rm` does: those that are older than AGE, and are not among the newest N
    of their job. One of the two at least must be given. Runs that go on, those that were neither started nor fetched
    here, and directories that are no runs, stay.

    A grid that has ended goes with its runs, as one run would; of all grids the newest N stay. The runs of a grid that
    has not ended stay.

    `retention: {older: 30d, keep: 5}` in settings.yaml of $HEADRACE_HOME (~/.headrace) is the same rule; it is applied
    whenever `headrace run` starts a run and none goes on.

    \b
    Examples:
      headrace prune --older 30d --keep 5 --dry-run
      headrace prune --keep 3
    """
    import time

    from headrace.cli.commands.rm import remove
    from headrace.cli.log_filter import age_seconds
    from headrace.cli.options import ask_engines
    from headrace.errors import UsageError
    from headrace.grid.retention import list_ended
    from headrace.runs.disk.remove_runs import to_prune

    if older is None and keep is None:
        raise UsageError("prune needs a rule", hint="for example --older 30d, --keep 5, or both")
    age = None if older is None else age_seconds(older)
    if older is not None and age is None:
        raise UsageError(f"--older {older!r} is not an age", hint="for example --older 12h, or --older 30d")
    ended = list_ended(ask_engines(), lambda words: click.echo(f"headrace: {words}", err=True))
    remove(to_prune(ended, age, keep or 0, time.time()), output, dry_run=dry_run)
