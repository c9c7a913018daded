"""A CPU-heavy pipeline, two workers: photographs are decoded, cropped, flipped and jittered; batches of 32.

Batches come a few a second and two at a time, so windows are longer than those of other rows.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader, HeadraceTcp
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench
from bench.feed.photographs import SIZE, Photographs, photographs, prepare
from bench.feed.settings import Settings

TITLE = "CPU-heavy pipeline (JPEG decode, random resized crop, jitter), 2 workers"
WORKERS = 2
COUNT = 1 << 20


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    rows = bench.effort.scaled(32, least=4)
    bench.effort = replace(bench.effort, seconds=4 * bench.effort.seconds, settle=3 * bench.effort.settle)
    shared: dict[str, Any] = {"batch_size": rows, "shuffle": True}
    with tempfile.TemporaryDirectory(prefix="feed-bench-") as directory:
        prepare(Path(directory))
        dataset = Photographs(directory, COUNT)
        remote = HeadraceTcp(photographs(directory=directory, count=COUNT), WORKERS, **shared, seed=7)
        remote.name = "headrace, TCP"
        found = [
            TorchLoader(dataset, **shared, num_workers=WORKERS, **settings.of("torch", bench.row, WORKERS)),
            HeadraceLoader(dataset, **shared, num_workers=WORKERS, seed=7),
            remote,
        ]
        bench.interleave(found, rows * (3 * SIZE * SIZE + 8))


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    tcp = "headrace, TCP"
    return [
        records.ratio("headrace / torch, throughput", "headrace", "torch", rate, target=1.0),
        records.ratio("headrace through TCP / headrace, throughput", tcp, "headrace", rate, target=0.97),
        records.ratio(
            "headrace through TCP / headrace, CPU of all processes",
            tcp,
            "headrace",
            lambda record: record.cpu_per_gb,
            better="less",
        ),
        records.ratio(
            "of that, trainer and receiver",
            tcp,
            "headrace",
            lambda record: record.trainer_cpu_per_gb if record.contender == tcp else record.cpu_per_gb,
            better="less",
        ),
        records.value("headrace", "headrace", rate, " batches/s"),
        records.value("torch", "torch", rate, " batches/s"),
        records.ratio(
            "headrace / torch, CPU of all processes", "headrace", "torch", lambda r: r.cpu_per_gb, better="less"
        ),
    ]
