"""Documents for the tests of packing. Workers import this module."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from headrace import feed


def tokens_of(number: int) -> list[int]:
    """Tokens of a document, some of them drawn where it is read."""
    length = number * 37 % 13 if number % 9 else 45
    return [number, *(random.randrange(1 << 16) for _ in range(length)), int(np.random.rand() * 1000)]


def write_documents(folder: Path, count: int) -> Path:
    folder.mkdir()
    lines = [json.dumps({"tokens": list(range(1, 2 + number * 29 % 17)), "number": number}) for number in range(count)]
    for shard, part in enumerate((lines[: count // 3], lines[count // 3 :])):
        (folder / f"{shard}.jsonl").write_text("\n".join(part) + "\n")
    return folder


def share(count: int) -> range:
    lane = feed.lane()
    return range(lane.id, count, lane.num_workers) if lane is not None else range(count)


def documents() -> Iterator[list[int]]:
    return map(tokens_of, share(50))


class StatefulDocuments(IterableDataset[Any]):
    """Its state is one object, which changes: what was told must be kept as it was."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.state = {"at": 0}

    def __iter__(self) -> Iterator[Any]:
        own = share(self.count)
        while self.state["at"] < len(own):
            self.state["at"] += 1
            yield tokens_of(own[self.state["at"] - 1])

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def with_noise(row: Any) -> Any:
    return row["tokens"] + [random.randrange(1 << 16)]


def often(tokens: Any) -> bool:
    return random.random() < 0.8 or len(tokens) < 3


def halves(tokens: Any) -> Iterator[Any]:
    middle = random.randrange(len(tokens) + 1)
    yield from (tokens[:middle], tokens[middle:])


def packed_shards(**packing: Any) -> Any:
    """Rows that are drawn, left out at random and cut at random: whatever can depend on where a lane was opened."""
    return feed.jsonl(feed.channel("training")).map(with_noise).filter(often).flat_map(halves).pack(**packing)


def long_enough(sequence: Any) -> bool:
    return int((sequence["segments"] > 0).sum()) > 8 and random.random() < 0.9


def parts(sequence: Any) -> Iterator[Any]:
    """None, one or more of a sequence, each with a number that is drawn when it is asked for."""
    for part in range(int(sequence["tokens"].sum()) % 4):
        yield sequence | {"part": part, "drawn": np.random.rand()}


def stepped_shards(**packing: Any) -> Any:
    return packed_shards(**packing).filter(long_enough).flat_map(parts).filter(drawn_high)


def drawn_high(part: Any) -> bool:
    return bool(part["drawn"] > 0.1)
