"""Mixtures for the tests, as pipelines. Feed servers without torch import this module."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from headrace import feed

ROWS = {"web": 70, "code": 19, "books": 31}
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}


class Rows:
    """Rows that tell their source and number, and draw random numbers."""

    def __init__(self, source: int, rows: int) -> None:
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return np.array([self.source, row]), np.random.rand(2), np.random.rand(), random.random()


class Lines(Rows):
    """Rows of a folder of files, which hosts may hold different ones of."""

    def __init__(self, source: int, folder: Path) -> None:
        names = sorted(folder.iterdir(), reverse=True)  # in an order that is not that of the names
        self.files = {path.name: path.read_text().split() for path in names}
        self.lines = [line for lines in self.files.values() for line in lines]
        super().__init__(source, len(self.lines))

    def __shards__(self) -> list[tuple[str, int]]:
        return [(name, len(lines)) for name, lines in self.files.items()]

    def __getitem__(self, row: int) -> Any:
        return np.array([self.source, int(self.lines[row])])


def made(until: Any = None, rows: int | None = None, weights: Any = WEIGHTS) -> Any:
    sources = {name: Rows(number, ROWS[name]) for number, name in enumerate(sorted(ROWS))}
    return feed.mix(sources, weights, until=until, rows=rows)


def is_kept(row: Any) -> bool:
    return random.random() < 0.8 and int(row[0][1]) % 3 != 1


@feed.pipeline
def mixed(until: Any = None, rows: int | None = None, weights: Any = WEIGHTS) -> feed.Source:
    return made(until, rows, weights)


@feed.pipeline
def mixed_stream(until: Any = None) -> Any:
    return made(until).filter(is_kept)


@feed.pipeline
def one(name: str = "web") -> Rows:
    return Rows(sorted(ROWS).index(name), ROWS[name])


@feed.pipeline
def mixed_lines(web: str = "web", code: str = "code") -> feed.Source:
    sources = {"web": Lines(1, feed.channel(web)), "code": Lines(0, feed.channel(code))}
    return feed.mix(sources, {"web": 0.7, "code": 0.3})
