"""What several commands share: options, JSON output, opening runs, writing files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from headrace.errors import HeadraceError, JobInvalid, UsageError
from headrace.private_folders import write_atomically

if TYPE_CHECKING:
    from headrace.engines.asking import AskEngine
    from headrace.insight.render.document import Document
    from headrace.runs import Run

FAILED = 1
USAGE = 2

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def age_seconds(text: str) -> float | None:
    """Returns the seconds of an age: ``30s``, ``10m``, ``2h``, ``1d``; None for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    return float(match[1]) * _AGES[match[2]] if match else None


def output_option(command: F) -> F:
    """Adds ``--output text|json``."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json: one document on standard output and nothing else.",
    )(command)


class Outputs(NamedTuple):
    """What ``--output`` of a command says that runs or plans a job.

    Attributes:
        format: ``text`` or ``json``.
        place: ``s3://`` URI of the job's model and output; empty when none is given.
    """

    format: str
    place: str


def job_options(command: F) -> F:
    """Adds ``--role``, ``--region`` and ``--output text|json|s3://...``, the last as `Outputs`."""
    role = click.option(
        "--role", metavar="ARN", help="Role under which the job runs on SageMaker: role=ARN of the job."
    )
    region = click.option("--region", metavar="REGION", help="Where --engine sagemaker runs the job, e.g. eu-west-1.")
    output = click.option(
        "--output",
        multiple=True,
        metavar="text|json|S3URI",
        callback=_outputs,
        help="json: one document on standard output and nothing else. s3://bucket/prefix: where model and output go, "
        "output_path of the job. May be given twice.",
    )
    return role(region(output(command)))


def _outputs(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Outputs:
    found = Outputs("text", "")
    for value in values:
        if value in ("text", "json"):
            found = found._replace(format=value)
        elif value.startswith("s3://"):
            found = found._replace(place=value)
        else:
            raise click.BadParameter(f"{value!r} is not 'text', 'json' or an s3:// URI", context, option)
    return found


def with_job_options(
    overrides: tuple[str, ...], engine: str, role: str | None, region: str | None, output: Outputs
) -> list[str]:
    """Returns the overrides of a job, those of ``--role``, ``--region`` and ``--output`` first.

    Raises:
        BadParameter: a region for an engine that has none.
    """
    import json

    given = {"role": role, "output_path": output.place or None}
    if engine == "sagemaker":
        given["engines.sagemaker.region"] = region
    return [*(f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None), *overrides]


def document_options(command: F) -> F:
    """Adds ``--output text|json|markdown|html`` and ``--file``, for commands that make a document."""
    return _document_options(command, ("text", "json", "markdown", "html"))


def table_options(command: F) -> F:
    """Adds the options of `document_options`, and CSV."""
    return _document_options(command, ("text", "json", "markdown", "html", "csv"))


def _document_options(command: F, formats: tuple[str, ...]) -> F:
    endings = ", ".join(ending for ending, name in _FORMATS.items() if name in formats)
    where = click.option(
        "--file",
        metavar="FILE",
        is_eager=True,  # the format follows from its name
        callback=_file,
        help=f"Write to FILE instead of standard output; its ending chooses the format: {endings}, else text.",
    )
    how = click.option(
        "--output",
        type=click.Choice(formats),
        callback=_format,
        help="json: one document; html: one page with charts that needs nothing else.  [default: as FILE, else text]",
    )
    return how(where(command))


_FORMATS = {".json": "json", ".md": "markdown", ".html": "html", ".csv": "csv"}


def _file(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not Path(value).name:
        raise click.BadParameter(f"{value!r} is no name of a file", context, option)
    return value


def _format(context: click.Context, option: click.Parameter, value: str | None) -> str:
    if value:
        return value
    ending = _FORMATS.get(Path(context.params.get("file") or "").suffix.lower(), "text")
    return ending if isinstance(option.type, click.Choice) and ending in option.type.choices else "text"


def set_option(command: F) -> F:
    """Adds ``--set key=value``, which may be given several times."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override a value of the job file, e.g. --set hyperparameters.epochs=3. May be repeated.",
    )(command)


def engine_option(command: F) -> F:
    """Adds ``--engine``: where instances come from."""
    return click.option(
        "--engine",
        default="local",
        show_default=True,
        metavar="ENGINE",
        help="Where the instances come from: local (this machine plays all), or another engine that is installed.",
    )(command)


def region_option(command: F) -> F:
    """Adds ``--region``: a region with known prices, None when it is not given."""
    return click.option(
        "--region", metavar="REGION", callback=_region, help="Region whose prices to use, e.g. eu-west-1."
    )(command)


def _region(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return priced_region(value, context, option)


def priced_region(
    value: str | None, context: click.Context | None = None, option: click.Parameter | None = None
) -> str | None:
    """Returns a region with known prices, as it is given. Raises BadParameter for another one."""
    from headrace.catalog.prices import regions

    if value is not None and value not in regions():
        message = f"no price in {value!r} is known; known: {', '.join(regions())}"
        raise click.BadParameter(message, context, option, None if option else "--region")
    return value


def failed_by(error: HeadraceError) -> int:
    """Shows an error, and returns the exit code of a command that ends by it."""
    show_error(error)
    return error.exit_code


def show_error(error: HeadraceError) -> None:
    """Writes `error:` and `hint:` lines to standard error; one line a problem."""
    if isinstance(error, JobInvalid) and error.problems:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
            if problem.hint:
                click.echo(f"hint: {problem.hint}", err=True)
        return
    for line in error.message.splitlines() or [type(error).__name__]:
        click.echo(f"error: {line}", err=True)
    for line in error.hint.splitlines():
        click.echo(f"hint: {line}", err=True)


def echo_json(value: object) -> None:
    """Writes one JSON document to standard output."""
    click.echo(json_document(value))


def say(value: object, output: str, *lines: object) -> None:
    """Writes the answer of a command that is a line or some: as JSON the value, else the lines."""
    if output == "json":
        echo_json(value)
        return
    for line in lines:
        click.echo(line)


def json_document(value: object) -> str:
    """Returns one JSON document."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value, enc_hook=dict)).decode()  # a part of a file is its fields


def answer(value: object, output: str, document: Callable[[], Document]) -> None:
    """Writes the answer of a command to standard output.

    Args:
        value: what JSON shows.
        output: ``json`` or ``text``.
        document: makes what text shows.
    """
    deliver(value, output, None, lambda _: document())


def deliver(
    value: object,
    output: str,
    file: str | None,
    document: Callable[[int], Document],
    *,
    title: str = "",
    csv: Callable[[], str] = str,
) -> None:
    """Writes what a command shows to standard output, or to a file, which appears complete or not at all.

    Args:
        value: what JSON shows.
        output, file: what the options say.
        document: makes what the other formats show, for a terminal of some width.
        title: of the HTML page.
        csv: makes CSV.

    Raises:
        UsageError: if the file cannot be written.
    """
    if output == "text":
        from headrace.cli.views.table import console, show

        held = io.StringIO()
        out = console(None if file is None else held)
        show(document(out.width), out)
        text = held.getvalue()
    elif output == "html":
        from headrace.insight.render.html import page

        text = page(title, document(0))
    elif output == "markdown":
        from headrace.insight.render.document import markdown

        text = markdown(document(0))
    else:
        text = json_document(value) + "\n" if output == "json" else csv()
    if file is not None:
        _write(text, Path(file))
    else:
        click.echo(text, nl=False)


def _write(text: str, path: Path) -> None:
    try:
        write_atomically(path, text.encode(), 0o666)
    except OSError as error:
        raise UsageError(
            f"--file {path} cannot be written: {error.strerror or error}",
            hint=f"is {path.absolute().parent} a folder with room, where you may make files?",
        ) from error


def ask_engines() -> AskEngine:
    """Returns what asks the engines of runs; standard error says when one cannot be asked."""
    from headrace.engines.asking import AskEngine

    return AskEngine(lambda words: click.echo(f"headrace: {words}", err=True))


def open_run(name_or_id: str) -> Run:
    """Opens a run by id or job name; its record holds by then what its engine knows.

    Raises:
        RunNotFound: there is none.
        UsageError: its header is damaged.
    """
    import msgspec

    from headrace.runs import Run

    ask = ask_engines()
    run = Run.open(name_or_id, alive=ask)
    try:
        ask(run)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{run.paths.header} cannot be read: {error}", hint="its run's logs are still in the files beside it"
        ) from error
    return run


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
