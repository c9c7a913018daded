"""`headrace stop`."""

from __future__ import annotations

import click


@click.command("stop", short_help="Stop runs that are going on.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="Kill their programs instead of asking them to end.")
def command(runs: tuple[str, ...], now: bool) -> int:
    """Stop each RUN, a run id or a job name (its newest run).

    The programs get SIGTERM and time to save, then SIGKILL. Returns at once; `headrace logs RUN -f` shows the end. Of
    several runs each is stopped, also when another one cannot be; the exit code is then that of the first error.

    \b
    Examples:
      headrace stop my-job
      headrace stop my-job-20261120-190102-1a2b --now
      headrace stop my-job other-job
    """
    from headrace.cli.options import failed_by
    from headrace.errors import HeadraceError

    codes = []
    for run in dict.fromkeys(runs):
        try:
            _stop(run, now)
        except HeadraceError as error:
            codes.append(failed_by(error))
    return codes[0] if codes else 0


def _stop(run: str, now: bool) -> None:
    """Stops one run. Raises HeadraceError."""
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
