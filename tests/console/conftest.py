"""The page as a user starts it, over made-up runs; and one browser for a file of tests.

Without Chromium the tests in the browser are not collected, and the run says so.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

SOURCE = str(Path(__file__).parents[2] / "src")
COMMAND = [sys.executable, "-m", "headrace.cli"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

collect_ignore_glob = [] if CHROMIUM else ["test_page_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says that the tests in the browser were not run, and why."""
    if collect_ignore_glob:
        terminalreporter.section("not run on this machine")
        terminalreporter.write_line("tests/console/test_page_*.py: there is no Chromium (apt-get install chromium)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In CI nothing is left out."""
    if collect_ignore_glob and os.environ.get("CI") == "true":
        raise pytest.UsageError("there is no Chromium, and CI must run the tests of the page")


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
        self.client = httpx.Client(base_url=self.base, params={"token": self.token}, timeout=30)

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

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command over the same runs."""
        return subprocess.run(
            [*COMMAND, *arguments], env=self.env, capture_output=True, text=True, timeout=60, check=True
        )

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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for HEADRACE_HOME."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ui(home: Path) -> Iterator[Ui]:
    """The page, over the runs that the module's fixtures and tests make in `home`."""
    running = start_ui(home)
    try:
        yield running
    finally:
        assert running.stop() == 0, "Ctrl-C is its ordinary end"
