"""The server of the page: one socket on 127.0.0.1, until Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import uvicorn

from headrace.console.app import make_app
from headrace.engines.asking import AskEngine
from headrace.errors import EngineRefused
from headrace.home import home_dir
from headrace.insight.run_cache import RunCache
from headrace.private_folders import make_closed, write_private

ADDRESS = "127.0.0.1"


class _Server(uvicorn.Server):
    """A server that catches signals from before its address is printed until after its end."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves the signals to `_ended_by_signals`; the base class would raise them once more after the shutdown."""
        yield


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Generator[None, None, None]:
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(port: int, path: str, ready: Callable[[str], None], browse: Callable[[str], object] | None = None) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Args:
        port: where to listen on 127.0.0.1; 0 takes one that is free.
        path: first page, e.g. ``/`` or ``/runs/RUN``.
        ready: told the address, with its token, as soon as it can be opened.
        browse: opens an address in a browser; None: nobody does.

    Raises:
        EngineRefused: the port is in use.
    """
    token, once = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    with _listen(port) as listener:
        bound = int(listener.getsockname()[1])
        server: _Server | None = None
        stopping = lambda: server is not None and server.should_exit  # noqa: E731
        app = make_app(RunCache(alive=AskEngine()), token, bound, stopping, once if browse else "")
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=3, http="h11", loop="asyncio",
        )  # fmt: skip
        server = _Server(config)
        with _ended_by_signals(server):
            address = f"http://{ADDRESS}:{bound}{quote(path)}?token="
            ready(f"{address}{token}")
            with contextlib.ExitStack() as stack:
                if browse is not None:
                    browse(stack.enter_context(_redirect(f"{address}{once}", bound)).as_uri())
                server.run(sockets=[listener])


@contextmanager
def _redirect(address: str, port: int) -> Generator[Path, None, None]:
    """A page of this user's alone that leads to an address: the command line of a browser has the page's name only."""
    folder = home_dir() / "ui"
    make_closed(folder)
    page = folder / f"{port}.html"
    write_private(page, f'<meta http-equiv="refresh" content="0; url={address}">\n'.encode())
    try:
        yield page
    finally:
        page.unlink(missing_ok=True)


def _listen(port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it an answer takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EngineRefused(
            f"{ADDRESS}:{port} cannot be listened on: {error.strerror or error}",
            hint="choose another with --port, or leave it out: a free one is taken",
        ) from error
    return listener
