"""torch's DataLoader, the peer on the own host, with tensors in its shared memory and its default sharing strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.feed.measure import Contender

from headrace.measuring.windows import torch_loader


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
        return self.resources.enter_context(torch_loader(self._dataset, **self.settings))
