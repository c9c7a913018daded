"""What needs a real Kubernetes cluster. `make kubernetes` starts one and runs these tests; nobody else finds them."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
collect_ignore_glob = [] if "KUBERNETES_CLUSTER" in os.environ else ["*.py"]
sys.path[:0] = [str(ROOT / "scripts" / "kubernetes"), str(ROOT / "tests" / "engines")]


@pytest.fixture(scope="session")
def team() -> str:
    """A namespace in which the cluster's user has the rights that headrace asks for, and no others."""
    from team import make_team

    return make_team()
