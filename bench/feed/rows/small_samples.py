"""Same host, batches of 64 small samples (784 bytes and a label), shuffled, two workers.

The samples draw no random numbers, so headrace soon sets no generators for them, as torch.
"""

from __future__ import annotations

from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import Small
from bench.feed.figures import Figure, Records, beside_torch
from bench.feed.measure import Bench
from bench.feed.settings import Settings

TITLE = "Same host, batches of 64 small samples, shuffled, 2 workers"
ROWS, WORKERS = 64, 2
SAMPLES = 64 * 20_000
BATCH_BYTES = ROWS * (784 + 8)


def check(batch: Any) -> None:
    """Raises unless a batch is 64 images and labels."""
    images, labels = batch
    if (tuple(images.shape), tuple(labels.shape)) != ((ROWS, 28, 28), (ROWS,)):
        raise ValueError(f"a batch of {images.shape} and {labels.shape}")


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    dataset = Small(SAMPLES)
    shared: dict[str, Any] = {"batch_size": ROWS, "shuffle": True, "num_workers": WORKERS}
    peer = TorchLoader(dataset, **shared, **settings.of("torch", bench.row, WORKERS))
    bench.interleave([peer, HeadraceLoader(dataset, **shared, seed=7)], BATCH_BYTES, check=check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return beside_torch(records, 2.0)
