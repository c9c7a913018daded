"""`headrace rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.runs import RunPaths


@click.command("rm", short_help="Remove runs that have ended, with all that they left on this machine.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@output_option
def command(runs: tuple[str, ...], output: str) -> None:
    """Remove the directories of runs that have ended: record, logs, code, what their hosts wrote, model and output
    without an `output_path`. What is stored elsewhere (`output_path`, `checkpoint_s3_uri`, `record`) stays.

    RUN is the id of a run, which `headrace ps --all` lists with its size; the name of a job is not enough. If one of
    them cannot be removed, none is.

    \b
    Examples:
      headrace rm my-job-20261120-190102-1a2b
    """
    from headrace.cli.options import ask_engines
    from headrace.errors import EngineRefused, UsageError
    from headrace.own_runs import started_here
    from headrace.runs import Run
    from headrace.runs.store import find_run, list_paths_of

    alive = ask_engines()
    chosen = []
    for run_id in dict.fromkeys(runs):
        paths = find_run(run_id)
        if paths.id != run_id:
            others = ", ".join(each.id for each in list_paths_of(run_id)[-3:])
            raise UsageError(f"{run_id!r} is not the id of a run", hint=f"name the run, such as {others or paths.id}")
        if started_here(paths.root) and not Run(paths, alive).finished:
            raise EngineRefused(f"{paths.id} goes on", hint=f"stop it first: headrace stop {paths.id}")
        chosen.append(paths)
    remove(chosen, output, dry_run=False)


def remove(chosen: list[RunPaths], output: str, *, dry_run: bool) -> None:
    """Removes runs, and says what that brings. Raises UsageError and OSError."""
    from headrace.cli.options import echo_json
    from headrace.insight.render.plain_text import size_text
    from headrace.runs.disk.remove_runs import remove_run, size_of
    from headrace.runs.event_text import counted

    listed: list[dict[str, object]] = []
    total = 0
    for paths in chosen:
        size = size_of(paths)
        if not dry_run:
            remove_run(paths)
        total += size
        listed.append({"run_id": paths.id, "bytes": size})
        if output != "json":
            click.echo(f"{'would remove' if dry_run else 'removed'} {paths.id}, {size_text(size)}")
    if output == "json":
        echo_json({"dry_run": dry_run, "bytes": total, "runs": listed})
    elif len(chosen) != 1:
        click.echo(f"{counted(len(chosen), 'run')}, {size_text(total)}")
