"""A pipeline over a sharded channel: every file of the folder is a shard. Feed servers without torch import it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.feed import channel, jsonl, lane, mix, pipeline


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
        return np.array([value, value * value]), value, {"noise": np.random.rand(2)}


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


def as_it_is(sample: Any) -> Any:
    return sample


def fill(folder: Path, files: dict[str, range]) -> Path:
    folder.mkdir(parents=True)
    for name, values in files.items():
        (folder / name).write_text(" ".join(map(str, values)))
    return folder


# Streams, which are read in lanes


def fill_lines(folder: Path, files: dict[str, range]) -> Path:
    """As `fill`, in JSON lines."""
    folder.mkdir(parents=True)
    for name, values in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{value}\n" for value in values))
    return folder


def lines() -> Any:
    return jsonl(channel("training"), "*.jsonl")


def told(value: int) -> dict[str, Any]:
    here = lane()
    return {"value": value, "lane": here.id if here is not None else -1, "noise": np.random.rand(2)}


def wanted(row: Any) -> bool:
    return bool(row["value"] % 3)


def often(row: Any) -> Iterator[Any]:
    """None, one or more of a row, with a number that is drawn when they are asked for."""
    for part in range(row["value"] % 4):
        yield row | {"part": part, "drawn": random.random()}


def tokens_of(value: int) -> list[int]:
    return [value + 1] * (1 + value % 7)


@pipeline
def kept(slow: float = 0.0) -> Any:
    """What is left of the lines of a host's files."""

    def late(row: Any) -> Any:
        time.sleep(slow)
        return row

    return lines().map(told).map(late).filter(wanted).flat_map(often)


@pipeline
def counted() -> Any:
    return lines().map(told)


@pipeline
def packed() -> Any:
    return lines().map(tokens_of).pack(16, block=4)


@pipeline
def mixed(whole: bool = True) -> Any:
    """A mixture of the files with even and with odd names; each host should have some of both."""
    folder_ = channel("training")
    sources = {name: jsonl(folder_, f"*{name}.jsonl") for name in ("0", "1")}
    if whole:
        return mix(sources, {"0": 2, "1": 1}, until="all").filter(bool_of)
    return mix({name: source.filter(bool_of) for name, source in sources.items()}, {"0": 2, "1": 1}, until="all")


def bool_of(value: int) -> bool:
    return bool(value % 5)
