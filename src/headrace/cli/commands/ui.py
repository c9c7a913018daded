"""`headrace ui`."""

from __future__ import annotations

import click


@click.command("ui", short_help="Show the runs of this machine on a local web page.")
@click.argument("run", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Where to listen on 127.0.0.1."
)
@click.option("--open/--no-open", "browse", default=True, help="Whether to open the page in a browser.")
def command(run: str | None, port: int, browse: bool) -> int:
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
