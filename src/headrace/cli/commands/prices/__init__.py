"""`headrace prices`: the list prices of instance types, and bringing newer ones."""

from __future__ import annotations

import click

from headrace.cli.commands.prices import list_prices, update_prices

_HELP = ("--help", "-h")


class _Prices(click.Group):
    """Lists prices unless another command is named: `prices ml.c5.xlarge` is `prices list ml.c5.xlarge`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in _HELP):
            args = [list_prices.NAME, *args]
        return super().parse_args(ctx, args)


@click.group("prices", cls=_Prices, short_help="List prices of instance types, with source and date; `update` them.")
def command() -> None:
    """Show the list prices of instance types: headrace's own, and over them those that `update` has brought.

    Without a command it is `list`, with its options: --region, --service, --output.

    \b
    Examples:
      headrace prices --region us-east-1
      headrace prices ml.p4d.24xlarge ml.c5.18xlarge
      headrace prices c5.18xlarge --service ec2 --output json
      headrace prices update --region eu-west-1 --dry-run
    """


for _each in (list_prices, update_prices):
    command.add_command(_each.command)
