"""`headrace cloud image`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli.commands.cloud.actions import (
    account_options,
    dry_run_option,
    name_option,
    progress,
    to_option,
    update_option,
    write,
    writes_files,
)
from headrace.cli.options import echo_json, output_option

F = TypeVar("F", bound=Callable[..., object])
NAME = "headrace"


def image_options(command: F) -> F:
    """Adds what can be chosen of an image."""
    for option in (
        click.option("--python", default="python3", show_default=True, metavar="PROGRAM", help="Python in the image."),
        click.option(
            "--requirements",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Requirements to install too.",
        ),
        click.option("--cpu", is_flag=True, help="With --framework: AWS's image for jobs without GPUs."),
        click.option("--framework-version", metavar="VERSION", help="Its version, e.g. 2.8.  [default: newest known]"),
        click.option(
            "--framework",
            type=click.Choice(["pytorch", "tensorflow"]),
            help="Begin with AWS's own image of it in the region, in place of --base.",
        ),
        click.option("--base", metavar="IMAGE", help="Image to begin with."),
    ):
        command = option(command)
    return command


@click.group("image", invoke_without_command=True, short_help="An image with headrace in it.")
@to_option
@image_options
@click.option("--region", metavar="REGION", help="Of the image that --framework names.  [default: AWS_REGION]")
@update_option
@dry_run_option
@output_option
@click.pass_context
def image(
    context: click.Context,
    /,
    folder: Path | None,
    region: str | None,
    update: bool,
    dry_run: bool,
    output: str,
    **chosen: Any,
) -> None:
    """An image that has this headrace and its libraries: by itself the definition in a folder; `create` builds it.

    Jobs run with AWS's framework images as they are; with an image of your own hosts install nothing when they start,
    which also works without any network. The folder has a Dockerfile, headrace's wheel, and a buildspec.yml for AWS
    CodeBuild, where there is no docker. `headrace plan job.yaml --engine sagemaker` names the image of a job.

    \b
    Examples:
      headrace cloud image --to image --base IMAGE
      headrace cloud image --to image --framework pytorch --framework-version 2.8 --region eu-west-1
      headrace cloud image create --base IMAGE --requirements code/requirements.txt --dry-run
      headrace cloud image create --base IMAGE >> job.yaml
      headrace cloud image remove headrace
    """
    if writes_files(context, folder):
        assert folder is not None
        then = f"docker build --platform linux/amd64 --tag headrace {folder}"
        files = _files(lambda: _region(region), **chosen)
        write(files, folder, update=update, dry_run=dry_run, output=output, then=then)


@image.command("create", short_help="Build it, send it to ECR, and print the line for the job file.")
@name_option(NAME)
@image_options
@account_options
@dry_run_option
@output_option
def create(name: str, region: str | None, profile: str | None, dry_run: bool, output: str, **chosen: Any) -> None:
    """Build the image with docker (or podman), send it to a repository in ECR, and print `image_uri`.

    The repository is made when there is none. The tag follows from the content, so an image that is there is not built
    again, and another one stands beside it. docker is logged in to the registries that it takes from and sends to.

    \b
    Examples:
      headrace cloud image create --base IMAGE --dry-run
      headrace cloud image create --name team/training --base IMAGE >> job.yaml
    """
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.image_files import ImageRegistry, check_repository, content_tag, find_docker

    check_repository(name)
    with closing(Aws(region, profile)) as aws:
        files = _files(lambda: aws.region, **chosen)
        registry = ImageRegistry(aws, progress)
        where = {"kind": "image", "name": name, "region": aws.region, "account": aws.account, "dry_run": dry_run}
        if dry_run:
            tag, found = content_tag(files), registry.find(name)
            built = found is None or tag not in found.images
            if built:
                find_docker()
            image = f"{name if found is None else found.uri}:{tag}"
        else:
            built, image = registry.create(name, files)
    outcome = "created" if built else "unchanged"
    if output == "json":
        echo_json({**where, "outcome": outcome, "job": {"image_uri": image}})
    elif dry_run:
        click.echo(f"the image {image}: {'would be built and sent' if built else 'is there'}\nnothing was changed")
    else:
        click.echo(f"# the image in {aws.region}, account {where['account']}: {outcome}\nimage_uri: {image}")


@image.command("show", short_help="Print the line for the job file again.")
@click.argument("name", default=NAME)
@account_options
@output_option
def show(name: str, region: str | None, profile: str | None, output: str) -> None:
    """Print `image_uri` of the newest image of the repository NAME.

    \b
    Example:
      headrace cloud image show
    """
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.image_files import ImageRegistry, check_repository
    from headrace.errors import UsageError

    with closing(Aws(region, profile)) as aws:
        found = ImageRegistry(aws, progress).check_own(check_repository(name))
    if not found.images:
        raise UsageError(f"the repository {name} has no image", hint="headrace cloud image create --base IMAGE")
    image = f"{found.uri}:{found.images[0]}"
    if output == "json":
        echo_json({"kind": "image", "name": name, "images": list(found.images), "job": {"image_uri": image}})
    else:
        click.echo(f"image_uri: {image}")


@image.command("remove", short_help="Remove the repository with its images.")
@click.argument("name")
@account_options
@dry_run_option
@output_option
def remove(name: str, region: str | None, profile: str | None, dry_run: bool, output: str) -> None:
    """Remove the repository NAME with all images in it. Only what headrace made is removed.

    \b
    Examples:
      headrace cloud image remove headrace --dry-run
      headrace cloud image remove headrace
    """
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.image_files import ImageRegistry, check_repository

    check_repository(name)
    with closing(Aws(region, profile)) as aws:
        registry = ImageRegistry(aws, progress)
        found = registry.check_own(name) if dry_run else registry.remove(name)
        where = {"kind": "image", "name": name, "region": aws.region}
    if output == "json":
        echo_json({**where, "outcome": "removed", "dry_run": dry_run, "images": list(found.images)})
        return
    what = f"the repository {name} in {aws.region} with {len(found.images)} images"
    click.echo(f"{what}: would be removed\nnothing was changed" if dry_run else f"{what}: removed")


def _region(named: str | None) -> str:
    from headrace.cloud.aws_calls import Aws

    with closing(Aws(named)) as aws:
        return aws.region


def _files(
    region: Callable[[], str],
    base: str | None,
    framework: str | None,
    framework_version: str | None,
    cpu: bool,
    requirements: Path | None,
    python: str,
) -> dict[str, bytes]:
    """Returns the files of the definition, from the options of an image. `region`: tells whose registry is used."""
    from headrace.cloud.image_files import ImageOptions, framework_base, image_files, own_wheel
    from headrace.errors import UsageError

    if base is not None and framework is not None:
        raise UsageError("--base and --framework: give one of them", hint="both name the image to begin with")
    if framework is None and (framework_version is not None or cpu):
        option = "--cpu" if framework_version is None else "--framework-version"
        raise UsageError(f"{option} is possible with --framework only", hint="--framework pytorch")
    if framework is not None:
        base = framework_base(framework, framework_version, region, not cpu)
    if base is None:
        hint = "or --framework pytorch; `headrace plan job.yaml --engine sagemaker` names AWS's own image for a job"
        raise UsageError("--base IMAGE is missing: the image to begin with", hint=hint)
    return image_files(ImageOptions(base, own_wheel(), requirements.read_bytes() if requirements else b"", python))
