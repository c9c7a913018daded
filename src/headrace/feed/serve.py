"""Runs a feed server: the program that serves data workers on one host.

    python -m headrace.feed.serve --bind 127.0.1.1:7070 --unix @headrace/run/algo-1 --executors 2 \\
        --secret-file FILE --code DIR --nice 10 --host algo-1 --group data_group --status-fd 5

On `--status-fd` it writes one JSON object a line:

    {"event": "ready", "executors": 2}
    {"event": "executor_lost", "pid": 123, "status": -9, "hung": false, "reason": "killed by SIGKILL", "replaced": true}
    {"event": "job_refused", "job": "host:123", "reason": "21 executors ended within 60 s; ..."}

`status` is an exit code, or a signal as a negative number.

Inside a job (HEADRACE_METRICS names a file) it appends a line a second to that file: the run's `worker` metric.

SIGTERM ends it with exit code 0. The agent starts it in this form; `headrace feed serve` is the same program with the
defaults that people want.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from headrace.errors import FeedError, HeadraceError
from headrace.feed.descriptors import explained
from headrace.feed.wire.endpoints import read_secret, split_address
from headrace.feed.wire.framed_connection import ConnectionClosed
from headrace.feed.wire.messages import Status
from headrace.feed.wire.transport import ServerTls, server_tls
from headrace.feed.worker.executor_pool import ExecutorPool
from headrace.feed.worker.feed_server import MEMORY, FeedServer, ServeOptions


def listen_tcp(address: str) -> socket.socket:
    """Opens the TCP port. `address` is ``ip:port``. Raises FeedError."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        told = os.strerror(error.errno) if error.errno else str(error)  # its own words name the address once more
        hint = "another program listens there: end it, or give another port" if error.errno == errno.EADDRINUSE else ""
        raise FeedError(f"cannot listen on {address}: {told}", hint) from error


def listen_unix(name: str) -> socket.socket:
    """Opens an abstract Unix socket; `name` begins with ``@``. The kernel removes it with the process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind("\0" + name.removeprefix("@"))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise FeedError(f"cannot listen on {name}: {error.strerror}") from error
    return listener


def serve(options: ServeOptions, ready: Callable[[str, int], None] | None = None) -> None:
    """Serves until SIGTERM, which ends this process with exit code 0, whatever is under way.

    Args:
        options: how.
        ready: called with the address (IP and port) that it listens on when all executors have started.

    Raises:
        FeedError: it cannot start: the secret, the certificate, the port, the metrics.
        ExecutorsLost: the executors die faster than they may be replaced.
    """

    def stop(_signal: int, _frame: object) -> None:
        sys.exit(0)

    with ExitStack() as stack:
        stack.enter_context(explained())
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, stop))
        if options.status_fd is not None:
            try:
                os.set_inheritable(options.status_fd, False)
            except (OSError, OverflowError) as error:
                raise FeedError(f"status lines cannot be written to descriptor {options.status_fd}: {error}") from error
        secret, tls = read_secret(options.secret_file), _tls(options)
        listeners = [stack.enter_context(listen_tcp(options.bind))]
        if options.unix:
            listeners.append(stack.enter_context(listen_unix(options.unix)))
        ip, port = listeners[0].getsockname()[:2]
        watch = _metrics(options.metrics, stack) if options.metrics else None
        pool = stack.enter_context(closing(ExecutorPool(options.executors, options.code, options.nice)))
        server = FeedServer(listeners, options, secret, pool, watch, tls)
        try:
            server.run(ready=None if ready is None else lambda: ready(ip, port))
        except ConnectionClosed as error:
            raise FeedError("the process that starts the executors has ended") from error


def _tls(options: ServeOptions) -> ServerTls | None:
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise FeedError("TLS needs a certificate and its private key", hint="--tls-cert FILE --tls-key FILE")
    return server_tls(options.tls_cert, options.tls_key)


def _metrics(address: str, stack: ExitStack) -> Callable[[Status], None]:
    from headrace.feed.prometheus import ServerCollector, listen

    collector = ServerCollector()
    host, port = split_address(address if ":" in address else f"127.0.0.1:{address}")
    stack.enter_context(closing(listen([collector], port, host)))
    return collector.watch


def _arguments() -> ServeOptions:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.feed.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bind", required=True, help="ip:port to listen on")
    parser.add_argument("--unix", default="", help="abstract Unix socket for clients on this host, with a leading @")
    parser.add_argument("--executors", type=int, required=True, help="worker processes")
    parser.add_argument("--secret-file", type=Path, required=True, help="file with the job's secret, hex")
    parser.add_argument("--code", type=Path, action="append", default=[], help="directory of the job's code")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the executors")
    parser.add_argument("--host", default=socket.gethostname(), help="name of this host in messages")
    parser.add_argument("--group", default="", help="name of this host's instance group, for those who list processes")
    parser.add_argument("--status-fd", type=int, default=None, help="descriptor for status lines")
    parser.add_argument("--memory", type=int, default=MEMORY, help="limit of the staging slabs, bytes")
    parser.add_argument("--metrics-port", default="", help="port, or ip:port, for Prometheus")
    parser.add_argument("--tls-cert", type=Path, default=None, help="certificate, PEM; with it TCP is TLS")
    parser.add_argument("--tls-key", type=Path, default=None, help="its private key, PEM")
    parser.add_argument("--advertise", action="append", default=[], help="ip:port that clients dial to get here")
    given = parser.parse_args()
    try:
        return ServeOptions(
            given.bind, given.executors, given.secret_file, tuple(given.code), given.nice, given.host, given.unix,
            given.status_fd, given.memory, given.metrics_port, given.tls_cert, given.tls_key, tuple(given.advertise),
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))


def main() -> int:
    """Entry point of the module. Returns the exit code."""
    options = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in a terminal is the agent's business
    try:
        serve(options)
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
