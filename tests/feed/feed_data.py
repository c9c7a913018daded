"""Datasets and pipelines of these tests. Feed servers import this module from the job's code directory."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trouble_data import PanicException, Samples

from headrace.feed import pipeline, rng

Point = namedtuple("Point", ["x", "y"])


class Noise:
    """Samples that depend on the index and on all three random generators."""

    def __init__(self, n: int = 96, delay: float = 0.0, rows: int = 3) -> None:
        self.n, self.delay, self.rows = n, delay, rows

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        if self.delay:
            time.sleep(self.delay)
        noise = {"np": np.random.rand(2), "py": random.random()}
        return torch.randn(self.rows, 4) + index, index, noise


class Busy(Noise):
    """Samples that take CPU time, so that batches are cut into parts."""

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + self.delay
        while time.thread_time() < end:
            pass
        return torch.randn(self.rows, 4) + index, index, {"np": np.random.rand(2), "py": random.random()}


@pipeline
def noise(n: int = 96, delay: float = 0.0, rows: int = 3) -> Noise:
    return Noise(n, delay, rows)


@pipeline
def busy(n: int = 40, delay: float = 0.012) -> Busy:
    return Busy(n, delay)


class Raising(Noise):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("thirteen")
        return super().__getitem__(index)


@pipeline
def raising() -> Raising:
    return Raising()


class OddError(Exception):
    """An exception whose constructor wants more than a text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} is odd, {second} is even")


class Odd(Noise):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise OddError(1, 2)
        return super().__getitem__(index)


@pipeline
def odd() -> Odd:
    return Odd()


@pipeline
def broken_factory() -> Noise:
    raise FileNotFoundError("no such data")


@pipeline
def killing_factory() -> Noise:
    os.kill(os.getpid(), signal.SIGKILL)
    return Noise()


@pipeline
def not_a_dataset() -> object:
    return object()


class Killer(Noise):
    """Ends its process over index 13: always, or only the first time (`once` names a file that tells)."""

    def __init__(self, once: str = "") -> None:
        super().__init__()
        self.once = Path(once) if once else None

    def __getitem__(self, index: int) -> Any:
        if index == 13 and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pipeline
def killer(once: str = "") -> Killer:
    return Killer(once)


class Uneven(Noise):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3 + (index == 13))


@pipeline
def uneven() -> Uneven:
    return Uneven()


class Big(Noise):
    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << 16,), float(index))  # 256 KiB


@pipeline
def big(n: int = 64) -> Big:
    return Big(n)


class Empty(Noise):
    def __getitem__(self, index: int) -> Any:
        return torch.empty(3, 0)


@pipeline
def empty_rows() -> Empty:
    return Empty(16)


class Hanging(Noise):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            time.sleep(3600)
        return index


@pipeline
def hanging() -> Hanging:
    return Hanging()


class Keys(Noise):
    """Shows what it was indexed with."""

    def __getitem__(self, index: Any) -> Any:
        return f"{type(index).__name__}:{index}"


@pipeline
def keys() -> Keys:
    return Keys()


def collect(samples: list[Any]) -> dict[str, Any]:
    """A collate function with random numbers and every kind of value."""
    return {
        "n": len(samples),
        "list": [sample[0] for sample in samples],
        "tuple": tuple(sample[1] for sample in samples),
        "noise": torch.rand(2),
        "point": Point(np.arange(3), "text"),
        "none": None,
        "huge": 2**200,
    }


def raise_in_collate(samples: list[Any]) -> Any:
    raise ZeroDivisionError("collate")


def foreign_collate(samples: list[Any]) -> Any:
    return {"values": [object()]}


def note_worker(number: int) -> None:
    Noted.number = number


class Noted:
    number = -1


class Info(Noise):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return f"{Noted.number} {info.id if info else None} {info.num_workers if info else None}"


@pipeline
def info() -> Info:
    return Info(32)


class Explicit:
    """Rows that draw from generators of their own, and what a second transform would draw."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "numpy": rng().random(3),
            "again": rng("numpy").random(3),
            "torch": torch.rand(3, generator=rng("torch")),
            "random": rng("random").random(),
            "global": random.random() if index % 2 else 0.0,
        }


@pipeline
def explicit() -> Explicit:
    return Explicit()


class Capable(Samples):
    """Samples whose last bits depend on torch's instruction set."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        values = torch.randn(1000)
        soft = values.softmax(0)
        return super().__getitem__(index) | {"sum": values.sum(), "exp": values.exp(), "softmax": soft}


@pipeline
def capable(n: int = 64) -> Capable:
    return Capable(n, 0.002)


@pipeline
def threaded() -> Capable:
    """Uses as many threads as HEADRACE_TEST_THREADS says where it is made."""
    torch.set_num_threads(int(os.environ.get("HEADRACE_TEST_THREADS", "1")))
    return Capable(64, 0.002)


class PanickingLane(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise PanicException("called `unwrap()` on a `None` value")


@pipeline
def panicking_lane() -> PanickingLane:
    return PanickingLane()


def flat(batch: Any) -> bytes:
    """Returns all bits of a batch: types, dtypes, shapes and bytes."""
    if isinstance(batch, torch.Tensor):
        return (
            f"T{batch.dtype}{tuple(batch.shape)}".encode()
            + batch.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            if batch.numel()
            else f"T{batch.dtype}{tuple(batch.shape)}".encode()
        )
    if isinstance(batch, np.ndarray):
        return f"A{batch.dtype}{batch.shape}".encode() + batch.tobytes()
    if isinstance(batch, dict):
        kind = type(batch).__name__.encode()
        return kind + b"{" + b",".join(repr(key).encode() + b":" + flat(item) for key, item in batch.items()) + b"}"
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__.encode() + b"(" + b",".join(flat(item) for item in batch) + b")"
    return f"{type(batch).__name__}={batch!r}".encode()
