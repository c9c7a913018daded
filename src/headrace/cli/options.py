"""What several commands share: options, JSON output, opening runs."""

from __future__ import annotations

import io
from collections.abc import Callable
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


def json_document(value: object) -> str:
    """Returns one JSON document."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value)).decode()


def answer(value: object, output: str, document: Callable[[], Document]) -> None:
    """Writes the answer of a command to standard output.

    Args:
        value: what JSON shows.
        output: ``json`` or ``text``.
        document: makes what text shows.
    """
    if output == "json":
        echo_json(value)
        return
    from headrace.cli.views.table import show

    show(document())


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
        from headrace.insight.render.markdown import markdown

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
            f"--file {path} cannot be written: {error.strerror or error}", hint="name a file in a folder that exists"
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
