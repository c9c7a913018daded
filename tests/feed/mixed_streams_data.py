"""Mixtures of sources without a count for the tests. Feed servers import this module.

Every output is (source, number, a number that is drawn), so that what comes shows where it is from.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from lane_data import share
from torch.utils.data import IterableDataset

from headrace import feed

WEIGHTS = {"books": 0.2, "code": 0.5, "web": 0.3}
COUNTED = {"books": 60, "web": 160}


class Rows:
    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return self.name, row, random.random()


class Own(IterableDataset[Any]):
    """Rows of a dataset of the user's, with torchdata's state if it is `stateful`; it shuffles by its epoch."""

    def __init__(self, name: str, rows: int, *, padding: int = 0) -> None:
        self.name, self.rows, self.padding, self.at, self.epoch = name, rows, padding, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        own = share(self.rows)
        while self.at < len(own):
            self.at += 1
            yield self.name, own[self.at - 1] + 1000 * self.epoch, float(np.random.rand())


class Stateful(Own):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch, "padding": b"x" * self.padding}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def function() -> Iterator[Any]:
    for row in share(150):
        yield "code", row, random.random()


def thirds(output: Any) -> bool:
    return bool(output[1] % 3)


def often(output: Any) -> bool:
    return random.random() < 0.8


def again(output: Any) -> Iterator[Any]:
    """None, one or two of an output, with a number that is drawn when they are asked for."""
    for _ in range(output[1] % 3):
        yield (*output[:2], random.random())


def with_lane(output: Any) -> Any:
    lane = feed.lane()
    assert lane is not None
    return lane.id, *output[:2]


def counted(name: str) -> Any:
    return feed.mix({name: Rows(name, COUNTED[name])}, {name: 1}) if name == "books" else Rows(name, COUNTED[name])


def tokens_of(output: Any) -> list[int]:
    return [output[1] + 1] * (1 + output[1] % 5)


def sequence(made: Any) -> Any:
    return "code", int(made["tokens"].sum()), random.random()


def streams(until: Any = None, weights: Any = None) -> Any:
    """A mixture, a stream with steps that draw, and rows with a count."""
    code = feed.mix({"rows": Rows("code", 150)}, {"rows": 1}).filter(often).flat_map(again)
    return feed.mix({"books": counted("books"), "code": code, "web": counted("web")}, weights or WEIGHTS, until=until)


def own(until: Any = None) -> Any:
    """Datasets of the user's, and packed documents of one of them, with steps behind all."""
    packed = feed.pack(Packable(120), 8, block=5, method="concat").filter(bool).map(sequence)
    sources = {"books": Stateful("books", 60), "code": packed, "web": Stateful("web", 160)}
    return feed.mix(sources, WEIGHTS, until=until).filter(often).flat_map(again)


def replayed(until: Any = None) -> Any:
    """A source of which no state is known, and a mixture in the mixture."""
    inner = feed.mix({"web": Rows("web", 160), "books": Stateful("books", 60)}, {"web": 2, "books": 1})
    return feed.mix({"inner": inner, "code": function}, {"inner": 0.4, "code": 0.6}, until=until)


class Packable(Stateful):
    """Documents."""

    def __init__(self, rows: int) -> None:
        super().__init__("code", rows)

    def __iter__(self) -> Iterator[Any]:
        return map(tokens_of, super().__iter__())


@feed.pipeline
def mixed_streams(until: Any = None) -> Any:
    return streams(until)
