"""Same host, one worker, whole batches (`batch_size=None`) of one tensor: 19 MB, and 150 KB.

In the plain variant the trainer takes a batch and drops it, in *read* it also copies every byte out, as a copy to a
device would. memcpy is the limit: the trainer fills the batch itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.limits import Memcpy
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, Shaped, payload
from bench.feed.figures import Figure, Records, gigabytes_per_second, rate
from bench.feed.measure import Bench, Contender
from bench.feed.settings import Settings

TITLE = "Same host, fresh batches of one tensor (memcpy-filled), batch_size=None, 1 worker"


def size_of(bench: Bench) -> int:
    """Returns the bytes of a batch."""
    if bench.row.endswith("150k"):
        return IMAGE_BYTES
    return IMAGE_BYTES * bench.effort.scaled(BATCH_IMAGES)


def contenders(row: str, dataset: Any, settings: Settings) -> list[Contender]:
    """Returns torch at its best and headrace as it comes."""
    return [
        TorchLoader(dataset, batch_size=None, num_workers=1, **settings.of("torch", row, 1)),
        HeadraceLoader(dataset, batch_size=None, num_workers=1),
    ]


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    size = size_of(bench)
    out = np.zeros(size, np.uint8)

    def read(batch: Any) -> None:
        np.copyto(out, np.asarray(batch).view(np.uint8))

    def check(batch: Any) -> None:
        if payload(batch) != size:
            raise ValueError(f"a batch of {payload(batch)} bytes instead of {size}")

    dataset = Shaped("one tensor", size)
    both = contenders(bench.row, dataset, settings)
    bench.interleave([*both, Memcpy(size)], size, {"": None, "read": read}, check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    target = 10.0 if records.row == "shm150k" else 6.0
    unit, measure = ("/s", rate) if records.row == "shm150k" else (" GB/s", gigabytes_per_second)
    found = [
        records.ratio("headrace / torch, throughput", "headrace", "torch", rate, target=target),
        records.ratio("the same, every byte read by the trainer", "headrace", "torch", rate, variant="read"),
        records.ratio("headrace / memcpy, throughput", "headrace", "memcpy", rate),
        records.value("headrace", "headrace", measure, unit),
        records.value("torch", "torch", measure, unit),
        records.ratio(
            "headrace / torch, CPU s/GB, all processes", "headrace", "torch", lambda r: r.cpu_per_gb, better="less"
        ),
    ]
    limit = 0.02 if records.row == "shm19" else None
    found.append(
        records.value(
            "CPU on the trainer's side",
            "headrace",
            lambda r: r.trainer_cpu_per_gb,
            " s/GB",
            target=limit,
            better="less",
        )
    )
    found.append(
        records.value(
            "CPU on the trainer's side, torch", "torch", lambda r: r.trainer_cpu_per_gb, " s/GB", better="less"
        )
    )
    return found
