"""What commands that export a grid to AWS Batch have in common: their options, and reading the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from headrace.grid.batch.export_batch import BatchExport

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
    from headrace.cloud.own_wheel import own_wheel
    from headrace.grid.batch.export_batch import export_batch
    from headrace.grid.load_grid import load_grid
    from headrace.grid.plan_grid import plan_grid

    grid = load_grid(file)
    options = grid.file.batch.changed({"queue": queue, "bundle": bundle, "region": region})
    there = options.region or Aws(None, profile).region
    made = export_batch(grid, options, plan_grid(grid), own_wheel(), there)
    if made.note:
        click.echo(f"note: {made.note}", err=True)
    return made
