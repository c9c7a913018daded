"""The page, over made-up runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_server import Ui, start_ui


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
