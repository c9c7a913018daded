"""Datasets without a count for the tests. Feed servers import this module."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from headrace import feed


def share(rows: int) -> range:
    """The rows of this lane, or of a worker of torch's."""
    info = get_worker_info()
    lane, lanes = (info.id, info.num_workers) if info is not None else (0, 1)
    return range(lane, rows, lanes)


def rows_of(rows: int) -> Iterator[dict[str, Any]]:
    for row in share(rows):
        yield {"row": row, "noise": torch.rand(2), "np": np.random.rand(), "py": random.random()}


class Rows(IterableDataset[Any]):
    """Rows that divide themselves among workers; their number differs from worker to worker."""

    def __init__(self, rows: int, killer: str = "") -> None:
        self.rows, self.killer = rows, killer

    def __iter__(self) -> Iterator[Any]:
        for made in rows_of(self.rows):
            if self.killer and made["row"] == self.rows // 2:
                try:
                    Path(self.killer).unlink()
                except FileNotFoundError:
                    pass  # it has killed one
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield made


class StatefulRows(IterableDataset[Any]):
    """As `Rows`, in torchdata's protocol `Stateful`; `opened` counts the rows that were passed over on the way."""

    def __init__(self, rows: int, wrong: bool = False) -> None:
        self.rows, self.at, self.wrong = rows, 0, wrong
        self.made: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        own = share(self.rows)
        while self.at < len(own):
            self.at += 1
            yield {"row": own[self.at - 1], "noise": torch.rand(2)}

    def state_dict(self) -> dict[str, Any]:
        return {"at": max(0, self.at - 1) if self.wrong else self.at, "array": np.arange(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["array"].tolist() == [0, 1, 2]
        self.at = state["at"]


LENGTHS = [23, 4, 0, 31, 17, 9, 40, 26, 1, 12, 19, 30]


class UnevenRows(IterableDataset[Any]):
    """Lanes of given lengths; row 1000 * lane + number."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.at = lengths, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None, "in a lane"
        while self.at < self.lengths[info.id]:
            self.at += 1
            yield {"row": 1000 * info.id + self.at - 1, "noise": torch.rand(2), "py": random.random()}


class UnevenStatefulRows(UnevenRows):
    """The same, in torchdata's protocol `Stateful`."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def function() -> Iterator[Any]:
    return rows_of(101)


def is_even(row: Any) -> bool:
    return int(row["row"]) % 2 == 0


def three(row: Any) -> Iterator[Any]:
    for part in range(int(row["row"]) % 4):
        yield {"row": int(row["row"]), "part": part, "noise": torch.rand(1)}


@feed.pipeline
def rows(count: int = 101, killer: str = "") -> Rows:
    return Rows(count, killer)


@feed.pipeline
def stateful(count: int = 101) -> StatefulRows:
    return StatefulRows(count)


@feed.pipeline
def stream(folder: str = "") -> Any:
    from source_data import decode

    return feed.tar(folder or feed.channel("training")).map(decode).filter(is_even).flat_map(three)


class Versions(IterableDataset[Any]):
    """Rows that a file decides: their number, and what is added to each. So their data can change."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __iter__(self) -> Iterator[Any]:
        rows, added = map(int, Path(self.file).read_text().split())
        for row in share(rows):
            yield {"row": row + added, "text": f"row {row + added}", "array": np.full(3, row)}


class OfProcess(Rows):
    """Rows that hold the process that made them: they are others when a lane is opened elsewhere."""

    def __iter__(self) -> Iterator[Any]:
        for made in super().__iter__():
            yield {"row": made["row"], "process": os.getpid()}


class Stopping(StatefulRows):
    """Rows whose process is stopped, once, before one of them."""

    def __init__(self, rows: int, row: int, once: str) -> None:
        super().__init__(rows)
        self.row, self.once = row, once

    def __iter__(self) -> Iterator[Any]:
        for made in super().__iter__():
            if made["row"] == self.row:
                try:
                    Path(self.once).unlink()
                except FileNotFoundError:
                    pass  # one is stopped
                else:
                    os.kill(os.getpid(), signal.SIGSTOP)
            yield made


class ByRank(IterableDataset[int]):
    """Divides its rows among the workers of all ranks, as is usual with torch's loader."""

    def __iter__(self) -> Iterator[int]:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if ranks == 1:
            assert not torch.distributed.is_initialized()
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter(range(rank + ranks * number, 40, ranks * workers))


@feed.pipeline
def by_rank() -> ByRank:
    return ByRank()
