"""Datasets of NumPy arrays. Imported where there is no torch."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace import feed
from headrace.feed import pipeline


class Pictures:
    """Samples that depend on the index and on the random generators; the first over index 13 ends its process."""

    def __init__(self, n: int = 96, kill_once: str = "", shape: Sequence[int] = (4, 3), delay: float = 0.0) -> None:
        self.n, self.shape, self.delay = n, shape, delay
        self.kill_once = Path(kill_once) if kill_once else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        if index == 13 and self.kill_once is not None and not self.kill_once.exists():
            self.kill_once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.delay)
        image = np.random.rand(*self.shape).astype(np.float32) + index
        return {"image": image, "noise": random.random()}, index


@pipeline
def pictures(n: int = 96, kill_once: str = "", shape: Sequence[int] = (4, 3), delay: float = 0.0) -> Pictures:
    return Pictures(n, kill_once, shape, delay)


class Words(Pictures):
    def __getitem__(self, index: int) -> Any:
        return "word", index


@pipeline
def words() -> Words:
    return Words()


class Raising(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("thirteen")
        return super().__getitem__(index)


@pipeline
def raising() -> Raising:
    return Raising()


def thirds(row: dict[str, int]) -> bool:
    return row["label"] % 3 == 0


def drawn(row: dict[str, int]) -> Any:
    return np.random.rand(4).astype(np.float32) + row["label"], np.int64(row["label"])


@pipeline
def lines(folder: str) -> feed.Source:
    """Rows of JSON lines: 4 random numbers and a label."""
    return feed.jsonl(folder, "*.jsonl").map(drawn)


@pipeline
def some_lines(folder: str) -> Any:
    """The rows whose label is a multiple of three: they have no count."""
    return feed.jsonl(folder, "*.jsonl").filter(thirds).map(drawn)


def write_lines(folder: Path, shards: int = 4, rows: int = 30) -> None:
    """Writes shards of JSON lines, whose labels count through."""
    for shard in range(shards):
        labels = range(shard * rows, (shard + 1) * rows)
        (folder / f"{shard}.jsonl").write_text("".join(f'{{"label": {label}}}\n' for label in labels))


class Mixed(Pictures):
    """Numbers that are whole in the first batches."""

    def __getitem__(self, index: int) -> Any:
        return {"x": (index if index < 48 else index + 0.75, np.uint8(index))}


@feed.pipeline
def mixed() -> Mixed:
    return Mixed()


class Wide(Pictures):
    def __getitem__(self, index: int) -> Any:
        return np.full(4096, index, np.float32), index


@pipeline
def wide() -> Wide:
    return Wide()
