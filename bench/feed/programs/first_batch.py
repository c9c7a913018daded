"""Seconds from construction to the first batch: ``first_batch METHOD SAMPLES LOADER``; prints JSON.

A dataset of (path, label) pairs, as image folders have it; its samples are made of the path's text, so no file is read.
One loader a process, so that each pays for what it loads late.

With spawn every worker imports this file, and with it torch, before it does anything: that is the user's import. It is
timed where it happens and told in every sample, and taken off.
"""

from __future__ import annotations

import time

_BEGUN = time.monotonic()

import gc  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import torch.utils.data  # noqa: E402

from headrace import feed  # noqa: E402

feed.DataLoader  # noqa: B018 - imports it
IMPORTS = time.monotonic() - _BEGUN

WORKERS = 2
SHARED: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": WORKERS}
LOADERS: dict[str, Callable[..., Any]] = {
    "torch": torch.utils.data.DataLoader,
    "headrace": feed.DataLoader,
    "headrace, seed=": lambda dataset, **options: feed.DataLoader(dataset, seed=7, **options),
}


class Paths:
    """`count` (path, label) pairs."""

    def __init__(self, count: int) -> None:
        self.samples = [
            (f"train/n{number // 1200:08d}/image_{number:08d}.JPEG", number % 1000) for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return len(path), label, IMPORTS


def measure(name: str, dataset: Paths, method: str) -> dict[str, float]:
    """Returns the seconds to the first batch, without and with the workers' imports."""
    gc.collect()
    begun = time.monotonic()
    loader = LOADERS[name](dataset, multiprocessing_context=method, **SHARED)
    iterator = iter(loader)
    _, _, imports = next(iterator)
    total = time.monotonic() - begun
    if len(imports) != SHARED["batch_size"]:
        raise ValueError(f"a batch of {len(imports)}")
    inside = float(imports[0]) if method == "spawn" else 0.0
    del iterator
    if hasattr(loader, "close"):
        loader.close()
    return {"seconds": total - inside, "total_seconds": total, "import_seconds": inside}


def main() -> None:
    """Entry point."""
    method, count, name = sys.argv[1:]
    print(json.dumps(measure(name, Paths(int(count)), method)))


if __name__ == "__main__":
    main()
