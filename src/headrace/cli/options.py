"""What several commands share: options, JSON output, opening runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from headrace.runs import Run

F = TypeVar("F", bound=Callable[..., object])


def output_option(command: F) -> F:
    """Adds ``--output text|json``."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json: one document on standard output and nothing else.",
    )(command)


def set_option(command: F) -> F:
    """Adds ``--set key=value``, which may be given several times."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override a value of the job file, e.g. --set hyperparameters.epochs=3. May be repeated.",
    )(command)


def region_option(command: F) -> F:
    """Adds ``--region``: one whose prices are known, None when it is not given."""
    return click.option("--region", metavar="REGION", callback=_region, help="Whose prices, e.g. eu-west-1.")(command)


def _region(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    from headrace.catalog.prices import regions

    if value is not None and value not in regions():
        raise click.BadParameter(f"no price in {value!r} is known; known: {', '.join(regions())}", context, option)
    return value


def echo_json(value: object) -> None:
    """Writes one JSON document to standard output."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def open_run(name_or_id: str) -> Run:
    """Opens a run by id or job name. Raises RunNotFound, or UsageError when its header is damaged."""
    import msgspec

    from headrace.errors import UsageError
    from headrace.runs import Run

    run = Run.open(name_or_id)
    try:
        _ = run.header
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{run.paths.header} cannot be read: {error}", hint="its run's logs are still in the files beside it"
        ) from error
    return run
