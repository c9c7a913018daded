"""`headrace ps`, `status`, `timeline`, `wait`, `stop`, `rm` and `prune`: the runs of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.runs import Run
    from headrace.runs.disk_use import Ended


@click.command("ps", short_help="List the runs that are going on.")
@click.option("-a", "--all", "every", is_flag=True, help="Include runs that have ended; newest last.")
@output_option
def ps(every: bool, output: str) -> None:
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
    from headrace.engines.sagemaker.sagemaker_ticket import served_runs
    from headrace.runs import list_runs
    from headrace.runs.describe import run_line
    from headrace.runs.disk_use import size_of
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


@click.command("status", short_help="Show the state of a run, why it failed, and for how long each host was needed.")
@click.argument("run")
@output_option
def status(run: str, output: str) -> None:
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


@click.command("timeline", short_help="Show the life of every host of a run, and its events.")
@click.argument("run")
@output_option
def timeline(run: str, output: str) -> None:
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
    from headrace.cli.views.run_tables import timeline_document
    from headrace.insight.run_cache import RunIndex
    from headrace.runs import Run

    found = RunIndex(Run.open(run).paths, ask_engines()).timeline(time.time())
    answer(found, output, lambda: timeline_document(found))


@click.command("wait", short_help="Wait for the end of a run; exit as the run does.")
@click.argument("run")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop waiting after so many seconds; the run continues.",
)
def wait(run: str, timeout: float | None) -> int:
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


@click.command("stop", short_help="Stop runs that are going on.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="Kill their programs instead of asking them to end.")
def stop(runs: tuple[str, ...], now: bool) -> int:
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


@click.command("rm", short_help="Remove runs that have ended, with all that they left on this machine.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@output_option
def rm(runs: tuple[str, ...], output: str) -> None:
    """Remove the directories of runs that have ended: record, logs, code, what their hosts wrote, model and output
    without an `output_path`. What is stored elsewhere (`output_path`, `checkpoint_s3_uri`, `record`) stays.

    RUN is the id of a run, which `headrace ps --all` lists with its size; the name of a job is not enough. The name of
    a grid that has ended removes it with its runs: its report is made of them, so none of them goes alone. If one of
    all these cannot be removed, none is.

    \b
    Examples:
      headrace rm my-job-20261120-190102-1a2b
    """
    from headrace.cli.options import ask_engines
    from headrace.errors import EngineRefused, UsageError
    from headrace.grid.read_grid import grid_names
    from headrace.grid.retention import GridJobs, list_ended
    from headrace.own_runs import started_here
    from headrace.runs import Run
    from headrace.runs.disk_use import Ended
    from headrace.runs.store import find_run, job_name_of, list_paths_of

    alive = ask_engines()
    grids, jobs = {*grid_names()}, GridJobs()
    ended = {entry.grid: entry for entry in list_ended(alive, _tell)} if grids & {*runs} else {}
    chosen = []
    for run_id in dict.fromkeys(runs):
        if run_id in grids:
            if run_id not in ended:
                hint = f"`headrace grid status {run_id}` shows it, `headrace grid stop {run_id}` ends it"
                raise EngineRefused(f"the grid {run_id} has not ended", hint=hint)
            chosen.append(ended[run_id])
            continue
        paths = find_run(run_id)
        if paths.id != run_id:
            others = ", ".join(each.id for each in list_paths_of(run_id)[-3:])
            raise UsageError(f"{run_id!r} is not the id of a run", hint=f"name the run, such as {others or paths.id}")
        if started_here(paths.root) and not Run(paths, alive).finished:
            raise EngineRefused(f"{paths.id} goes on", hint=f"stop it first: headrace stop {paths.id}")
        if grid := jobs.grid_of(job_name_of(paths.id)):
            hint = f"`headrace rm {grid}` removes the grid with its runs, when it has ended"
            raise EngineRefused(f"{paths.id} is of the grid {grid}, whose report is made of its runs", hint=hint)
        chosen.append(Ended(paths.id, 0.0, (paths,)))
    remove(chosen, output, dry_run=False)


def _tell(words: str) -> None:
    click.echo(f"headrace: {words}", err=True)


def remove(chosen: list[Ended], output: str, *, dry_run: bool) -> None:
    """Removes runs, and grids with theirs, and says what that brings. Raises UsageError and OSError."""
    from headrace.cli.options import echo_json
    from headrace.engines.local.engine import sweep_killed_runs
    from headrace.grid.retention import remove_ended
    from headrace.insight.render.plain_text import size_text
    from headrace.runs.disk_use import size_of
    from headrace.runs.event_text import counted

    listed: list[dict[str, object]] = []
    said = "would remove" if dry_run else "removed"
    if not dry_run:
        sweep_killed_runs()  # temporary files and mounts of theirs are not in their directories
    for entry in chosen:
        sizes = {paths.id: size_of(paths) for paths in entry.runs}
        if not dry_run:
            remove_ended(entry)
        listed += ({"run_id": run_id, "bytes": size} for run_id, size in sizes.items())
        if output != "json":
            for run_id, size in sizes.items():
                click.echo(f"{said} {run_id}, {size_text(size)}")
            if entry.grid:
                click.echo(f"{said} grid {entry.grid}, with {counted(len(sizes), 'run')} of it")
    total = sum(int(str(run["bytes"])) for run in listed)
    if output == "json":
        grids = [entry.grid for entry in chosen if entry.grid]
        echo_json({"dry_run": dry_run, "bytes": total, "runs": listed, "grids": grids})
    elif len(listed) != 1:
        click.echo(f"{counted(len(listed), 'run')}, {size_text(total)}")


@click.command("prune", short_help="Remove old runs by a rule: by age, all but the newest of each job.")
@click.option("--older", metavar="AGE", help="Runs that ended longer ago than this: 12h, 30d.")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="The newest N runs of each job stay, however old."
)
@click.option("--dry-run", is_flag=True, help="Say which runs would go; remove nothing.")
@output_option
def prune(older: str | None, keep: int | None, dry_run: bool, output: str) -> None:
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
    from headrace.cli.options import age_seconds, ask_engines
    from headrace.cli.user_settings import Retention
    from headrace.errors import UsageError

    if older is None and keep is None:
        raise UsageError("prune needs a rule", hint="for example --older 30d, --keep 5, or both")
    if older is not None and age_seconds(older) is None:
        raise UsageError(f"--older {older!r} is not an age", hint="for example --older 12h, or --older 30d")
    remove(Retention(older=older, keep=keep).chosen(ask_engines()), output, dry_run=dry_run)
