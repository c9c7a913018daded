"""`headrace grid submit`."""

from __future__ import annotations

import click

from headrace.cli.commands.cloud.actions import account_options, dry_run_option, progress
from headrace.cli.commands.grid.batch_export import exported, queue_options
from headrace.cli.options import echo_json, output_option


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
def command(
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
