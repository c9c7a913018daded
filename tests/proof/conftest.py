"""What every test of the proof has: a printed seed, time enough in the long run, a word about what cannot run here."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from effort import SOAK, SOAK_SECONDS

from notes import note


def why_no_namespaces() -> str:
    """Returns why this process cannot make network and mount namespaces; nothing if it can."""
    missing = [tool for tool in ("ip", "nft", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install iproute2 nftables)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "nft", "list", "ruleset"], capture_output=True, text=True, check=False
    )
    return f"needs root or CAP_SYS_ADMIN: {tried.stderr.strip()}" if tried.returncode else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives the long run its time; leaves out, by name, what this machine cannot run. In CI everything must run."""
    here = f"{Path(__file__).parent}{os.sep}"
    mine = [item for item in items if str(item.path).startswith(here)]
    if SOAK:
        for item in mine:
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS + 600), append=False)
    needing = [item for item in mine if item.get_closest_marker("namespaces")]
    reason = why_no_namespaces() if needing and os.environ.get("CI") != "true" else ""
    if reason:
        for item in needing:
            note("left out on this machine", f"{item.nodeid}: {reason}")
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


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
