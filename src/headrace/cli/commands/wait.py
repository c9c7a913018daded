"""`headrace wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headrace.runs import Run


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

    Ctrl-C ends the wait, not the run. If the end of the run's record could not be stored (`record` in the job file),
    this tries it again, for two minutes at most, on the machine of the run.

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
    _store_end(found, min(deadline - time.monotonic(), RECORD_SECONDS))
    return 1 if state.exit_code is None else state.exit_code


def _store_end(run: Run, seconds: float) -> None:
    """Stores the end of the record, if that is left to do, and says what came of it."""
    import msgspec

    from headrace.cli.follow import Interrupts
    from headrace.engines.late_record import store_late
    from headrace.runs.event_text import record_text

    def tell(words: str) -> None:
        click.echo(f"headrace: {words}", err=True)

    with Interrupts() as interrupts:
        try:
            store_late(run, max(0.0, seconds), tell, lambda: bool(interrupts.count))
        except (OSError, msgspec.DecodeError) as error:
            tell(f"warning: the end of the record cannot be stored: {error}")
    not_stored = run.state().record_not_stored
    if not_stored is not None:
        tell(f"warning: {record_text(not_stored)}")


RECORD_SECONDS = 120.0
"""For the end of the record to be stored."""

TIME_IS_OVER = 124
"""Exit code, as of timeout(1)."""
