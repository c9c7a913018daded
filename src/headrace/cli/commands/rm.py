"""`headrace rm` and `headrace prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.runs.disk.remove_runs import Ended


@click.command("rm", short_help="Remove runs that have ended, with all that they left on this machine.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@output_option
def command(runs: tuple[str, ...], output: str) -> None:
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
    from headrace.grid.journal.read_grid import grid_names
    from headrace.grid.retention import GridJobs, list_ended
    from headrace.own_runs import started_here
    from headrace.runs import Run
    from headrace.runs.disk.remove_runs import Ended
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
    from headrace.grid.retention import remove_ended
    from headrace.insight.render.plain_text import size_text
    from headrace.runs.disk.remove_runs import size_of
    from headrace.runs.event_text import counted

    listed: list[dict[str, object]] = []
    said = "would remove" if dry_run else "removed"
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
    from headrace.cli.log_filter import age_seconds
    from headrace.cli.options import ask_engines
    from headrace.cli.user_settings import Retention
    from headrace.errors import UsageError

    if older is None and keep is None:
        raise UsageError("prune needs a rule", hint="for example --older 30d, --keep 5, or both")
    if older is not None and age_seconds(older) is None:
        raise UsageError(f"--older {older!r} is not an age", hint="for example --older 12h, or --older 30d")
    remove(Retention(older=older, keep=keep).chosen(ask_engines()), output, dry_run=dry_run)
