"""Same host, batches of 1,024 rows of 40 floats from a memory-mapped file, two workers: samples that cost little."""

from __future__ import annotations

from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import MappedRows
from bench.feed.figures import Figure, Records, beside_torch
from bench.feed.measure import Bench
from bench.feed.settings import Settings

TITLE = "Same host, batches of 1,024 rows of 40 floats from a memory-mapped file, shuffled, 2 workers"
ROWS, WORKERS = 1024, 2
BATCH_BYTES = ROWS * 40 * 4


def check(batch: Any) -> None:
    """Raises unless a batch is 1,024 rows."""
    if tuple(batch.shape) != (ROWS, 40):
        raise ValueError(f"a batch of {batch.shape}")


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    dataset = MappedRows(ROWS * bench.effort.scaled(3_000, 20))
    shared: dict[str, Any] = {"batch_size": ROWS, "shuffle": True, "num_workers": WORKERS}
    peer = TorchLoader(dataset, **shared, **settings.of("torch", bench.row, WORKERS))
    bench.interleave([peer, HeadraceLoader(dataset, **shared, seed=7)], BATCH_BYTES, check=check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return beside_torch(records, 1.0)
