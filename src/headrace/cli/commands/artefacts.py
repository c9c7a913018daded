"""`headrace files` and `headrace fetch`: what a run made, and the record of a run elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.instance.storage import Store
    from headrace.runs import RunPaths
    from headrace.runs.disk.unkept_files import RunFile
    from headrace.runs.segment_reader import Copied, RecordCopy


@click.command("files", short_help="List what the programs of a run wrote, and copy it out.")
@click.argument("run")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", type=click.Path(), metavar="DIR", help="Copy the files to DIR, which must not hold them yet.")
@output_option
def files(run: str, patterns: tuple[str, ...], to: str | None, output: str) -> None:
    """List the files that the programs of RUN wrote and that lie in its directory on this machine.

    Of every host: what it added or changed below its working directory (`code`), its `model`, `output` and
    `checkpoints`; then the model and output of the run, unless `output_path` names another place. What a host wrote to
    its own /tmp is gone; `keep` in the job file keeps it.

    PATTERN chooses files by host and name: `algo-1/code/*.csv`, `*/results/*`; a `*` stands for slashes, too.

    \b
    Examples:
      headrace files my-job
      headrace files my-job '*/results/*' --to results
      headrace files my-job --output json
    """
    import fnmatch
    from pathlib import Path

    from headrace.cli.options import echo_json, open_run
    from headrace.runs.disk.unkept_files import files_of

    paths = open_run(run).paths
    files = [
        file
        for file in files_of(paths)
        if not patterns or any(fnmatch.fnmatchcase(_name(file), pattern) for pattern in patterns)
    ]
    copies = [None if to is None else _copy(file, Path(to)) for file in files]
    if output == "json":
        listed = [
            {"host": file.host, "name": file.name, "path": str(copy or file.path), "bytes": file.bytes}
            for file, copy in zip(files, copies, strict=True)
        ]
        echo_json({"run_id": paths.id, "run_dir": str(paths.root), "files": listed})
    else:
        _show(files, to, paths.id)


def _name(file: RunFile) -> str:
    return f"{file.host}/{file.name}" if file.host else file.name


def _copy(file: RunFile, target: Path) -> Path:
    """Copies a file to the same name below a folder; a link is never followed, and nothing is written over."""
    import os
    import shutil

    from headrace.record_files import open_record

    copy = target / _name(file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_record(file.path), "rb") as source, copy.open("xb") as copied:
        shutil.copyfileobj(source, copied)
        status = os.fstat(source.fileno())
    copy.chmod(status.st_mode & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    return copy


def _show(files: list[RunFile], to: str | None, run_id: str) -> None:
    from headrace.cli.views.table import show
    from headrace.insight.render.document import Sentence, document, section, table
    from headrace.insight.render.plain_text import size_text
    from headrace.runs.event_text import counted

    if not files:
        show(document(section(Sentence(f"{run_id}: no such file on this machine"))))
        return
    where = "" if to is None else f", copied to {to}"
    total = f"{counted(len(files), 'file')}, {size_text(sum(file.bytes for file in files))}{where}"
    rows = ((_name(file), size_text(file.bytes)) for file in files)
    show(document(section(table(("file", "size"), rows, ("size",)), Sentence(total))))


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
def fetch(record: str, into: str | None, follow: bool, every: float, output: str) -> None:
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
