"""A feed server on 127.0.0.1 for a measurement, and the CPU time of the processes that take part in it."""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from headrace.child_python import module_command
from headrace.errors import FeedError

START_SECONDS = 120.0


class LoopbackServer(NamedTuple):
    """A server that is ready: `workers=` and `secret_file=` of its loaders, and its process."""

    address: str
    secret_file: str
    process: psutil.Popen


@contextmanager
def feed_server(executors: int, *, code: Path | None = None, secret_file: str = "") -> Iterator[LoopbackServer]:
    """Runs one `python -m headrace.feed.serve`.

    Args:
        executors: how many.
        code: directory of the pipeline's code, if it is not installed.
        secret_file: the secret of other servers, to be used with them; by default a new one.

    Raises:
        FeedError: it does not start.
    """
    with ExitStack() as stack:
        if not secret_file:
            secret = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-feed-"))) / "secret"
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_hex(32))
            secret_file = str(secret)
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        status, theirs = os.pipe()
        stack.callback(os.close, status)  # open to the end: the server writes what it loses
        command = module_command("headrace.feed.serve", "--bind", address, "--executors", str(executors))
        command += ["--secret-file", secret_file, "--status-fd", str(theirs)]
        command += ["--code", str(code)] if code is not None else []
        try:
            process = psutil.Popen(command, pass_fds=[theirs], stdin=subprocess.DEVNULL)
        finally:
            os.close(theirs)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        _wait_until_ready(status)
        yield LoopbackServer(f"tcp://{address}", secret_file, process)


def _wait_until_ready(status: int) -> None:
    status_lines, deadline = b"", time.monotonic() + START_SECONDS
    while b'"ready"' not in status_lines:
        readable, _, _ = select.select([status], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise FeedError(f"the feed server of the measurement did not start within {START_SECONDS:.0f} s")
        more = os.read(status, 4096)
        if not more:
            raise FeedError("the feed server of the measurement ended before it was ready; what it said is above")
        status_lines += more


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the CPU seconds, user and system, that processes have used; one that has ended does not count."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
