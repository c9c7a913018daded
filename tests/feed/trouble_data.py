"""Datasets that are in trouble: impure, hanging, raising, killing, slow. Feed servers without torch import them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.feed import pipeline, stack_arrays


class Samples:
    """Dict samples that draw from all generators that headrace seeds; `key` is the index."""

    def __init__(self, n: int = 96, delay: float = 0.0) -> None:
        self.n, self.delay = n, delay

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.delay)
        noise = [random.random(), float(np.random.rand())]
        return {"key": index, "image": np.random.rand(5), "noise": np.array(noise)}


class Impure(Samples):
    """Adds a field `drift` that depends on more than the plan.

    Args:
        source: ``generator`` of its own, ``counter`` of calls, or ``clock``.
    """

    def __init__(self, source: str, n: int = 96) -> None:
        super().__init__(n, 0.002)
        self.source, self.calls, self.rng = source, itertools.count(), None

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.rng is None:
            self.rng = np.random.default_rng()  # in the worker, as one does
        drifts = {"generator": self.rng.random, "counter": lambda: float(next(self.calls)), "clock": time.monotonic}
        return super().__getitem__(index) | {"drift": np.array([0.0, drifts[self.source]()])}


class Nested(Impure):
    """The drift lies deep in a sample, beside text."""

    def __getitem__(self, index: int) -> Any:
        flat = super().__getitem__(index)
        return {"key": flat["key"], "text": f"sample {index}", "inner": [{"drift": flat["drift"]}]}


@pipeline
def pure(n: int = 96, delay: float = 0.002) -> Samples:
    return Samples(n, delay)


@pipeline
def impure(source: str = "generator", n: int = 96) -> Impure:
    return Impure(source, n)


@pipeline
def nested(source: str = "generator") -> Nested:
    return Nested(source)


def listed(samples: list[Any]) -> dict[str, Any]:
    """A collate function of the user's."""
    return {"key": np.array([sample["key"] for sample in samples]), "drift": [s["drift"] for s in samples]}


class Troubled(Samples):
    """Is in trouble over some indices.

    Args:
        kind: ``sleep`` or ``spin`` for ever, ``stop`` (SIGSTOP), ``kill`` (SIGKILL), ``raise``.
        indices: over which.
        once: a directory that remembers: the trouble comes only the first time over an index; empty for always.
    """

    def __init__(self, kind: str, indices: list[int], once: str = "", n: int = 96, delay: float = 0.002) -> None:
        super().__init__(n, delay)
        self.kind, self.indices, self.once = kind, frozenset(indices), once

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.indices and self._first(index):
            self.trouble(index)
        return super().__getitem__(index)

    def _first(self, index: int) -> bool:
        if not self.once:
            return True
        try:
            Path(self.once, f"index-{index}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def trouble(self, index: int) -> None:
        if self.kind == "raise":
            raise ValueError(f"sample {index} is bad")
        if self.kind in ("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if self.kind == "stop" else signal.SIGKILL)
        elif self.kind == "sleep":
            time.sleep(3600)
        while self.kind == "spin":
            pass


@pipeline
def troubled(kind: str, indices: list[int], once: str = "", n: int = 96, delay: float = 0.002) -> Troubled:
    return Troubled(kind, indices, once, n, delay)


class Mixed(Samples):
    """Raises over some indices, and is killed over others."""

    def __init__(self, bad: list[int], fatal: list[int], n: int) -> None:
        super().__init__(n)
        self.bad, self.fatal = bad, fatal

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        if index in self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pipeline
def mixed(bad: list[int], fatal: list[int], n: int = 96) -> Mixed:
    return Mixed(bad, fatal, n)


@pipeline
def picky(opened: str) -> Samples:
    """Can be made by one executor; those that come after it end."""
    try:
        Path(opened).touch(exist_ok=False)
    except FileExistsError:
        os._exit(7)
    return Samples(delay=0.02)


def raise_over_thirteen(samples: list[Any]) -> Any:
    """A collate function that cannot make the batch with index 13."""
    if any(sample["key"] == 13 for sample in samples):
        raise ZeroDivisionError("no batch with 13")
    return stack_arrays(samples)


class Logged:
    """Writes down every row that is made, which takes 40 ms: a batch of 10 is made in several slices."""

    def __init__(self, log: str) -> None:
        self.log = Path(log)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        time.sleep(0.04)
        with self.log.open("a") as log:
            print(index, file=log)
        return index


@pipeline
def logged(log: str) -> Logged:
    return Logged(log)


class Held(Logged):
    """The same, and one of the rows takes until a file is there."""

    def __init__(self, log: str, row: int, release: str) -> None:
        super().__init__(log)
        self.row, self.release = row, Path(release)

    def __getitem__(self, index: int) -> int:
        while index == self.row and not self.release.exists():
            time.sleep(0.01)
        return super().__getitem__(index)


@pipeline
def held(log: str, row: int, release: str) -> Held:
    return Held(log, row, release)


class PanicException(BaseException):
    """As pyo3's."""


def panicking(_: Any) -> Any:
    """A collate function."""
    raise PanicException("called `unwrap()` on a `None` value")


class Panicking:
    """Raises over every tenth index what is no `Exception`."""

    def __init__(self, error: type[BaseException] = PanicException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index % 10 == 3:
            raise self.error("called `unwrap()` on a `None` value")
        return index


@pipeline
def panicking_rows() -> Panicking:
    return Panicking()
