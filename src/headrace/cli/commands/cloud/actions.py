"""What the commands of `headrace cloud` have in common: options, and writing files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from headrace.cli.options import echo_json
from headrace.errors import UsageError
from headrace.private_folders import write_atomically

F = TypeVar("F", bound=Callable[..., object])


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

    written = write_files(folder, files, update=update, dry_run=dry_run)
    if output == "json":
        echo_json({"files": written, "dry_run": dry_run, "next": then})
        return
    for path, is_new in written.items():
        click.echo(f"{path}: {('would be written' if dry_run else 'written') if is_new else 'is there already'}")
    click.echo(then, err=True)


def progress(line: str) -> None:
    """Tells what happens, on standard error."""
    click.echo(line, err=True)


def write_files(folder: Path, files: Mapping[str, bytes], *, update: bool, dry_run: bool = False) -> dict[str, bool]:
    """Writes files into a folder, which is made if there is none.

    Args:
        folder: the folder.
        files: content by name; a name may have folders in it.
        update: files with another content may be replaced.
        dry_run: write nothing.

    Returns:
        By path, whether the file was (or would be) written; not if it is there with the same content.

    Raises:
        UsageError: one is there with another content, and then none is written; or it cannot be written.
    """

    try:
        there = {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in files}
        other = [name for name, content in there.items() if content is not None and content != files[name]]
        if other and not update:
            names = ", ".join(str(folder / name) for name in other)
            raise UsageError(f"there already, and other: {names}", hint="--update replaces it, or name another folder")
        new = {name: there[name] != content for name, content in files.items()}
        if not dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (name for name, is_new in new.items() if is_new):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, files[name], 0o666)
    except OSError as error:
        raise UsageError(
            f"--to {folder}: {error.strerror or error}", hint="name a folder in which you may write"
        ) from error
    return {str(folder / name): is_new for name, is_new in new.items()}
