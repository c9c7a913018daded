"""torch's DataLoader, the peer on the own host, with tensors in its shared memory and its default sharing strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.feed.measure import Contender
from torch.utils.data import DataLoader


class TorchLoader(Contender):
    """torch.utils.data.DataLoader.

    Args:
        dataset: what it loads.
        options: DataLoader's arguments.
    """

    name = "torch"

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(**options)
        self._dataset = dataset

    def open(self) -> Iterator[Any]:
        self._loader: DataLoader[Any] = DataLoader(self._dataset, **self.settings)
        return endless(self._loader)

    def close(self) -> None:
        self.__dict__.pop("_loader", None)  # persistent workers go with it


def endless(loader: Any) -> Iterator[Any]:
    """Goes over a loader again and again."""
    while True:
        yield from loader
