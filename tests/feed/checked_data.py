"""Datasets for `DataLoader.check`: pure ones, and ones that hold generators in many places."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace import feed

MODULE_RNG = np.random.default_rng(1)


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


@dataclasses.dataclass
class Config:
    steps: list[Any]


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


def numpy_legacy() -> Drifting:
    return Drifting(Jitter(np.random.RandomState(2), lambda rng: rng.rand()))


def python_generator() -> Drifting:
    return Drifting(Jitter(random.Random(2), lambda rng: rng.random()))


def torch_generator() -> Drifting:
    return Drifting(Jitter(torch.Generator(), lambda rng: torch.rand(1, generator=rng).item()))


def in_a_closure() -> Drifting:
    rng = np.random.default_rng(2)

    def draw() -> float:
        return float(rng.random())

    return Drifting(draw)


def in_a_partial() -> Drifting:
    return Drifting(functools.partial(random.Random.uniform, random.Random(3), 0.0, 1.0))


def in_slots() -> Drifting:
    rng = random.Random(2)
    dataset = Drifting(time.monotonic)
    dataset.jitter, dataset.held = rng.random, Config([{"first": (Slotted(rng),)}])  # type: ignore[assignment]
    return dataset


class OfModule(Pure):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"drift": torch.tensor(MODULE_RNG.random())}


class Lazy(Pure):
    """Makes its generator when the first sample is asked for."""

    rng: Any = None

    def __getitem__(self, index: int) -> Any:
        self.rng = self.rng or np.random.default_rng()
        return super().__getitem__(index) | {"drift": self.rng.random()}


class Clock(Pure):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"drift": time.monotonic_ns()}


class Silent(Pure):
    """Draws from its generator, and uses nothing of it."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(2)

    def __getitem__(self, index: int) -> Any:
        self.rng.random()
        return super().__getitem__(index)


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
