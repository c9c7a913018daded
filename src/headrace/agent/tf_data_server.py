"""Runs one server of tf.data.service: a dispatcher, or a worker.

    python -m headrace.agent.tf_data_server --port 7072 --work-dir DIR --status-fd 5
    python -m headrace.agent.tf_data_server --port 7073 --dispatcher 10.77.0.1:7072 --address 10.77.0.2:7073 \
        --status-fd 5

On `--status-fd` it writes one JSON object a line:

    {"event": "ready", "version": "2.21.0"}
    {"event": "alive", "workers": 2}            every second; of a worker "tasks" and the bytes "sent"
    {"event": "failed", "reason": "..."}        it cannot run here, however often it is started

SIGTERM ends it, with exit code 0 once it serves: the trainers that read from it have ended by then. TensorFlow is
imported here and nowhere else in the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.private_folders import make_folders

INTERVAL = 1.0
_ACKNOWLEDGED = struct.Struct("=Q")
_OFFSET = 120  # of tcpi_bytes_acked in struct tcp_info
_INFO_BYTES = _OFFSET + _ACKNOWLEDGED.size


class CannotRun(Exception):
    """This server cannot run here, however often it is started."""


class BytesSent:
    """The bytes that left from one port of this process, as the kernel counts them.

    TensorFlow's server does not tell: its connections are found among this process's descriptors, and TCP_INFO (Linux
    4.2) has the bytes of each that the other side has acknowledged.

    Args:
        port: a TCP port on which this process listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: dict[str, int] = {}  # by the kernel's name of the socket, also of those that are closed by now

    def look(self) -> int:
        """Returns the bytes so far, without those of a connection since the last look before it was closed."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names are enough)
            with contextlib.suppress(OSError):  # it was closed meanwhile, or is no connection
                inode = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
                if inode.startswith("socket:"):
                    self._add(inode, int(name))
        return sum(self._seen.values())

    def _add(self, inode: str, descriptor: int) -> None:
        borrowed = socket.socket(fileno=descriptor)
        try:
            if borrowed.family in (socket.AF_INET, socket.AF_INET6) and borrowed.getsockname()[1] == self._port:
                info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                if len(info) == _INFO_BYTES:
                    self._seen[inode] = max(self._seen.get(inode, 0), _ACKNOWLEDGED.unpack_from(info, _OFFSET)[0])
        finally:
            borrowed.detach()  # it belongs to the server


def check_port(port: int) -> None:
    """Raises CannotRun when another process listens on the port.

    TensorFlow's server shares its port with any other that allows it, so that two jobs would mix their data.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen(1)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise CannotRun(f"port {port} {why}") from None


def milliseconds(seconds: float | None) -> int | None:
    """Returns whole milliseconds, at least one; None for TensorFlow's own default."""
    return None if seconds is None else max(1, round(seconds * 1000))


def start_server(options: argparse.Namespace) -> tuple[str, Callable[[], dict[str, int]]]:
    """Starts the server. Returns TensorFlow's version, and a function that returns its load.

    Raises:
        CannotRun: no TensorFlow, or no port.
    """
    # A server runs no Keras: without it TensorFlow is imported in two thirds of the time (it takes a missing tf_keras).
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        import tensorflow as tf
    except ImportError as error:
        raise CannotRun(
            f"cannot import tensorflow in {sys.executable}: {error}; install it there (pip install tensorflow), "
            "or name it in the group's requirements"
        ) from None
    from headrace.feed.worker.forkserver import lower_priority

    if options.nice:  # only now: beside busy ranks the import would take six times as long
        lower_priority(options.nice)
    check_port(options.port)  # again: the import takes seconds, and another job may have come
    service = tf.data.experimental.service
    server: Any
    if options.dispatcher:
        config = service.WorkerConfig(
            options.dispatcher, worker_address=options.address, port=options.port, protocol="grpc"
        )
        server = service.WorkerServer(config)
        name, count = "tasks", getattr(server, "_num_tasks", None)
    else:
        if options.work_dir:
            make_folders(Path(options.work_dir))
        config = service.DispatcherConfig(
            port=options.port,
            protocol="grpc",
            work_dir=options.work_dir or None,
            fault_tolerant_mode=bool(options.work_dir),
            worker_timeout_ms=milliseconds(options.worker_timeout),
            job_gc_timeout_ms=milliseconds(options.job_gc_timeout),
            job_gc_check_interval_ms=milliseconds(options.job_gc_check_interval),
        )
        server = service.DispatchServer(config)
        name, count = "workers", getattr(server, "_num_workers", None)

    sent = BytesSent(options.port) if options.dispatcher else None

    def load(keep: Any = server) -> dict[str, int]:  # the server ends with the last reference to it
        bytes_sent = {} if sent is None else {"sent": sent.look()}
        return bytes_sent if count is None else {name: int(count()), **bytes_sent}

    return str(tf.__version__), load


def run(options: argparse.Namespace, tell: Callable[[dict[str, object]], None]) -> None:
    """Serves until SIGTERM. Raises CannotRun."""
    check_port(options.port)  # before the import
    # Until it serves SIGTERM ends it as any process: a worker waits for its dispatcher where no handler in Python runs.
    version, load = start_server(options)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    tell({"event": "ready", "version": version})
    never = threading.Event()
    while not never.wait(INTERVAL):
        tell({"event": "alive", **load()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.agent.tf_data_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, required=True, help="TCP port, on all addresses")
    parser.add_argument("--dispatcher", default="", help="address:port of the dispatcher: this is a worker")
    parser.add_argument("--address", default="", help="address:port at which trainers reach this worker")
    parser.add_argument("--work-dir", default="", help="where a dispatcher keeps its state, from which it resumes")
    parser.add_argument("--worker-timeout", type=float, default=None, help="seconds, see DispatcherConfig")
    parser.add_argument("--job-gc-timeout", type=float, default=None, help="seconds, see DispatcherConfig")
    parser.add_argument("--job-gc-check-interval", type=float, default=None, help="seconds, see DispatcherConfig")
    parser.add_argument("--nice", type=int, default=0, help="niceness")
    parser.add_argument("--status-fd", type=int, default=None, help="descriptor for status lines")
    return parser.parse_args()


def main() -> int:
    """Entry point of the module. Returns the exit code."""
    options = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent handles Ctrl-C in a terminal
    if options.status_fd is not None:
        os.set_inheritable(options.status_fd, False)

    def tell(status: dict[str, object]) -> None:
        if options.status_fd is not None:
            with contextlib.suppress(BrokenPipeError):  # the agent is gone, and this process follows it
                os.write(options.status_fd, json.dumps(status).encode() + b"\n")

    try:
        run(options, tell)
    except CannotRun as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        tell({"event": "failed", "reason": str(error)})
    return 1


if __name__ == "__main__":
    sys.exit(main())
