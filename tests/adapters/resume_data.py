"""What the table of resumed trainings reads: 40 rows of every kind of data, each of which draws random numbers."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace import feed

ROWS, BATCH, EPOCHS, LANES = 40, 4, 3, 2
KINDS = ("map", "lanes", "shards", "mixture")


def drawn(index: int) -> dict[str, Any]:
    """Returns a row: its number, and what the three generators give."""
    draws = [random.random(), np.random.rand()]
    if "torch" in sys.modules:
        draws.append(float(sys.modules["torch"].rand(1)))
    return {"x": np.array([index], np.float32), "draws": np.array(draws)}


def of_line(line: dict[str, int]) -> dict[str, Any]:
    return drawn(line["row"])


class Rows:
    """A map-style dataset."""

    def __init__(self, first: int = 0, count: int = ROWS) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return drawn(self.first + index)


class Lane:
    """An iterable without a count; every epoch has other rows first."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        lane = feed.lane()
        assert lane is not None
        rows = list(range(lane.id, ROWS, lane.num_workers))
        random.Random(self.epoch).shuffle(rows)
        yield from map(drawn, rows)


def dataset_of(kind: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Returns a dataset and the loader's options for it."""
    if kind == "map":
        return Rows(), {"shuffle": True}
    if kind == "lanes":
        if "torch" not in sys.modules:
            return Lane(), {"num_shards": LANES}
        return type("TorchLane", (Lane, sys.modules["torch"].utils.data.IterableDataset), {})(), {"num_shards": LANES}
    if kind == "mixture":
        half = ROWS // 2
        return feed.mix({"a": Rows(0, half), "b": Rows(half, half)}, {"a": 0.5, "b": 0.5}), {"shuffle": True}
    if not folder.exists():
        folder.mkdir(parents=True)
        for shard in range(4):
            lines = [json.dumps({"row": row}) for row in range(shard, ROWS, 4)]
            (folder / f"{shard}.jsonl").write_text("\n".join(lines))
    return feed.jsonl(folder, "*.jsonl").map(of_line), {"shuffle": feed.Window(5, 4)}


def seen_in(batch: Any) -> list[list[float]]:
    """Returns the rows of a batch."""
    numbers, draws = np.asarray(batch["x"])[:, 0].tolist(), np.asarray(batch["draws"]).tolist()
    return [[number, *row] for number, row in zip(numbers, draws, strict=True)]
