"""The page, over made-up runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_server import CHROMIUM, Ui, start_ui

import leaks

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--process-per-site", "--in-process-gpu",
]  # fmt: skip


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the module; it and its driver are gone afterwards."""
    from playwright.sync_api import sync_playwright

    with leaks.check(), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
