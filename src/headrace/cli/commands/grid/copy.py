"""`headrace grid copy`."""

from __future__ import annotations

import click


@click.command("copy", short_help="Make the copies of data that lines of a bundle read.")
@click.option("--bundle", required=True, metavar="S3URI|DIR", help="The bundle that was exported or submitted.")
def command(bundle: str) -> int:
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
    from headrace.grid.batch.frozen_copies import make_copy
    from headrace.grid.batch.run_step import may_pass, read_bundled_grid
    from headrace.grid.copies.copy_failure import CopyFailed
    from headrace.insight.cost.billing import amount

    stop = threading.Event()
    try:
        with Interrupts() as interrupts:
            interrupts.on_signal = stop.set
            for copy in read_bundled_grid(bundle).copies:
                done = make_copy(copy, stop, lambda _: None)
                click.echo(
                    f"{copy.place} is in {copy.region}: {done.objects} objects, {done.bytes / 1e9:.4g} GB, "
                    f"{done.bytes_copied / 1e9:.4g} GB copied now, {amount(done.cost)} {CURRENCY}: {done.target}"
                )
    except HeadraceError as error:
        failed = failed_by(error)
        if stop.is_set():
            return STOPPED
        passing = error.passing if isinstance(error, CopyFailed) else may_pass(error)
        return TRY_AGAIN if passing else failed
    return 0
