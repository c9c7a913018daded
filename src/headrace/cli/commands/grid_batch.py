"""`headrace grid export`, `submit`, `step` and `copy`: a grid on AWS Batch, one child a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.options import (
    account_options,
    dry_run_option,
    echo_json,
    output_option,
    progress,
    update_option,
    write,
)

if TYPE_CHECKING:
    from headrace.grid.batch.submit_array import BatchExport


F = TypeVar("F", bound=Callable[..., object])


def queue_options(command: F) -> F:
    """Adds ``--queue`` and ``--bundle``."""
    queue = click.option("--queue", metavar="NAME", help="Job queue of AWS Batch: batch.queue of the grid's file.")
    bundle = click.option(
        "--bundle", metavar="S3URI", help="Where the children's files are stored: batch.bundle of the grid's file."
    )
    return queue(bundle(command))


def exported(file: str, queue: str | None, bundle: str | None, region: str | None, profile: str | None) -> BatchExport:
    """Reads and plans a grid, and exports it.

    Args:
        file: of the grid.
        queue, bundle, region, profile: what the options say.

    Raises:
        HeadraceError: it cannot run on AWS Batch.
    """
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.image_files import own_wheel
    from headrace.grid.batch.submit_array import export_batch
    from headrace.grid.load_grid import load_grid
    from headrace.grid.plan_grid import plan_grid

    grid = load_grid(file)
    options = grid.file.batch.changed({"queue": queue, "bundle": bundle, "region": region})
    there = options.region or Aws(None, profile).region
    made = export_batch(grid, options, plan_grid(grid), own_wheel(), there)
    if made.note:
        click.echo(f"note: {made.note}", err=True)
    return made


@click.group("export", short_help="A grid as files for AWS Batch.")
def export() -> None:
    """A grid as files for another system that starts its lines.

    \b
    Example:
      headrace grid export batch array.yaml --to batch
    """


@export.command("batch", short_help="Array file, job definition, image, roles; sends nothing.")
@click.argument("file", metavar="ARRAY.yaml")
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the files to DIR.",
)
@queue_options
@account_options
@update_option
@dry_run_option
@output_option
def batch(
    file: str,
    folder: Path,
    queue: str | None,
    bundle: str | None,
    region: str | None,
    profile: str | None,
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Write what AWS Batch needs to run ARRAY.yaml as an array job, one child a line. Nothing is sent.

    DIR has the bundle that the children read (array file, jobs, code), the definition of their image, their roles, the
    requests RegisterJobDefinition and SubmitJob, and a README.md with the commands. Every line's job is checked as
    SageMaker would. `headrace grid submit` sends the same.

    \b
    Examples:
      headrace grid export batch array.yaml --to batch
      headrace grid export batch array.yaml --to batch --queue training --bundle s3://my-bucket/grids
    """
    made = exported(file, queue, bundle, region, profile)
    then = f"{folder / 'README.md'} says what to do with them; `headrace grid submit {file}` does it"
    write(made.files, folder, update=update, dry_run=dry_run, output=output, then=then)


@click.command("submit", short_help="Run it on AWS Batch: one child of an array job a line.")
@click.argument("file", metavar="ARRAY.yaml")
@queue_options
@account_options
@click.option(
    "--again",
    is_flag=True,
    help="Submit it once more when an earlier submission has failed: its failed lines run again.",
)
@dry_run_option
@output_option
def submit(
    file: str,
    queue: str | None,
    bundle: str | None,
    region: str | None,
    profile: str | None,
    again: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Store the bundle of ARRAY.yaml in S3, register the job definition if it is another one, and submit the array job.

    A grid that was submitted already is found by the name of its job, from any machine, and nothing is sent. The image
    and the roles must be there: `headrace grid export batch` writes them, with the commands that make them. This
    command may end at once; the children work without it.

    \b
    Examples:
      headrace grid submit array.yaml --dry-run
      headrace grid submit array.yaml --queue training --bundle s3://my-bucket/grids
      aws batch describe-jobs --jobs $(headrace grid submit array.yaml)
      headrace grid submit array.yaml --dry-run --output json
    """
    from contextlib import closing

    from headrace.cloud.aws_calls import Aws
    from headrace.grid.batch.submit_array import submit_array

    export = exported(file, queue, bundle, region, profile)
    names = export.names
    with closing(Aws(names.region, profile)) as aws:
        done = submit_array(export, aws, profile or "", progress, again=again, dry_run=dry_run)
    if output == "json":
        where = {"region": names.region, "queue": names.queue, "definition": names.definition, "bundle": names.bundle}
        echo_json({**vars(done), **where, "lines": export.lines, "dry_run": dry_run})
    elif dry_run:
        for words, needed in (
            (f"{names.bundle}: {len(done.uploads)} files would be stored", done.uploads),
            (f"{names.definition}: a revision would be registered", done.registers),
            (f"{names.copies}: data would be copied before any line begins", done.submits and export.copying),
            (f"{names.job}: {export.lines} lines would be submitted to {names.queue}", done.submits),
            (f"{names.job}: was submitted before: {done.job_id}, {done.status}", not done.submits),
        ):
            if needed:
                click.echo(words)
        click.echo("nothing was changed")
    else:
        if not done.submits:
            progress(f"{names.job} was submitted before: {done.status}")
        click.echo(done.job_id)


@click.command("step", short_help="Run one line: what a child of AWS Batch does.")
@click.option(
    "--index",
    type=int,
    required=True,
    envvar="AWS_BATCH_JOB_ARRAY_INDEX",
    metavar="N",
    help="Index of the line, from 0.  [default: AWS_BATCH_JOB_ARRAY_INDEX]",
)
@click.option("--bundle", required=True, metavar="S3URI|DIR", help="The bundle that was exported or submitted.")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=1,
    envvar="GRID_RUNS",
    metavar="N",
    help="How often the line may run: a job that failed or was stopped is followed by another one.  [default: 1]",
)
@click.option("-q", "--quiet", is_flag=True, help="Show only how the job ends.")
def step(index: int, bundle: str, runs: int, quiet: bool) -> int:
    """Start the training job of line N, print its log, and exit as it ended. A job that is there already is adopted.

    The bundle has all that is needed: the grid's file, its database and the machine that planned it are not asked. The
    job's name follows from the line, so a second attempt finds the job of the first one, whatever became of that.

    SIGTERM, which AWS Batch sends to end a child, and Ctrl-C stop the training job with time to save.

    Exit codes: 0 Completed, 1 Failed, 2 the line cannot start, 4 stopped because its budget was used up, 75 AWS could
    not be reached: try again, 130 stopped.

    \b
    Examples:
      headrace grid step --index 3 --bundle s3://my-bucket/grids/campaigns-0123456789ab
      AWS_BATCH_JOB_ARRAY_INDEX=3 headrace grid step --bundle batch/bundle
    """
    from headrace.cli.follow import follow
    from headrace.cli.options import failed_by
    from headrace.cli.views.run_screen import RunScreen
    from headrace.cli.views.terminal import Terminal
    from headrace.engines.handle import Handle
    from headrace.errors import HeadraceError
    from headrace.grid.batch.batch_requests import TRY_AGAIN
    from headrace.grid.batch.run_step import may_pass, read_bundled_line, started_line

    def start() -> Handle:
        found = read_bundled_line(bundle, index)
        handle, adopted = started_line(found, runs)
        what = "adopts" if adopted else "has started"
        click.echo(f"headrace: line {index} ({found.line.place}) {what} {handle.id} in {found.line.region}", err=True)
        return handle

    screen = RunScreen(Terminal.standard(), quiet=quiet)
    try:
        handle = follow(start, screen)
    except HeadraceError as error:
        failed = failed_by(error)
        return TRY_AGAIN if may_pass(error) else failed
    screen.end(handle.run)
    code = handle.exit_code
    return 1 if code is None else code


@click.command("copy", short_help="Make the copies of data that lines of a bundle read.")
@click.option("--bundle", required=True, metavar="S3URI|DIR", help="The bundle that was exported or submitted.")
def copy(bundle: str) -> int:
    """Make the copies of data that lines of a bundle read: what the job before an array job of AWS Batch does.

    What is there already is not copied again. Nothing is copied when the data have changed since the bundle was
    exported.

    Exit codes: 0 all copies are whole, 1 one cannot be made, 2 the bundle is wrong, 75 AWS could not be reached: try
    again, 130 stopped.

    \b
    Examples:
      headrace grid copy --bundle s3://my-bucket/grids/campaigns-0123456789ab
      headrace grid copy --bundle batch/bundle
    """
    import threading

    from headrace.catalog.prices import CURRENCY
    from headrace.cli.follow import Interrupts
    from headrace.cli.options import failed_by
    from headrace.errors import HeadraceError
    from headrace.grid.batch.batch_requests import STOPPED, TRY_AGAIN
    from headrace.grid.batch.grid_bundle import make_copy
    from headrace.grid.batch.run_step import may_pass, read_bundled_grid
    from headrace.grid.copied_object import CopyFailed
    from headrace.insight.billing import amount

    stop = threading.Event()
    try:
        with Interrupts() as interrupts:
            interrupts.on_signal = stop.set
            for copy in read_bundled_grid(bundle).copies:
                marker, copied, cost = make_copy(copy, stop)
                click.echo(
                    f"{copy.place} is in {copy.region}: {marker.objects} objects, {marker.bytes / 1e9:.4g} GB, "
                    f"{copied / 1e9:.4g} GB copied now, {amount(cost)} {CURRENCY}: {copy.target}"
                )
    except HeadraceError as error:
        failed = failed_by(error)
        if stop.is_set():
            return STOPPED
        passing = error.passing if isinstance(error, CopyFailed) else may_pass(error)
        return TRY_AGAIN if passing else failed
    return 0
