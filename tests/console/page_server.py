"""`headrace ui` as a user starts it, in a process of its own, over runs of a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from needs import chromium

SOURCE = str(Path(__file__).parents[2] / "src")
CHROMIUM = chromium()
COMMAND = [sys.executable, "-m", "headrace.cli"]


@dataclass
class Ui:
    """A running `headrace ui`.

    Attributes:
        runs: directory of its runs.
        env: variables of the command.
        address: that it printed.
        process: it.
    """

    runs: Path
    env: dict[str, str]
    address: str
    process: subprocess.Popen[str]
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # no socket is open between two questions
        self.client = httpx.Client(base_url=self.base, limits=limits, timeout=30, verify=False)

    @property
    def base(self) -> str:
        found = re.match(r"http://127\.0\.0\.1:\d+", self.address)
        assert found is not None
        return found[0]

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def url(self, path: str) -> str:
        """Returns an address with the token."""
        return f"{self.base}{path}{'&' if '?' in path else '?'}token={self.token}"

    def stop(self) -> int:
        """Ends it as Ctrl-C does, and returns its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def start_ui(home: Path, *arguments: str) -> Ui:
    """Starts `headrace ui` and waits for its address."""
    env = {**os.environ, "HEADRACE_HOME": str(home), "PYTHONPATH": SOURCE}
    process = subprocess.Popen(
        [*COMMAND, "ui", "--no-open", *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()  # the test's own timeout bounds it
    if not line.startswith("headrace ui: http"):
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"headrace ui said {line!r}")
    return Ui(home / "runs", env, line.split()[-1], process)
