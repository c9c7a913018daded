"""A pipeline over a sharded channel: every file of the folder is a shard. Feed servers import it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.feed import channel, lane, mix, pipeline


class Folder:
    """Samples of the files of a folder, one a line, in an order that is not that of the names."""

    def __init__(self, folder: Path, bad: int = -1) -> None:
        self.files = sorted((path for path in folder.iterdir()), reverse=True)
        self.rows = [(path.name, at) for path in self.files for at in range(len(path.read_text().split()))]
        self.values = [int(value) for path in self.files for value in path.read_text().split()]
        self.bad = bad

    def __len__(self) -> int:
        return len(self.values)

    def __shards__(self) -> list[tuple[str, int]]:
        return [(path.name, len(path.read_text().split())) for path in self.files]

    def __getitem__(self, index: int) -> Any:
        value = self.values[index]
        if value == self.bad:
            raise KeyError(value)
        return torch.tensor([value, value * value]), value, {"noise": np.random.rand(2)}


@pipeline
def folder(bad: int = -1) -> Folder:
    return Folder(channel("training"), bad)


class Some(Folder):
    """Declares its shards only on a host that has the file 'b'."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__shards__" and not any(path.name == "b" for path in self.files):
            raise AttributeError(name)
        return super().__getattribute__(name)


@pipeline
def some() -> Some:
    return Some(channel("training"))


def ones() -> Iterator[Any]:
    lane_ = lane()
    assert lane_ is not None
    for _ in range(lane_.id, 64, lane_.num_workers):
        yield 1


def second(sample: Any) -> int:
    return sample if isinstance(sample, int) else int(sample[1])


@pipeline
def in_lanes() -> Any:
    """Shards that a host holds, in a mixture with data that have no count."""
    return mix({"files": Folder(channel("training")), "ones": ones}, {"files": 3, "ones": 1}).map(second)


def listed(samples: list[Any]) -> list[int]:
    """A collate function: batches are made whole."""
    return [sample[1] for sample in samples]


def fill(folder: Path, files: dict[str, range]) -> Path:
    folder.mkdir(parents=True)
    for name, values in files.items():
        (folder / name).write_text(" ".join(map(str, values)))
    return folder
