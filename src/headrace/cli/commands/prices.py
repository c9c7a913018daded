"""`headrace prices`: the list prices of instance types, and bringing newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import output_option, region_option

if TYPE_CHECKING:
    from headrace.catalog.prices import Price


_HELP = ("--help", "-h")


class _Prices(click.Group):
    """Lists prices unless another command is named: `prices ml.c5.xlarge` is `prices list ml.c5.xlarge`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in _HELP):
            args = [NAME, *args]
        return super().parse_args(ctx, args)


@click.group("prices", cls=_Prices, short_help="List prices of instance types, with source and date; `update` them.")
def prices() -> None:
    """Show the list prices of instance types: headrace's own, and over them those that `update` has brought.

    Without a command it is `list`, with its options: --region, --service, --output.

    \b
    Examples:
      headrace prices --region us-east-1
      headrace prices ml.p4d.24xlarge ml.c5.18xlarge
      headrace prices c5.18xlarge --service ec2 --output json
      headrace prices update --region eu-west-1 --dry-run
    """


NAME = "list"


@prices.command(NAME, short_help="List prices of instance types, with source and date. The default.")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@region_option
@click.option("--service", type=click.Choice(["sagemaker", "ec2"]), default="sagemaker", show_default=True)
@output_option
def list_command(types: tuple[str, ...], region: str | None, service: str, output: str) -> None:
    """Show the newest list price of every instance TYPE, or of all, in one region or in every region that is known.

    A published price is stated by its source; a derived one follows from another price by the rule that is shown.

    \b
    Examples:
      headrace prices --region us-east-1
      headrace prices ml.p4d.24xlarge ml.c5.18xlarge
      headrace prices c5.18xlarge --service ec2 --output json
    """
    from headrace.catalog import prices as known_prices
    from headrace.cli.options import answer
    from headrace.cli.views.cost_tables import prices_document
    from headrace.errors import UsageError

    known = list(dict.fromkeys(price.instance_type for price in known_prices.prices() if price.service == service))
    for name in types:
        if name not in known:
            raise UsageError(
                f"no price of {name!r} of the service {service} is known", hint=_hint(name, known, service)
            )
    regions = known_prices.regions(service) if region is None else (region,)
    wanted = [
        price
        for name in types or known
        for each in regions
        if (price := known_prices.price_of(name, each, service=service)) is not None
    ]
    if not wanted:
        elsewhere = {
            price.region for price in known_prices.prices() if price.service == service and price.instance_type in types
        }
        what = " ".join(types) or service
        raise UsageError(f"no price of {what} in {region} is known", hint=f"known: {', '.join(sorted(elsewhere))}")
    answer(wanted, output, lambda: prices_document(wanted))


def _hint(name: str, known: list[str], service: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"headrace prices --service {service} lists all"


@prices.command("update", short_help="Bring newer prices, from a file or from AWS.")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option("--region", "regions", multiple=True, metavar="REGION", help="Only this region. May be repeated.")
@click.option("--profile", metavar="NAME", help="Profile of the AWS configuration with which AWS is asked.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@output_option
def update(files: tuple[Path, ...], regions: tuple[str, ...], profile: str | None, dry_run: bool, output: str) -> None:
    """Bring prices of SageMaker training into your own list, $HEADRACE_HOME/prices.csv (~/.headrace/prices.csv).

    FILE is AWS's offer file of AmazonSageMaker in JSON, as it can be downloaded from AWS, or a table (CSV) with
    headrace's own columns. Without a FILE, AWS's Pricing API is asked, which needs credentials that may
    pricing:GetProducts, and a network.

    \b
    The columns, and a row:
      instance_type,service,region,price,status,rule,as_of,offered,source,licence
      ml.c5.xlarge,sagemaker,eu-west-1,0.23,published,,2026-11-01,yes,our contract,internal

    The prices of your list come before those that travel with headrace, in prices, plan, cost, report, budgets and
    grids. Each has its source and its date; older ones stay for older runs. Remove the file to be without it.

    \b
    Examples:
      headrace prices update --region eu-west-1 --dry-run
      headrace prices update index.json
      headrace prices update our-prices.csv --output json
    """
    from datetime import datetime, timezone

    from headrace.catalog import prices
    from headrace.catalog.prices import own_list
    from headrace.cli.options import answer
    from headrace.cli.views.cost_tables import price_changes_document
    from headrace.errors import UsageError

    if files and profile:
        raise UsageError("--profile: AWS is not asked when a FILE is given", hint="leave one of them out")
    today = datetime.now(timezone.utc).date().isoformat()
    found: list[Price] = []
    for file in files:
        found += prices.read_price_file(file, today)
    if not files:
        found += _asked(regions, profile, today)
    new = [price for price in found if not regions or price.region in regions]
    lacking = [region for region in regions if region not in {price.region for price in new}]
    if not new or lacking:
        where = f" in {', '.join(lacking)}" if lacking else ""
        raise UsageError(f"no price of training{where} was found", hint="is the region's name right? e.g. eu-west-1")
    changes = prices.changes(new)
    rows = prices.updated(new)
    path = own_list() if dry_run else prices.write_list(rows, today)
    regions_of = len({price.region for price in new})
    done = "nothing was changed; it would be written to" if dry_run else "written to"
    outcome = f"{len(new)} prices of {regions_of} regions, {len(changes)} of them new or other: {done} {path}"
    value = {"list": str(path), "dry_run": dry_run, "prices": len(new), "changes": changes}
    answer(value, output, lambda: price_changes_document(changes, outcome))


def _asked(regions: Sequence[str], profile: str | None, today: str) -> Sequence[Price]:
    from contextlib import closing

    from headrace.cloud.aws_calls import API_REGION, Aws, asked_prices

    with closing(Aws(API_REGION, profile)) as aws:
        return asked_prices(aws.client("pricing"), regions, today)
