"""The servers of the peers, on loopback; `headrace.measuring.loopback` has headrace's."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Returns a TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
