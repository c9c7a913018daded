"""`headrace cloud`: what jobs on SageMaker need in an AWS account: a network, a role, an image."""

from __future__ import annotations

import click

from headrace.cli.commands.cloud.image import image
from headrace.cli.commands.cloud.stacks import role, vpc


@click.group("cloud", short_help="What SageMaker needs of your AWS account: network, role, image.")
def cloud() -> None:
    """Network, role and image for jobs on Amazon SageMaker: as files, or created in your account.

    Each is written to a folder (--to), to be read, changed and created by your own means; or it is created and
    removed here. --dry-run says what would be done and does nothing. No job needs any of this: a role and an image
    that you have are as good, and without a network of your own SageMaker uses its own.

    \b
    Examples:
      headrace cloud vpc --to infrastructure             the CloudFormation template, to read
      headrace cloud vpc create --dry-run                what would be created, in which account
      headrace cloud vpc create                          and the lines for the job file
      headrace cloud role create --bucket my-bucket
      headrace cloud image create --base IMAGE
      headrace cloud vpc remove headrace-vpc
    """


for _command in (vpc, role, image):
    cloud.add_command(_command)
