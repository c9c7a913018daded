"""`headrace cloud vpc`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.commands.cloud.actions import (
    account_options,
    create_stack,
    dry_run_option,
    name_option,
    remove_stack,
    show_stack,
    to_option,
    update_option,
    write_stack,
    writes_files,
)
from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.cloud.stack_template import StackTemplate

F = TypeVar("F", bound=Callable[..., object])
NAME = "headrace-vpc"


def vpc_options(command: F) -> F:
    """Adds what can be chosen of a VPC."""
    for option in (
        click.option(
            "--bucket", multiple=True, metavar="BUCKET", help="Lead to this bucket of S3 only. May be repeated."
        ),
        click.option(
            "--encrypted", is_flag=True, help="For jobs with encrypt_inter_container_traffic: let IPsec through too."
        ),
        click.option("--port", multiple=True, metavar="N[-M]", help="Port of the job's own programs. May be repeated."),
        click.option(
            "--traffic",
            type=click.Choice(["headrace", "collectives", "all"]),
            default="headrace",
            show_default=True,
            help="Between hosts: headrace's ports; also those that NCCL, Gloo and MPI choose; all, as EFA needs it.",
        ),
        click.option(
            "--zone", multiple=True, metavar="ZONE", help="Availability zone; twice.  [default: the region's first two]"
        ),
        click.option(
            "--cidr", metavar="CIDR", default="10.0.0.0/16", show_default=True, help="Addresses of the VPC, /16 to /27."
        ),
    ):
        command = option(command)
    return command


@click.group("vpc", invoke_without_command=True, short_help="A network of your own, which leads to S3 only.")
@to_option
@vpc_options
@update_option
@dry_run_option
@output_option
@click.pass_context
def command(
    context: click.Context,
    folder: Path | None,
    cidr: str,
    zone: tuple[str, ...],
    traffic: str,
    port: tuple[str, ...],
    encrypted: bool,
    bucket: tuple[str, ...],
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """A VPC for jobs on SageMaker: by itself a CloudFormation template in a folder; `create` makes it.

    Two subnets in two availability zones, a route to S3 and none to anywhere else, and a security group whose members
    reach each other on the ports that headrace uses. Nothing outside reaches them.

    A distribution over several hosts needs more: NCCL, Gloo and MPI choose ports themselves (--traffic collectives);
    EFA needs all (--traffic all). Programs in it have no way to PyPI: requirements must be in the image or in S3.

    \b
    Examples:
      headrace cloud vpc --to infrastructure
      headrace cloud vpc create --dry-run
      headrace cloud vpc create --traffic collectives --bucket my-bucket >> job.yaml
      headrace cloud vpc show headrace-vpc
      headrace cloud vpc remove headrace-vpc
    """
    if writes_files(context, folder):
        assert folder is not None
        stack = _stack(cidr, zone, traffic, port, encrypted, bucket)
        write_stack(stack, folder, update=update, dry_run=dry_run, output=output)


@command.command("create", short_help="Create it, and print the lines for the job file.")
@name_option(NAME)
@vpc_options
@account_options
@update_option
@dry_run_option
@output_option
def create(
    name: str,
    cidr: str,
    zone: tuple[str, ...],
    traffic: str,
    port: tuple[str, ...],
    encrypted: bool,
    bucket: tuple[str, ...],
    region: str | None,
    profile: str | None,
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Create the VPC as a CloudFormation stack, wait for it, and print `subnets` and `security_group_ids`.

    One that is there with the same content is left as it is; with another one it is an error, or changed (--update).
    When a resource cannot be created, all is undone, and the error names it. Ctrl-C ends the waiting, not the creation.

    \b
    Examples:
      headrace cloud vpc create --dry-run
      headrace cloud vpc create --region eu-west-1 --zone eu-west-1a --zone eu-west-1b
    """
    from headrace.cloud.vpc_template import job_lines

    create_stack(
        _stack(cidr, zone, traffic, port, encrypted, bucket),
        name,
        job_lines,
        region=region,
        profile=profile,
        update=update,
        dry_run=dry_run,
        output=output,
    )


@command.command("show", short_help="Print the lines for the job file again.")
@click.argument("name", default=NAME)
@account_options
@output_option
def show(name: str, region: str | None, profile: str | None, output: str) -> None:
    """Print `subnets` and `security_group_ids` of the VPC NAME.

    \b
    Example:
      headrace cloud vpc show
    """
    from headrace.cloud.vpc_template import KIND, job_lines

    show_stack(name, KIND, job_lines, region=region, profile=profile, output=output)


@command.command("remove", short_help="Remove it with all that it consists of.")
@click.argument("name")
@account_options
@dry_run_option
@output_option
def remove(name: str, region: str | None, profile: str | None, dry_run: bool, output: str) -> None:
    """Remove the VPC NAME, and wait until it is gone. Only what headrace made is removed.

    \b
    Examples:
      headrace cloud vpc remove headrace-vpc --dry-run
      headrace cloud vpc remove headrace-vpc
    """
    from headrace.cloud.vpc_template import KIND

    remove_stack(name, KIND, region=region, profile=profile, dry_run=dry_run, output=output)


def _stack(
    cidr: str, zone: tuple[str, ...], traffic: str, port: tuple[str, ...], encrypted: bool, bucket: tuple[str, ...]
) -> StackTemplate:
    from headrace.cloud.port_ranges import own_ports
    from headrace.cloud.vpc_template import Traffic, VpcOptions, vpc_stack

    return vpc_stack(VpcOptions(cidr, zone, Traffic(traffic), own_ports(port), encrypted, bucket))
