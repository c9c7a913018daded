"""Same host, batches of 64 chats: nested lists and dicts of texts and numbers, two workers."""

from __future__ import annotations

from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import Chats
from bench.feed.figures import Figure, Records, beside_torch
from bench.feed.measure import Bench
from bench.feed.settings import Settings

TITLE = "Same host, batches of 64 chats (dicts of 6 messages and of 200 token ids), 2 workers"
ROWS, WORKERS = 64, 2
BATCH_BYTES = ROWS * (6 * 80 + 200 * 8)


def check(batch: Any) -> None:
    """Raises unless a batch is 64 chats."""
    if len(batch) != ROWS or len(batch[0]["messages"]) != 6 or len(batch[0]["tokens"]) != 200:
        raise ValueError(f"a batch of {len(batch)}")


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    dataset = Chats(ROWS)
    shared: dict[str, Any] = {"batch_size": None, "num_workers": WORKERS}
    peer = TorchLoader(dataset, **shared, **settings.of("torch", bench.row, WORKERS))
    bench.interleave([peer, HeadraceLoader(dataset, **shared, seed=7)], BATCH_BYTES, check=check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return beside_torch(records, 1.0)
