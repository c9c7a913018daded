"""Batches that take several slices to make, while the trainer computes: samples that sleep, so no core is short.

Workers have three quarters of a step's time to do, so a loader that has them go on while the trainer has its batch
hands over the next one at once. What was made ahead is used up before a window.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench
from bench.feed.settings import Settings
from bench.feed.sleeping import Sleeper

TITLE = "Batches of 0.3 s of work a worker, and a trainer that takes 0.4 s a step"
ROWS = 16
STEP, WORK = 0.4, 0.3  # seconds; WORK: of each worker, for a batch
WORKERS = (1, 2, 4)


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    scale = min(1.0, bench.effort.seconds)  # a quick look takes short steps
    step = STEP * scale
    bench.effort = replace(bench.effort, settle=10 * step, seconds=10 * step)
    for workers in WORKERS:
        dataset = Sleeper(workers * WORK * scale / ROWS)
        shared: dict[str, Any] = {"batch_size": ROWS, "num_workers": workers}
        peer = TorchLoader(dataset, **shared, **settings.of("torch", bench.row, workers))
        bench.interleave(
            [peer, HeadraceLoader(dataset, **shared)], ROWS * 32, {f"workers {workers}": lambda _: time.sleep(step)}
        )


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return [
        records.ratio(
            f"headrace / torch, {workers} worker{'s' if workers > 1 else ''}, steps a second",
            "headrace",
            "torch",
            rate,
            variant=f"workers {workers}",
            peer_variant=f"workers {workers}",
            target=0.98,
        )
        for workers in WORKERS
    ]
