"""A command line in a process of its own, with a runs directory, addresses and ports of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[2] / "src")
COMMAND = [sys.executable, "-m", "headrace.cli"]


class Cli:
    """Runs `headrace` as a user does.

    Attributes:
        env: its variables; HEADRACE_HOME is a directory of the test.
        runs: where its runs lie.
        cwd: its working directory.
    """

    def __init__(self, root: Path) -> None:
        self.cwd = root
        self.runs = root / "home" / "runs"
        dropped = {"NO_COLOR", "TERM", "COLUMNS", "PYTHONUNBUFFERED"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        self.env = {**kept, "HEADRACE_HOME": str(root / "home"), "PYTHONPATH": SOURCE, "TERM": "xterm"}

    def __call__(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run_python(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a Python script in the same environment."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
            check=True,
        )  # fmt: skip

    def start(self, *arguments: str, out: int = subprocess.PIPE, err: int | None = None) -> subprocess.Popen[str]:
        """Starts a command, in a session of its own."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out if err is None else err,
            text=True,
            start_new_session=True,
        )
