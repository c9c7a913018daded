"""Cheap samples with num_workers=0: a map-style dataset, and an IterableDataset, which headrace reads in lanes.

headrace sets generators for every sample there, so that it holds what a worker would make; torch sets none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader
from bench.feed.contenders.torch_loader import TorchLoader
from bench.feed.data import Small
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench
from bench.feed.settings import Settings
from torch.utils.data import IterableDataset

TITLE = "Batches of 64 small samples without workers"
ROWS = 64
SAMPLES = 64 * 20_000
KINDS = ("map-style", "iterable")


class Numbers(IterableDataset[int]):
    """Counts."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    del settings  # there is nothing to set
    datasets: dict[str, Any] = {"map-style": Small(SAMPLES), "iterable": Numbers()}
    for kind, dataset in datasets.items():
        found = [TorchLoader(dataset, batch_size=ROWS), HeadraceLoader(dataset, batch_size=ROWS)]
        bench.interleave(found, ROWS * 8, {kind: None})


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    found = []
    for kind in KINDS:
        for name in ("torch", "headrace"):
            found.append(records.value(f"{name}, {kind}", name, rate, " batches/s", variant=kind))
        found.append(
            records.ratio(
                f"headrace / torch, {kind}, throughput", "headrace", "torch", rate, variant=kind, peer_variant=kind
            )
        )
    return found
