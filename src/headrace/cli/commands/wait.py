"""`headrace wait`."""

from __future__ import annotations

import click


@click.command("wait", short_help="Wait for the end of a run; exit as the run does.")
@click.argument("run")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop waiting after so many seconds; the run continues.",
)
def command(run: str, timeout: float | None) -> int:
    """Wait until RUN, a run id or a job name (its newest run), has ended.

    Ctrl-C ends the wait, not the run.

    Exit codes: those of the run (0 Completed, 1 Failed, 130 stopped); 124 on timeout.

    \b
    Examples:
      headrace wait my-job && headrace report my-job
      headrace wait my-job --timeout 600
    """
    import time

    from headrace.cli.options import open_run
    from headrace.runs.reader import POLL_SECONDS, EndOfRun

    found = open_run(run)
    end = EndOfRun(found)
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    while not end.reached():
        rest = deadline - time.monotonic()
        if rest <= 0:
            click.echo(f"{found.id}: {found.status.value}, after {timeout:g} s of waiting", err=True)
            return TIME_IS_OVER
        time.sleep(min(POLL_SECONDS, rest))
    state = found.state()
    click.echo(f"{found.id}: {state.secondary_status.value}" + (f": {state.cause}" if state.cause else ""))
    return 1 if state.exit_code is None else state.exit_code


TIME_IS_OVER = 124
"""Exit code, as of timeout(1)."""
