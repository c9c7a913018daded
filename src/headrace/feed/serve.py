"""Runs a feed server: the program that serves data workers on one host.

    python -m headrace.feed.serve --bind 127.0.1.1:7070 --unix @headrace/run/algo-1 --executors 2 \\
        --secret-file FILE --code DIR --nice 10 --host algo-1 --group data_group --status-fd 5

On `--status-fd` it writes one JSON object a line:

    {"event": "ready", "executors": 2}
    {"event": "executor_lost", "pid": 123, "reason": "killed by SIGKILL", "replaced": true}

SIGTERM ends it with exit code 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

from headrace.feed.crew import Crew
from headrace.feed.desk import CrewLost
from headrace.feed.server import FeedServer
from headrace.feed.wire import ConnectionClosed


def listen_tcp(address: str) -> socket.socket:
    """Opens the TCP port. `address` is ``ip:port``. Raises OSError."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)


def listen_unix(name: str) -> socket.socket:
    """Opens an abstract Unix socket; `name` begins with ``@``. The kernel removes it with the process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name.removeprefix("@"))
    listener.listen(128)
    return listener


def _arguments() -> argparse.Namespace:
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
    parser.add_argument("--group", default="", help="name of this host's instance group")
    parser.add_argument("--status-fd", type=int, default=None, help="descriptor for status lines")
    parser.add_argument("--memory", type=int, default=1 << 30, help="limit of the staging slabs, bytes")
    return parser.parse_args()


def main() -> int:
    """Entry point of the module. Returns the exit code."""
    options = _arguments()

    def stop(_signal: int, _frame: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.status_fd is not None:
        os.set_inheritable(options.status_fd, False)
    secret = bytes.fromhex(options.secret_file.read_text())
    try:
        listeners = [listen_tcp(options.bind)]
        if options.unix:
            listeners.append(listen_unix(options.unix))
    except OSError as error:
        print(f"error: cannot listen on {options.bind}: {error.strerror}", file=sys.stderr)
        return 1
    crew = Crew(options.executors, options.code, options.nice)
    try:
        FeedServer(listeners, secret, crew, options.host, options.status_fd, options.memory).run()
    except CrewLost as error:
        print(f"error: {error}", file=sys.stderr)
    except ConnectionClosed:
        print("error: the process that starts the executors has ended", file=sys.stderr)
    finally:
        crew.close()
    return 1


if __name__ == "__main__":
    sys.exit(main())
