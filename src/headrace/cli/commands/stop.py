"""`headrace stop`."""

from __future__ import annotations

import click


@click.command("stop", short_help="Stop a run that is going on.")
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill its programs instead of asking them to end.")
def command(run: str, now: bool) -> None:
    """Stop RUN, a run id or a job name (its newest run).

    The programs get SIGTERM and time to save, then SIGKILL. Returns at once; `headrace logs RUN -f` shows the end.

    \b
    Examples:
      headrace stop my-job
      headrace stop my-job-20261120-190102-1a2b --now
    """
    from headrace import engines
    from headrace.cli.options import open_run
    from headrace.errors import UsageError
    from headrace.runs.store import is_copy

    found = open_run(run)
    if is_copy(found.paths) and not found.finished:
        where = f"on {found.header.node}" if found.header.node else f"one of the engine {found.header.engine}"
        raise UsageError(f"{found.id} is a copy: the run is {where}", hint="stop it where it was started")
    if not found.finished and engines.stop(found, now=now):
        click.echo(f"stopping {found.id}")
    else:
        click.echo(f"{found.id} is not running: {found.status.value}")
