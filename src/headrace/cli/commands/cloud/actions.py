"""What the commands of `headrace cloud` have in common: options, and writing, creating, showing, removing a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.options import echo_json

if TYPE_CHECKING:
    from headrace.cloud.stack_template import StackTemplate

F = TypeVar("F", bound=Callable[..., object])
JobLines = Callable[[Mapping[str, str]], dict[str, object]]


def account_options(command: F) -> F:
    """Adds ``--region`` and ``--profile``: which account, and where."""
    region = click.option("--region", metavar="REGION", help="Region of AWS.  [default: AWS_REGION, or the profile's]")
    profile = click.option("--profile", metavar="NAME", help="Profile of the AWS configuration.")
    return region(profile(command))


def name_option(default: str) -> Callable[[F], F]:
    """Adds ``--name``: that of the stack or the repository."""
    return click.option("--name", metavar="NAME", default=default, show_default=True, help="Its name.")


def dry_run_option(command: F) -> F:
    """Adds ``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)


def update_option(command: F) -> F:
    """Adds ``--update``."""
    return click.option("--update", is_flag=True, help="Change what is there already and other.")(command)


def to_option(command: F) -> F:
    """Adds ``--to``."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--to", "folder", type=kind, metavar="DIR", help="Write the files to DIR.")(command)


def writes_files(context: click.Context, folder: Path | None) -> bool:
    """Tells whether a group was called by itself, to write files.

    Raises:
        click.UsageError: it was called with options and with a command, or with nothing.
    """
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if context.invoked_subcommand is not None:
        if given:
            context.fail(f"{', '.join(given)}: options stand behind {context.invoked_subcommand!r}")
        return False
    if folder is None:
        if given:
            context.fail("--to DIR is missing, or a command: create, show, remove")
        raise click.exceptions.NoArgsIsHelpError(context)
    return True


def write(files: Mapping[str, bytes], folder: Path, *, update: bool, dry_run: bool, output: str, then: str) -> None:
    """Writes files, and says what to do with them.

    Args:
        files: content by name.
        folder: where to.
        update, dry_run, output: what the options say.
        then: the command that uses them.
    """
    from headrace.cloud.written_files import write_files

    written = write_files(folder, files, update=update, dry_run=dry_run)
    if output == "json":
        echo_json({"files": written, "dry_run": dry_run, "next": then})
        return
    for path, is_new in written.items():
        click.echo(f"{path}: {('would be written' if dry_run else 'written') if is_new else 'is there already'}")
    click.echo(then, err=True)


def write_stack(stack: StackTemplate, folder: Path, *, update: bool, dry_run: bool, output: str) -> None:
    """Writes a stack's template and its parameters."""
    template, parameters = folder / f"{stack.kind}.yaml", folder / f"{stack.kind}-parameters.json"
    files = {template.name: stack.text.encode()}
    then = f"aws cloudformation create-stack --stack-name headrace-{stack.kind} --template-body file://{template}"
    if stack.parameters:
        files[parameters.name] = stack.parameters_text.encode()
        then += f" --parameters file://{parameters}"
    if stack.capabilities:
        then += f" --capabilities {' '.join(stack.capabilities)}"
    write(files, folder, update=update, dry_run=dry_run, output=output, then=then)


def create_stack(
    stack: StackTemplate,
    name: str,
    job_lines: JobLines,
    *,
    region: str | None,
    profile: str | None,
    update: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Creates a stack, or says what creating it would do.

    Args:
        stack: the stack.
        name: its name.
        job_lines: makes keys of the job file of its outputs.
        region, profile, update, dry_run, output: what the options say.
    """
    from headrace.cli.views.cloud_tables import made_document, show_made
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.stack_template import check_name
    from headrace.cloud.stacks import Stacks

    check_name(name)
    with closing(Aws(region, profile)) as aws:
        stacks = Stacks(aws.client("cloudformation"), progress)
        where = {"kind": stack.kind, "name": name, "region": aws.region, "account": aws.account}
        if dry_run:
            plan = stacks.intend(stack, name, update=update)
            document = made_document(where, plan.outcome, plan.found, job_lines) | {
                "dry_run": True,
                "resources": stack.resources,
                "differences": list(plan.differences),
            }
        else:
            outcome, found = stacks.create(stack, name, update=update)
            document = made_document(where, outcome, found, job_lines)
    if output == "json":
        echo_json(document)
    else:
        show_made(document)


def show_stack(
    name: str, kind: str, job_lines: JobLines, *, region: str | None, profile: str | None, output: str
) -> None:
    """Prints what the job file needs of a stack that is there."""
    from headrace.cli.views.cloud_tables import made_document, show_made
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.stack_template import check_name
    from headrace.cloud.stacks import Stacks

    with closing(Aws(region, profile)) as aws:
        found, resources = Stacks(aws.client("cloudformation"), progress).removable(check_name(name), kind)
        where = {"kind": kind, "name": name, "region": aws.region, "account": aws.account}
    document = made_document(where, found.status, found, job_lines)
    if output == "json":
        echo_json(document | {"parameters": found.parameters, "resources": list(resources)})
    else:
        show_made(document)


def remove_stack(name: str, kind: str, *, region: str | None, profile: str | None, dry_run: bool, output: str) -> None:
    """Removes a stack, or says what that would remove."""
    from headrace.cli.views.cloud_tables import show_removed
    from headrace.cloud.aws_calls import Aws
    from headrace.cloud.stack_template import check_name
    from headrace.cloud.stacks import Outcome, Stacks

    with closing(Aws(region, profile)) as aws:
        stacks = Stacks(aws.client("cloudformation"), progress)
        _, resources = stacks.removable(check_name(name), kind)
        where = {"kind": kind, "name": name, "region": aws.region, "account": aws.account}
        if not dry_run:
            stacks.remove(name, kind)
    document = where | {"outcome": Outcome.REMOVED.value, "dry_run": dry_run, "resources": list(resources)}
    if output == "json":
        echo_json(document)
    else:
        show_removed(document)


def progress(line: str) -> None:
    """Tells what happens, on standard error."""
    click.echo(line, err=True)
