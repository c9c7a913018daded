"""What a sample freed is there for the next one: a worker does not ask the kernel for it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from feed_servers import Server
from freed_data import PIECE, PIECES, Freeing, freeing

from headrace.feed import DataLoader, stack_arrays
from needs import require

PAGES = PIECES * PIECE // 4096  # of one sample


def faults(loader: DataLoader) -> int:
    """Page faults of 32 samples, when the first ones have come."""
    with loader:
        told = np.concatenate([np.asarray(batch).ravel() for batch in loader])
    return int(told[-1] - told[-33])


@pytest.fixture
def glibc() -> None:
    require("glibc")


@pytest.mark.usefixtures("glibc", "without_torch")
def test_a_server_s_worker_keeps_it_unless_the_user_has_set_otherwise(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(server: Server) -> int:
        where: dict[str, Any] = {"workers": server.tcp, "secret_file": server.secret}
        return faults(DataLoader(freeing(), 4, collate_fn=stack_arrays, verify=0, **where))

    assert of(own_server("kept", executors=1)) < PAGES
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert of(own_server("given-back", executors=1)) > 16 * PAGES


@pytest.mark.usefixtures("glibc", "without_torch")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_the_trainer_keeps_it(method: str) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method, "collate_fn": stack_arrays}
    assert faults(DataLoader(Freeing(), 4, verify=0, **options)) < PAGES
