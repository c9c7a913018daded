"""Same host, one worker, batches of 8 samples that fill an array of their own, 19 MB a batch: `feed.empty` or not.

Both are headrace's loader; the dataset fills `numpy.empty` or `feed.empty`. So the ratio is what the one copy costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import BATCH_IMAGES, ENDLESS, IMAGE_BYTES, payload
from bench.feed.figures import Figure, Records, gigabytes_per_second, rate
from bench.feed.measure import Bench
from bench.feed.settings import Settings

from headrace import feed

TITLE = "Same host, batches of 8 arrays that the dataset fills, 19 MB, 1 worker: feed.empty beside numpy.empty"
SAMPLES = 8


class Filling:
    """Fills an array of `size` bytes by one memcpy, which stands for a decoder that writes its output once."""

    def __init__(self, size: int, *, in_place: bool) -> None:
        self.source = np.ones(size, np.uint8)
        self.in_place = in_place

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        array = (feed.empty if self.in_place else np.empty)(self.source.shape, self.source.dtype)
        np.copyto(array, self.source)
        return array


class FillingInPlace(HeadraceLoader):
    """headrace's loader, with a dataset that uses `feed.empty`."""

    name = "headrace, feed.empty"


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    size = IMAGE_BYTES * bench.effort.scaled(BATCH_IMAGES, 8) // SAMPLES
    common: dict[str, Any] = {"batch_size": SAMPLES, "num_workers": 1}

    def check(batch: Any) -> None:
        if payload(batch) != SAMPLES * size or not bool((batch == 1).all()):
            raise ValueError("a batch of other bytes")

    plain, in_place = Filling(size, in_place=False), Filling(size, in_place=True)
    contenders = [
        TorchLoader(plain, **common, **settings.of("torch", "shm19", 1)),
        HeadraceLoader(plain, **common),
        FillingInPlace(in_place, **common),
    ]
    bench.interleave(contenders, SAMPLES * size, check=check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    ours = FillingInPlace.name
    return [
        records.ratio("feed.empty / numpy.empty, throughput", ours, "headrace", rate),
        records.ratio("the same, CPU s/GB, all processes", ours, "headrace", lambda r: r.cpu_per_gb, better="less"),
        records.ratio("feed.empty / torch, throughput", ours, "torch", rate),
        records.ratio("feed.empty / torch, CPU s/GB", ours, "torch", lambda r: r.cpu_per_gb, better="less"),
        records.value(ours, ours, gigabytes_per_second, " GB/s"),
    ]
