"""The local engine for the table: this machine plays all nodes, each in namespaces of its own.

A node is the namespaces of a host. Its first process is the agent, so a power cut is that process's end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cut_links import cut
from engine_table_platform import Fields, Platform, RunsInFolder, pid_of_agent, pid_of_program
from run_places import pid_here

from headrace.engines.local.cgroups import MEMORY
from headrace.runs import Run
from observer import Observer, control_groups
from patience import allowed

ENGINE = "local"
PREFIX = "127.94.7"
ROOM = 200 << 20  # bytes
LIMIT, USAGE = "memory.limit_in_bytes", "memory.usage_in_bytes"


class LocalPlatform(RunsInFolder):
    """See the module."""

    engine = ENGINE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "home")
        self.folder = folder
        self._observer = Observer(PREFIX)
        self._environment = {**os.environ, "HEADRACE_HOME": str(self.home)}
        self._python = sys.executable

    def fitted(self, job: Fields, python: str) -> Fields:
        self._python = python or sys.executable  # programs run with the Python of the command
        options = {"isolation": "namespace", "stop_grace": 3, "address_prefix": PREFIX}
        return {**job, "engines": {ENGINE: options}}

    def headrace(self, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._python, "-m", "headrace.cli", *words],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=allowed(seconds),
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._python, "-m", "headrace.cli", *words],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill_submitter(self, submitter: subprocess.Popen[str], run: Run) -> None:
        submitter.kill()

    def kill_program(self, run: Run, host: str, stream: str) -> None:
        os.kill(pid_here(pid_of_agent(run, host), pid_of_program(run, host, stream)), signal.SIGKILL)

    def kill_agent(self, run: Run, host: str) -> None:
        os.kill(pid_of_agent(run, host), signal.SIGKILL)

    def kill_node(self, run: Run, host: str) -> None:
        self.kill_agent(run, host)

    def cut(self, run: Run, host: str) -> None:
        cut(run.paths, host)

    def fill_disk(self, run: Run, host: str) -> None:
        program = pid_here(pid_of_agent(run, host), pid_of_program(run, host, "0"))
        variables = dict(
            each.split("=", 1) for each in Path(f"/proc/{program}/environ").read_text().split("\0") if each
        )
        inside = ["nsenter", "--mount", "--target", str(program)]
        words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", variables["SM_MODEL_DIR"]]
        subprocess.run([*inside, *words], check=True)

    def limit_memory(self, run: Run, host: str) -> None:
        (group,) = [path for path in control_groups(run.id) if path.name == host and MEMORY in path.parts]
        (group / LIMIT).write_text(str(int((group / USAGE).read_text()) + ROOM))

    def take_back(self, run: Run) -> None:
        raise AssertionError("nobody takes this machine from a run: the table has no such cell")

    def left(self, run: Run) -> list[str]:
        return self._observer.left(run.id, run.paths.root)

    def mend(self) -> None:
        for run_id in self.runs():
            if not self.run(run_id).finished:
                self.headrace("stop", run_id, "--now")
                self.headrace("wait", run_id)


class LocalMachine:
    """Opens the local platform."""

    needs = ("namespaces",)

    @contextmanager
    def open(self, folder: Path) -> Iterator[Platform]:
        platform = LocalPlatform(folder)
        try:
            yield platform
        finally:
            platform.mend()
