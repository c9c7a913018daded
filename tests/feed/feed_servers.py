"""Real feed servers for the tests: `python -m headrace.feed.serve` on loopback, with real signals."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from headrace.feed import DataLoader
from headrace.feed.client.remote_pool import inquire
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import Endpoints
from observer import processes_of
from patience import allowed

HERE = Path(__file__).parent
START_SECONDS = 60.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = 15.0) -> None:
    """Waits for a condition. Fails with `what` when it does not come true in time."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > allowed(seconds):
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def write_secret(path: Path, digits: str = "5e" * 32) -> None:
    """Makes the file of a secret as the tests' servers have it, which only this user may read."""
    path.touch(0o600)
    path.write_text(digits)


def open_descriptors() -> int:
    """Returns how many descriptors this process has open, without those of objects that nobody has any more."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def receivers() -> list[psutil.Process]:
    """Returns the receiver processes of this one that live. A child that has ended is a zombie for a moment."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "headrace.feed.client.receiver" in " ".join(child.cmdline()):
                found.append(child)
    return found


def local_executors(loader: DataLoader) -> list[int]:
    """Returns the pids of a loader's own workers. This process has other children, such as servers of the session."""
    pool = next(iter(loader._sessions)).worker_pool
    return [worker.link.process.pid for worker in pool.workers()]  # type: ignore[attr-defined]


def leave_out_torch(patch: pytest.MonkeyPatch) -> None:
    """Servers start as where there is no torch: 3 CPU seconds sooner. They cannot import `feed_data`."""
    patch.setenv("PYTHONPATH", str(HERE.parent / "without_torch"), prepend=os.pathsep)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One feed server.

    Args:
        directory: for its log and secret.
        name: host name in messages.
        executors: how many.
        port: TCP port; a free one by default.
        memory: limit of its staging slabs.
        arguments: further ones of its command line.
        address: IP address that it listens on.
        code: directory of the job's code.
        prefix: command that it is started with: in a namespace, with a full disk.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        executors: int = 2,
        port: int = 0,
        memory: int = 1 << 30,
        arguments: Sequence[str] = (),
        address: str = "127.0.0.1",
        code: Path = HERE,
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.address, self._code, self._prefix = address, code, prefix
        self.port = port or free_port()
        self.mark = f"feedtest-{uuid.uuid4().hex}"
        self.unix = f"@{self.mark}"
        self.secret = directory / "secret"
        if not self.secret.exists():
            write_secret(self.secret)
        self._log = directory / f"{self.mark}.log"
        self._executors, self._memory, self._arguments = executors, memory, arguments
        self._status = -1
        self.environment: dict[str, str] = {}
        self.start()

    @property
    def tcp(self) -> str:
        return f"tcp://{self.address}:{self.port}"

    @property
    def unix_address(self) -> str:
        return f"unix:{self.unix}"

    def start(self) -> None:
        """Starts it, on the same port as before."""
        self._status, theirs = os.pipe()
        command = [
            *self._prefix, sys.executable, "-m", "headrace.feed.serve", "--bind", f"{self.address}:{self.port}",
            "--unix", self.unix, "--executors", str(self._executors), "--secret-file", str(self.secret),
            "--code", str(self._code),
            "--host", self.name, "--status-fd", str(theirs), "--memory", str(self._memory), *self._arguments,
        ]  # fmt: skip
        environment = dict(os.environ) | {"HEADRACE_RUN_ID": self.mark} | self.environment
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, pass_fds=[theirs], stderr=log, env=environment)
        os.close(theirs)
        os.set_blocking(self._status, False)
        self.events: list[dict[str, Any]] = []
        self._rest = b""

    def wait_ready(self) -> Server:
        wait_until(lambda: self.event("ready") or self.process.poll() is not None, "server ready", START_SECONDS)
        assert self.process.poll() is None, self.log()
        return self

    def event(self, name: str) -> list[dict[str, Any]]:
        """Returns the status events of a name so far."""
        try:
            while data := os.read(self._status, 65536):
                self._rest += data
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return [event for event in self.events if event["event"] == name]

    def log(self) -> str:
        return self._log.read_text()

    def forkserver(self) -> psutil.Process:
        [found] = psutil.Process(self.process.pid).children()
        return found

    def executors(self) -> list[psutil.Process]:
        return self.forkserver().children()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Ends it with SIGTERM, or waits for it if it was killed, and checks that no process is left."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(allowed(10))
        if self._status >= 0:
            os.close(self._status)
            self._status = -1
        wait_until(lambda: not processes_of(self.mark, Path("/nonexistent")), f"processes of {self.name} are gone", 5.0)

    def restart(self, **environment: str) -> Server:
        """Starts it again after `kill` or `stop`, with variables of its environment changed."""
        if self.process.poll() is None:
            self.stop()
        self.environment |= environment
        self.start()
        return self.wait_ready()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()
        self.stop()


@contextlib.contextmanager
def serving(*servers: Server) -> Iterator[None]:
    """Waits until servers that were started are ready, and stops them afterwards."""
    try:
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()


class Pair(NamedTuple):
    """Two feed servers, of two executors each."""

    a: Server
    b: Server

    @property
    def secret(self) -> str:
        return str(self.a.secret)

    @property
    def both(self) -> str:
        return f"{self.a.tcp},{self.b.tcp}"

    @property
    def mixed(self) -> str:
        return f"{self.a.unix_address},{self.b.tcp}"

    def endpoints(self) -> dict[str, str]:
        return {"unix": self.a.unix_address, "tcp": self.a.tcp, "two tcp": self.both, "unix and tcp": self.mixed}


def ask(server: Server, address: str = "") -> messages.Status:
    """Returns what a server tells of itself, asked at one of its addresses."""
    [answer] = inquire(Endpoints(address or server.tcp, str(server.secret)))
    assert answer.status is not None, answer.reason
    return answer.status
