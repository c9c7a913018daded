"""What every test of the proof has: a printed seed, time enough in the long run, a word about what cannot run here."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from effort import SOAK, SOAK_SECONDS

from notes import note


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives the long run its time, and says what networks with losses need."""
    here = f"{Path(__file__).parent}{os.sep}"
    mine = [item for item in items if str(item.path).startswith(here)]
    if SOAK:
        for item in mine:
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS + 600), append=False)
    for item in mine:
        if item.get_closest_marker("namespaces"):
            item.add_marker(pytest.mark.needs("ip", "nft", "firewall"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test's random choices; printed."""
    chosen = int(os.environ.get("HEADRACE_SEED") or random.SystemRandom().randrange(2**32))
    note("seeds of the proof (repeat with HEADRACE_SEED=...)", f"{chosen:>10}  {request.node.nodeid}")
    print("seed", chosen)
    return chosen


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is inside a job, whatever the shell says."""
    for name in ("HEADRACE_FEED", "HEADRACE_FEED_SECRET_FILE", "HEADRACE_METRICS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
