"""`headrace grid export`: a grid as files for another system that starts it."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.commands.cloud.actions import account_options, dry_run_option, update_option, write
from headrace.cli.commands.grid.batch_export import exported, queue_options
from headrace.cli.options import output_option


@click.group("export", short_help="A grid as files for AWS Batch.")
def command() -> None:
    """A grid as files for another system that starts its lines.

    \b
    Example:
      headrace grid export batch array.yaml --to batch
    """


@command.command("batch", short_help="Array file, job definition, image, roles; sends nothing.")
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
