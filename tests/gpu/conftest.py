"""Tests on a real GPU: `python -m pytest tests/gpu`. Without one they are not collected, and the run says so."""

from __future__ import annotations

import pytest
import torch

from notes import note

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
if collect_ignore_glob:
    why = "was built without CUDA" if torch.version.cuda is None else "sees no GPU"
    note("not run on this machine", f"tests/gpu: torch {torch.__version__} {why}")


@pytest.fixture(scope="session", autouse=True)
def cuda() -> None:
    """Starts CUDA, whose threads and descriptors stay to the end, before anybody looks for what a test leaves."""
    torch.zeros(1).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.synchronize()
