"""`headrace fetch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.instance.storage import Store
    from headrace.runs import RunPaths
    from headrace.runs.segment_reader import Copied, RecordCopy

SILENT_SECONDS = 30.0
"""Without a new part for so long, `fetch --follow` says so."""


@click.command("fetch", short_help="Copy the record of a run from where its job stores it (s3://), once or live.")
@click.argument("record", metavar="RUN|S3_URI")
@click.option(
    "--into", type=click.Path(), metavar="DIR", help="Folder of runs for the copy.  [default: that of all runs]"
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has finished and all of it is copied.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: how often to ask for what is new.",
)
@output_option
def command(record: str, into: str | None, follow: bool, every: float, output: str) -> None:
    """Copy the record of a run, which its job stores with `record: {uri: s3://...}`, into the folder of runs.

    S3_URI is the job's `record.uri` and the run's id, or the name of the job (its newest run). RUN is a copy that is
    here already: only what is new is asked for. Every command reads a copy: while `fetch --follow` goes on,
    `headrace logs -f`, `status`, `report` and `ui` show the run live.

    \b
    Examples:
      headrace fetch s3://my-bucket/runs/my-job
      headrace fetch s3://my-bucket/runs/my-job-20261120-190102-1a2b --follow
      headrace fetch my-job --output json
    """
    import time
    from pathlib import Path

    from headrace.cli.options import echo_json
    from headrace.instance.storage import Store
    from headrace.runs import Run, runs_dir
    from headrace.runs.segment_reader import RecordCopy

    with Store() as store:
        paths = _copy_of(store, record, runs_dir() if into is None else Path(into))
        copy = RecordCopy(store, paths)
        copied = copy.update()
        if follow and not copied.complete:
            click.echo(f"headrace: copying {paths.id} to {paths.root}", err=True)
            copied = _follow(copy, every)
    run = Run(paths)
    if output == "json":
        echo_json(
            {
                "run_id": paths.id,
                "run_dir": str(paths.root),
                "uri": copied.place,
                "segments": copy.segments,
                "bytes": copy.bytes,
                "complete": copied.complete,
                "stored": copied.t,
                "status": run.status,
            }
        )
        return
    from headrace.insight.render.plain_text import size_text

    ago = max(0.0, time.time() - copied.t)
    end = "complete" if copied.complete else f"the newest part was stored {ago:.0f} s ago"
    click.echo(f"{paths.id}: {run.status.value}; {size_text(copy.bytes)} copied to {paths.root}; {end}")


def _copy_of(store: Store, record: str, runs: Path) -> RunPaths:
    """Returns the copy that is asked for, which is made if it is not there."""
    from headrace.errors import UsageError
    from headrace.own_runs import require_started_here
    from headrace.runs.segment_reader import open_copy, read_copied
    from headrace.runs.segments import find_record
    from headrace.runs.store import find_run

    if "://" in record:
        return open_copy(store, *find_record(store, record), runs, entered=True)
    paths = find_run(record, runs)
    if read_copied(paths) is None:
        raise UsageError(f"{paths.root} is the record itself, and no copy", "every command reads it as it is")
    require_started_here(paths.root, "nothing is added to a copy of somebody else's")
    return paths


def _follow(copy: RecordCopy, every: float) -> Copied:
    """Copies what is new until the copy is complete. A place without an answer is asked again."""
    import time

    from headrace.errors import RecordDamaged, StorageError

    told = ""
    tell_at = SILENT_SECONDS  # then after twice as long, and so on
    while True:
        time.sleep(every)
        try:
            copied = copy.update()
        except RecordDamaged:
            raise
        except StorageError as error:
            if error.message != told:
                told = error.message
                click.echo(f"headrace: {told}; trying again", err=True)
            continue
        told = ""
        if copied.complete:
            return copied
        silent = time.time() - copied.t
        if silent >= tell_at:
            tell_at *= 2
            click.echo(f"headrace: nothing new for {silent:.0f} s", err=True)
        elif silent < SILENT_SECONDS:
            tell_at = SILENT_SECONDS
