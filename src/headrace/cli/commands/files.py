"""`headrace files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.runs.disk.unkept_files import RunFile


@click.command("files", short_help="List what the programs of a run wrote, and copy it out.")
@click.argument("run")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", type=click.Path(), metavar="DIR", help="Copy the files to DIR, which must not hold them yet.")
@output_option
def command(run: str, patterns: tuple[str, ...], to: str | None, output: str) -> None:
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
