"""A loader says what it guarantees, and that is so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from headrace.feed import DataLoader


class Stateful:
    """A sampler with a state of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])

    def __len__(self) -> int:
        return 3

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def test_a_loader_says_what_it_guarantees() -> None:
    data = list(range(8))
    loaders = {
        "own": DataLoader(data, 2, shuffle=True, seed=1),
        "ranks": DataLoader(data, seed=1, global_batch_size=4, rank=0, world_size=2, on_error="skip"),
        "torch": DataLoader(data, 2, shuffle=True),
        "sampler": DataLoader(data, 2, sampler=[3, 1]),
        "stateful": DataLoader(data, 2, sampler=Stateful()),
    }
    assert {name: dataclasses.astuple(loader.guarantee()) for name, loader in loaders.items()} == {
        "own": (True, True, "at once", "each has everything", True),
        "ranks": (False, True, "at once", "share every global batch", True),
        "torch": (True, False, "by running the sampler again", "each has everything", True),
        "sampler": (True, False, "by running the sampler again", "as the sampler says", False),
        "stateful": (True, False, "by the sampler's state", "as the sampler says", False),
    }
