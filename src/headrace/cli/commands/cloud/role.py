"""`headrace cloud role`."""

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
NAME = "headrace-role"


def role_options(command: F) -> F:
    """Adds what can be chosen of a role."""
    for option in (
        click.option("--vpc", is_flag=True, help="Jobs have `subnets`: allow network interfaces."),
        click.option("--kms-key", multiple=True, metavar="ARN", help="Key that jobs use. May be repeated."),
        click.option(
            "--image",
            multiple=True,
            metavar="URI",
            help="Image in ECR that jobs use. May be repeated.  [default: AWS's own of PyTorch and TensorFlow]",
        ),
        click.option(
            "--data", multiple=True, metavar="URI", help="Bucket or prefix that is only read. May be repeated."
        ),
        click.option(
            "--bucket",
            multiple=True,
            required=False,
            metavar="URI",
            help="Bucket or prefix of code, data, checkpoints, output. May be repeated.",
        ),
    ):
        command = option(command)
    return command


@click.group("role", invoke_without_command=True, short_help="The role of jobs, and a policy for who submits them.")
@to_option
@role_options
@update_option
@dry_run_option
@output_option
@click.pass_context
def command(
    context: click.Context,
    folder: Path | None,
    bucket: tuple[str, ...],
    data: tuple[str, ...],
    image: tuple[str, ...],
    kms_key: tuple[str, ...],
    vpc: bool,
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """A role for jobs on SageMaker that may do what they need: by itself a template in a folder; `create` makes it.

    SageMaker takes the role. It allows objects of the buckets or prefixes that you name, the logs and metrics of
    training jobs, and their images; network interfaces with --vpc, keys with --kms-key. A second policy is for who
    submits: training jobs, giving them this role, the same objects, the logs. Attach it to users or roles of yours.

    \b
    Examples:
      headrace cloud role --to infrastructure --bucket s3://my-bucket/jobs
      headrace cloud role create --bucket s3://my-bucket/jobs --data s3://datasets/imagenet --vpc --dry-run
      headrace cloud role create --bucket s3://my-bucket/jobs --vpc >> job.yaml
      headrace cloud role remove headrace-role
    """
    if writes_files(context, folder):
        assert folder is not None
        stack = _stack(bucket, data, image, kms_key, vpc)
        write_stack(stack, folder, update=update, dry_run=dry_run, output=output)


@command.command("create", short_help="Create it, and print the line for the job file.")
@name_option(NAME)
@role_options
@account_options
@update_option
@dry_run_option
@output_option
def create(
    name: str,
    bucket: tuple[str, ...],
    data: tuple[str, ...],
    image: tuple[str, ...],
    kms_key: tuple[str, ...],
    vpc: bool,
    region: str | None,
    profile: str | None,
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Create role and policy as a CloudFormation stack, wait for it, and print `role`.

    Role and policy are named after the stack. They belong to no region; the stack does.

    \b
    Examples:
      headrace cloud role create --bucket my-bucket --dry-run
      headrace cloud role create --bucket s3://my-bucket/jobs --vpc --update
    """
    from headrace.cloud.role_template import job_lines

    create_stack(
        _stack(bucket, data, image, kms_key, vpc),
        name,
        job_lines,
        region=region,
        profile=profile,
        update=update,
        dry_run=dry_run,
        output=output,
    )


@command.command("show", short_help="Print the line for the job file again.")
@click.argument("name", default=NAME)
@account_options
@output_option
def show(name: str, region: str | None, profile: str | None, output: str) -> None:
    """Print `role` of the stack NAME.

    \b
    Example:
      headrace cloud role show
    """
    from headrace.cloud.role_template import KIND, job_lines

    show_stack(name, KIND, job_lines, region=region, profile=profile, output=output)


@command.command("remove", short_help="Remove role and policy.")
@click.argument("name")
@account_options
@dry_run_option
@output_option
def remove(name: str, region: str | None, profile: str | None, dry_run: bool, output: str) -> None:
    """Remove role and policy of the stack NAME. Only what headrace made is removed.

    A policy that is still attached to somebody cannot be removed: detach it first.

    \b
    Example:
      headrace cloud role remove headrace-role
    """
    from headrace.cloud.role_template import KIND

    remove_stack(name, KIND, region=region, profile=profile, dry_run=dry_run, output=output)


def _stack(
    bucket: tuple[str, ...], data: tuple[str, ...], image: tuple[str, ...], kms_key: tuple[str, ...], vpc: bool
) -> StackTemplate:
    from headrace.cloud.role_template import RoleOptions, read_prefix, role_stack
    from headrace.errors import UsageError

    if not bucket:
        raise UsageError(
            "--bucket is missing: where jobs keep code, data and output", hint="--bucket s3://my-bucket/jobs"
        )
    storage, read = tuple(map(read_prefix, bucket)), tuple(map(read_prefix, data))
    return role_stack(RoleOptions(storage, read, image, kms_key, vpc))
