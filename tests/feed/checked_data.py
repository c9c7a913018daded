"""Datasets for `DataLoader.check`: pure ones, and ones that hold generators."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace import feed


class Pure:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return {"key": index, "image": torch.rand(3), "noise": [random.random(), np.random.rand()]}


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self, rng: Any, draw: Callable[[Any], float]) -> None:
        self.rng, self.draw = rng, draw

    def __call__(self) -> float:
        return self.draw(self.rng)


class Slotted:
    __slots__ = ("deep",)

    def __init__(self, deep: Any) -> None:
        self.deep = deep


class Drifting(Pure):
    """Every sample has a `drift` that `jitter` draws."""

    def __init__(self, jitter: Callable[[], float], hold: Callable[[Any], Any] = lambda jitter: jitter) -> None:
        self.jitter, self.held = jitter, hold(jitter)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"drift": self.jitter()}


def numpy_generator() -> Drifting:
    return Drifting(Jitter(np.random.default_rng(2), lambda rng: rng.random()))


def python_generator() -> Drifting:
    return Drifting(Jitter(random.Random(2), lambda rng: rng.random()))


class Lazy(Pure):
    """Makes its generator when the first sample is asked for."""

    rng: Any = None

    def __getitem__(self, index: int) -> Any:
        self.rng = self.rng or np.random.default_rng()
        return super().__getitem__(index) | {"drift": self.rng.random()}


class Clock(Pure):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"drift": time.monotonic_ns()}


class Bad(Pure):
    def __init__(self, *bad: int) -> None:
        self.bad = bad or tuple(range(100))

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return super().__getitem__(index)


class Whole(Drifting):
    """Loads samples together."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Odd(Pure):
    """Samples that only a collate function can read."""

    def __getitem__(self, index: int) -> Any:
        return Slotted(torch.rand(2))


class Stacked:
    """A collate function with a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(4)

    def __call__(self, samples: list[Any]) -> Any:
        return {"n": len(samples), "mixed": torch.tensor(self.rng.random())}


def unpacked(samples: list[Slotted]) -> Any:
    return torch.stack([sample.deep for sample in samples]) + torch.rand(1)


@feed.pipeline
def pure() -> Pure:
    torch.rand(3)
    return Pure()


@feed.pipeline
def drifting() -> Drifting:
    return numpy_generator()


@feed.pipeline
def of_channel() -> Any:
    return feed.channel("nowhere")
