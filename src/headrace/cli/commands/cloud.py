"""`headrace cloud`: what jobs on SageMaker need in an AWS account: a network and a role, as stacks of CloudFormation
with the same four commands each, and an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from headrace.cli.options import (
    account_options,
    dry_run_option,
    echo_json,
    name_option,
    output_option,
    progress,
    say,
    to_option,
    update_option,
    write,
    writes_files,
)

if TYPE_CHECKING:
    from headrace.cloud.stacks import FoundStack, Stacks, StackTemplate

    Where = dict[str, str]

_SUBMIT_POLICY = "SubmitPolicy"
F = TypeVar("F", bound=Callable[..., object])


class StackKind(NamedTuple):
    """A kind of stack.

    Attributes:
        name: ``vpc`` or ``role``.
        options: what can be chosen of it, in the order of ``--help``.
        template: makes its template of the options' values, by name.
        job_lines: makes keys of the job file of its outputs.
    """

    name: str
    options: tuple[Callable[[Any], Any], ...]
    template: Callable[..., StackTemplate]
    job_lines: Callable[[Mapping[str, str]], dict[str, object]]

    def choices(self, command: F) -> F:
        """Adds the options to a command."""
        for option in reversed(self.options):
            command = option(command)
        return command


def _stack_group(kind: StackKind, short_help: str, described: Callable[[], None]) -> click.Group:
    name = f"headrace-{kind.name}"

    @click.group(kind.name, invoke_without_command=True, short_help=short_help, help=described.__doc__)
    @to_option
    @kind.choices
    @update_option
    @dry_run_option
    @output_option
    @click.pass_context
    def group(context: click.Context, /, folder: Path | None, **asked: Any) -> None:
        if writes_files(context, folder):
            assert folder is not None
            _write_stack(kind, folder, **asked)

    @group.command("create", short_help="Create it, and print the lines for the job file.")
    @name_option(name)
    @kind.choices
    @account_options
    @update_option
    @dry_run_option
    @output_option
    def create(**asked: Any) -> None:
        """Create it as a CloudFormation stack, wait for it, and print the lines for the job file.

        One that is there with the same content is left as it is; with another one it is an error, or changed
        (--update). When a resource cannot be created, all is undone, and the error names it. Ctrl-C ends the
        waiting, not the creation. A role and its policy are named after the stack, and belong to no region.
        """
        _create_stack(kind, **asked)

    @group.command("show", short_help="Print the lines for the job file again.")
    @click.argument("name", default=name)
    @account_options
    @output_option
    def show(**asked: Any) -> None:
        """Print the lines for the job file of the stack NAME."""
        _show_stack(kind, **asked)

    @group.command("remove", short_help="Remove it with all that it consists of.")
    @click.argument("name")
    @account_options
    @dry_run_option
    @output_option
    def remove(**asked: Any) -> None:
        """Remove the stack NAME, and wait until it is gone. Only what headrace made is removed.

        A policy that is still attached to somebody cannot be removed: detach it first.
        """
        _remove_stack(kind, **asked)

    return group


def _vpc_template(
    cidr: str, zone: tuple[str, ...], traffic: str, port: tuple[str, ...], encrypted: bool, bucket: tuple[str, ...]
) -> StackTemplate:
    from headrace.cloud.vpc_template import Traffic, VpcOptions, own_ports, vpc_stack

    return vpc_stack(VpcOptions(cidr, zone, Traffic(traffic), own_ports(port), encrypted, bucket))


def _vpc_lines(outputs: Mapping[str, str]) -> dict[str, object]:
    from headrace.cloud.vpc_template import job_lines

    return job_lines(outputs)


def _role_template(
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


def _role_lines(outputs: Mapping[str, str]) -> dict[str, object]:
    from headrace.cloud.role_template import job_lines

    return job_lines(outputs)


def _vpc_help() -> None:
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
      headrace cloud vpc create --region eu-west-1 --zone eu-west-1a --zone eu-west-1b
      headrace cloud vpc show
      headrace cloud vpc remove headrace-vpc --dry-run
    """


def _role_help() -> None:
    """A role for jobs on SageMaker that may do what they need: by itself a template in a folder; `create` makes it.

    SageMaker takes the role. It allows objects of the buckets or prefixes that you name, the logs and metrics of
    training jobs, and their images; network interfaces with --vpc, keys with --kms-key. A second policy is for who
    submits: training jobs, giving them this role, the same objects, the logs. Attach it to users or roles of yours.

    \b
    Examples:
      headrace cloud role --to infrastructure --bucket s3://my-bucket/jobs
      headrace cloud role create --bucket s3://my-bucket/jobs --data s3://datasets/imagenet --vpc --dry-run
      headrace cloud role create --bucket s3://my-bucket/jobs --vpc >> job.yaml
      headrace cloud role create --bucket s3://my-bucket/jobs --vpc --update
      headrace cloud role remove headrace-role
    """


_VPC_OPTIONS = (
    click.option(
        "--cidr", metavar="CIDR", default="10.0.0.0/16", show_default=True, help="Addresses of the VPC, /16 to /27."
    ),
    click.option(
        "--zone", multiple=True, metavar="ZONE", help="Availability zone; twice.  [default: the region's first two]"
    ),
    click.option(
        "--traffic",
        type=click.Choice(["headrace", "collectives", "all"]),
        default="headrace",
        show_default=True,
        help="Between hosts: headrace's ports; also those that NCCL, Gloo and MPI choose; all, as EFA needs it.",
    ),
    click.option("--port", multiple=True, metavar="N[-M]", help="Port of the job's own programs. May be repeated."),
    click.option(
        "--encrypted", is_flag=True, help="For jobs with encrypt_inter_container_traffic: let IPsec through too."
    ),
    click.option("--bucket", multiple=True, metavar="BUCKET", help="Lead to this bucket of S3 only. May be repeated."),
)
_ROLE_OPTIONS = (
    click.option(
        "--bucket",
        multiple=True,
        metavar="URI",
        help="Bucket or prefix of code, data, checkpoints, output. May be repeated.",
    ),
    click.option("--data", multiple=True, metavar="URI", help="Bucket or prefix that is only read. May be repeated."),
    click.option(
        "--image",
        multiple=True,
        metavar="URI",
        help="Image in ECR that jobs use. May be repeated.  [default: AWS's own of PyTorch and TensorFlow]",
    ),
    click.option("--kms-key", multiple=True, metavar="ARN", help="Key that jobs use. May be repeated."),
    click.option("--vpc", is_flag=True, help="Jobs have `subnets`: allow network interfaces."),
)


def _write_stack(kind: StackKind, folder: Path, update: bool, dry_run: bool, output: str, **chosen: Any) -> None:
    stack = kind.template(**chosen)
    template, parameters = folder / f"{stack.kind}.yaml", folder / f"{stack.kind}-parameters.json"
    files = {template.name: stack.text.encode()}
    then = f"aws cloudformation create-stack --stack-name headrace-{stack.kind} --template-body file://{template}"
    if stack.parameters:
        files[parameters.name] = stack.parameters_text.encode()
        then += f" --parameters file://{parameters}"
    if stack.capabilities:
        then += f" --capabilities {' '.join(stack.capabilities)}"
    write(files, folder, update=update, dry_run=dry_run, output=output, then=then)


@contextmanager
def _asked(kind: StackKind, name: str, region: str | None, profile: str | None) -> Iterator[tuple[Stacks, Where]]:
    """Gives the stacks of an account, and which one is meant, as every document of it begins."""
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.stacks import Stacks, check_name

    check_name(name)
    with closing(Aws(region, profile)) as aws:
        where = {"kind": kind.name, "name": name, "region": aws.region, "account": aws.account}
        yield Stacks(aws.client("cloudformation"), progress), where


def _create_stack(
    kind: StackKind,
    name: str,
    region: str | None,
    profile: str | None,
    update: bool,
    dry_run: bool,
    output: str,
    **chosen: Any,
) -> None:
    stack = kind.template(**chosen)
    with _asked(kind, name, region, profile) as (stacks, where):
        if dry_run:
            plan = stacks.intend(stack, name, update=update)
            document = _made_document(where, plan.outcome, plan.found, kind.job_lines) | {
                "dry_run": True,
                "resources": stack.resources,
                "differences": list(plan.differences),
            }
        else:
            document = _made_document(where, *stacks.create(stack, name, update=update), kind.job_lines)
    echo_json(document) if output == "json" else _show_made(document)


def _show_stack(kind: StackKind, name: str, region: str | None, profile: str | None, output: str) -> None:
    with _asked(kind, name, region, profile) as (stacks, where):
        found, resources = stacks.removable(name, kind.name)
    document = _made_document(where, found.status, found, kind.job_lines)
    if output == "json":
        echo_json(document | {"parameters": found.parameters, "resources": list(resources)})
    else:
        _show_made(document)


def _remove_stack(
    kind: StackKind, name: str, region: str | None, profile: str | None, dry_run: bool, output: str
) -> None:
    from headrace.cloud.stacks import Outcome

    with _asked(kind, name, region, profile) as (stacks, where):
        _, resources = stacks.removable(name, kind.name)
        if not dry_run:
            stacks.remove(name, kind.name)
    document = where | {"outcome": Outcome.REMOVED.value, "dry_run": dry_run, "resources": list(resources)}
    if output == "json":
        echo_json(document)
    elif dry_run:
        _show_dry(document, "would be removed", resources)
    else:
        click.echo(f"{_stack(document)}: removed")


def _made_document(
    where: Mapping[str, str],
    outcome: str,
    found: FoundStack | None,
    job_lines: Callable[[Mapping[str, str]], dict[str, object]],
) -> dict[str, object]:
    """Returns what became of a stack: `found`, None when it is not there yet, and the keys of the job file of it."""
    outputs = {} if found is None else dict(found.outputs)
    return {
        **where,
        "outcome": str(getattr(outcome, "value", outcome)),
        "dry_run": False,
        "stack_id": None if found is None else found.id,
        "outputs": outputs,
        "job": job_lines(outputs) if outputs else {},
        "notes": [f"attach to who submits: {outputs[_SUBMIT_POLICY]}"] if _SUBMIT_POLICY in outputs else [],
    }


def _show_made(document: Mapping[str, Any]) -> None:
    """Prints what became of a stack; without a dry run, what is printed is YAML for the job file."""
    outcome = document["outcome"]
    if document["dry_run"]:
        created = document["resources"] if outcome == "created" else {}
        words = "is there as asked for" if outcome == "unchanged" else f"would be {outcome}"
        _show_dry(document, words, (*document["differences"], *_rows(created)))
        return
    import yaml

    click.echo(f"# {_stack(document)}: {outcome}")
    for note in document["notes"]:
        click.echo(f"# {note}")
    if document["job"]:  # lists stand on one line
        click.echo(yaml.safe_dump(document["job"], sort_keys=False, default_flow_style=None, width=1000), nl=False)


def _show_dry(document: Mapping[str, Any], words: str, rows: Iterable[str]) -> None:
    click.echo(f"{_stack(document)}: {words}")
    for row in rows:
        click.echo(f"  {row}")
    click.echo("nothing was changed")


def _stack(document: Mapping[str, Any]) -> str:
    return f"the stack {document['name']} in {document['region']}, account {document['account']}"


def _rows(resources: Mapping[str, str]) -> list[str]:
    return [f"{name}  {kind}" for name, kind in resources.items()]


vpc = _stack_group(
    StackKind("vpc", _VPC_OPTIONS, _vpc_template, _vpc_lines),
    "A network of your own, which leads to S3 only.",
    _vpc_help,
)
role = _stack_group(
    StackKind("role", _ROLE_OPTIONS, _role_template, _role_lines),
    "The role of jobs, and a policy for who submits them.",
    _role_help,
)


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
    text = f"# the image in {aws.region}, account {where['account']}: {outcome}\nimage_uri: {image}"
    if dry_run:
        text = f"the image {image}: {'would be built and sent' if built else 'is there'}\nnothing was changed"
    say({**where, "outcome": outcome, "job": {"image_uri": image}}, output, text)


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
    value = {"kind": "image", "name": name, "images": list(found.images), "job": {"image_uri": image}}
    say(value, output, f"image_uri: {image}")


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
    value = {**where, "outcome": "removed", "dry_run": dry_run, "images": list(found.images)}
    what = f"the repository {name} in {aws.region} with {len(found.images)} images"
    say(value, output, f"{what}: would be removed\nnothing was changed" if dry_run else f"{what}: removed")


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
