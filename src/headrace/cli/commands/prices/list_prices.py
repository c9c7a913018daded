"""`headrace prices list`, which is `headrace prices`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option, region_option

NAME = "list"


@click.command(NAME, short_help="List prices of instance types, with source and date. The default.")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@region_option
@click.option("--service", type=click.Choice(["sagemaker", "ec2"]), default="sagemaker", show_default=True)
@output_option
def command(types: tuple[str, ...], region: str | None, service: str, output: str) -> None:
    """Show the newest list price of every instance TYPE, or of all, in one region or in every region that is known.

    A published price is stated by its source; a derived one follows from another price by the rule that is shown.

    \b
    Examples:
      headrace prices --region us-east-1
      headrace prices ml.p4d.24xlarge ml.c5.18xlarge
      headrace prices c5.18xlarge --service ec2 --output json
    """
    from headrace.catalog import prices
    from headrace.cli.options import answer
    from headrace.cli.views.cost_tables import prices_document
    from headrace.errors import UsageError

    known = list(dict.fromkeys(price.instance_type for price in prices.prices() if price.service == service))
    for name in types:
        if name not in known:
            raise UsageError(
                f"no price of {name!r} of the service {service} is known", hint=_hint(name, known, service)
            )
    regions = prices.regions(service) if region is None else (region,)
    wanted = [
        price
        for name in types or known
        for each in regions
        if (price := prices.price_of(name, each, service=service)) is not None
    ]
    if not wanted:
        elsewhere = {
            price.region for price in prices.prices() if price.service == service and price.instance_type in types
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
