"""What the tests of the agent share."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns what headrace has logged in this test, in its words."""
    caplog.set_level("INFO", "headrace")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("headrace.")]
