"""Processes that the contenders start: feed servers of headrace, and the peers' servers. All on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Returns a TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FeedServer:
    """One `python -m headrace.feed.serve`, ready when it is made.

    Args:
        executors: how many.
        secret: file with the secret of other servers; by default one of its own.
    """

    def __init__(self, executors: int, secret: str = "") -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="feed-bench-")
        self.secret = secret or self._new_secret()
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        status, theirs = os.pipe()
        command = [sys.executable, "-m", "headrace.feed.serve", "--bind", f"127.0.0.1:{port}"]
        command += ["--executors", str(executors), "--secret-file", self.secret, "--code", str(ROOT)]
        self.process = subprocess.Popen([*command, "--status-fd", str(theirs)], pass_fds=[theirs])
        os.close(theirs)
        with os.fdopen(status) as events:
            if '"ready"' not in events.readline():
                self.stop()
                raise RuntimeError("the feed server did not start; see its message above")
            os.set_blocking(events.fileno(), False)
            self._status = os.dup(events.fileno())  # kept open: the server writes what it loses

    def _new_secret(self) -> str:
        secret = Path(self._directory.name) / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        return str(secret)

    def stop(self) -> None:
        """Ends it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        if hasattr(self, "_status"):
            os.close(self._status)
        self._directory.cleanup()


class Program:
    """A server program of this suite (`bench.feed.programs`), ready when it is made; its first line is its port.

    Args:
        name: module name.
        arguments: its arguments.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"bench.feed.programs.{name}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            self.stop()
            raise RuntimeError(f"{name} did not start: {line!r}; see its message above")
        self.port = int(line)

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
