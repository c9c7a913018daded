"""The page, over made-up runs. Without Chromium the tests in a browser are not collected, and the run says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_server import CHROMIUM, Ui, start_ui

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
