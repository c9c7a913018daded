"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import leaks
import pytest


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a descriptor or shared memory behind."""
    with leaks.check():
        yield
