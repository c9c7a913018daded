"""`headrace ui` and `headrace serve`: the page of the runs, and SageMaker's API on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import engine_option

if TYPE_CHECKING:
    from headrace.endpoint.client_setup import ClientSetup


_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("ui", short_help="Show the runs of this machine on a local web page.")
@click.argument("run", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Where to listen on 127.0.0.1."
)
@click.option("--open/--no-open", "browse", default=True, help="Whether to open the page in a browser.")
def ui(run: str | None, port: int, browse: bool) -> int:
    """Show all runs, or RUN (a run id or a job name: its newest run), on a web page, live.

    The page is on this machine only, needs nothing from the network, and reads the runs without changing them. Its
    address holds a token; without it nothing can be seen. A browser gets a file
    of yours that leads there. For the runs of another machine: `ssh -L
    8000:127.0.0.1:8000 HOST`, and there `headrace ui --port 8000 --no-open`.

    It ends with Ctrl-C, exit code 0.

    \b
    Examples:
      headrace ui
      headrace ui my-job --no-open
    """
    from headrace.cli.options import open_run
    from headrace.errors import UsageError
    from headrace.install_hint import install_hint

    try:
        from headrace.console.ui_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn"}:
            raise
        raise UsageError(f"headrace ui needs {error.name}, which is not installed", hint=install_hint("ui")) from error

    path = "/" if run is None else f"/runs/{open_run(run).id}"

    def ready(address: str) -> None:
        click.echo(f"headrace ui: {address}")
        click.echo("Ctrl-C ends it", err=True)

    import webbrowser

    serve(port, path, ready, webbrowser.open if browse else None)
    return 0


@click.command(
    "serve",
    short_help="SageMaker's API on this machine, for its own clients.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Where to listen; 0: a free one.  [default: 7080; with PROGRAM 0]"
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on: this machine only, unless told."
)
@click.option("--region", default="us-east-1", show_default=True, help="Region that it stands for.")
@click.option(
    "--store", type=_FOLDER, show_default="$HEADRACE_HOME/serve", help="Folder of jobs, logs, keys and profile."
)
@click.option(
    "--buckets",
    type=_FOLDER,
    show_default="STORE/buckets with --store, else $HEADRACE_HOME/buckets",
    help="Folder of the buckets of its S3.",
)
@engine_option
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the engine, e.g. --set engines.slurm.partition=gpu. May be repeated.",
)
@click.option(
    "--max-running",
    "most_running",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Jobs that run at once; others wait.",
)
@click.option(
    "--image-map",
    "images",
    multiple=True,
    metavar="NAME=PYTHON",
    help="Python for an image's programs. May be repeated.",
)
@click.option(
    "--tls-cert",
    "certificate",
    type=_FILE,
    help="Certificate (PEM): answer https only.",
)
@click.option("--tls-key", "key", type=_FILE, help="Its key, when it is in another file.")
@click.option("--stop-jobs", is_flag=True, help="Stop the jobs when it ends; else they go on.")
@click.option("--print-env", is_flag=True, help="Print the lines by which a shell finds the endpoint, and end.")
def serve(
    program: tuple[str, ...],
    port: int | None,
    store: Path | None,
    buckets: Path | None,
    print_env: bool,
    **options_of_server: Any,
) -> int:
    """Answer SageMaker's API on this machine: the unmodified SDKs, boto3 and the AWS CLI run training jobs here.

    Jobs run by an engine of headrace; S3, CloudWatch Logs, STS and IAM are answered as far as clients need them. Only
    requests that are signed with the keys of its store are answered. Jobs go on when it ends, and the next one with the
    same store finds them.

    With PROGRAM, which stands after --, it runs that program and ends with it: the program finds it by AWS's own
    variables, a Python also where it asks a fixed address of AWS's, and nothing in it changes.

    \b
    Examples:
      headrace serve
      eval "$(headrace serve --print-env)"; python notebook.py
      headrace serve -- python notebook.py
    """
    from headrace.errors import UsageError
    from headrace.install_hint import install_hint

    try:
        from headrace.endpoint.endpoint_server import (
            PORT,
            ServeOptions,
            buckets_dir,
            default_store,
            serve,
            written_setup,
        )
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        words = "headrace serve needs h11, which is not installed"
        raise UsageError(words, hint=install_hint("serve")) from error
    from headrace.log_setup import VARIABLE, log_to_stderr

    options = ServeOptions(
        port=(0 if program else PORT) if port is None else port,
        store=(store or default_store()).absolute(),
        buckets=(buckets or (store / "buckets" if store else buckets_dir())).absolute(),
        **options_of_server,
    )
    if options.certificate is not None and program:
        words = "--tls-cert is for clients of other machines, not for a program that headrace serve runs"
        raise UsageError(words, "leave it out: what the program asks for does not leave this machine")
    if print_env:
        click.echo(written_setup(options).shell())
        return 0

    log_to_stderr(os.environ.get(VARIABLE) or "warning")

    host, engine = options.host, options.engine

    def ready(setup: ClientSetup) -> None:
        where = f"region {options.region}, engine {engine}, store {options.store}"
        click.echo(f"headrace serve: {setup.url} ({where})", err=bool(program))
        if options.certificate is None and not _is_loopback(host):
            click.echo(
                f"warning: {host} can be reached from other machines, and without --tls-cert what clients send and "
                "get can be read on the way",
                err=True,
            )
        if engine != "local" and _is_loopback(host):
            click.echo(
                f"warning: hosts of the engine {engine} cannot reach {setup.url}, so programs there cannot use S3; "
                "name an address of this machine with --host",
                err=True,
            )
        if not program:
            click.echo(f"\n{setup.shell()}\n")
            click.echo("Ctrl-C ends it" + ("" if options.stop_jobs else "; jobs go on"), err=True)

    return serve(options, ready, program)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
