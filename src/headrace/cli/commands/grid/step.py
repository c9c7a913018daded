"""`headrace grid step`."""

from __future__ import annotations

import click


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
def command(index: int, bundle: str, runs: int, quiet: bool) -> int:
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
