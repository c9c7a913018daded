"""A loader says what it guarantees, and that is so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from lane_data import StatefulRows as Rows
from lane_data import stream

from headrace import feed
from headrace.feed import DataLoader, Source


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


class Numbers(Source):
    def __init__(self) -> None:
        super().__init__([("", 8)], declared=False)

    def read(self, shard: int, row: int) -> Any:
        return row


def test_a_loader_says_what_it_guarantees() -> None:
    data = list(range(8))
    loaders = {
        "own": DataLoader(data, 2, shuffle=True, seed=1),
        "ranks": DataLoader(data, seed=1, global_batch_size=4, rank=0, world_size=2, on_error="skip"),
        "torch": DataLoader(data, 2, shuffle=True),
        "sampler": DataLoader(data, 2, sampler=[3, 1]),
        "stateful": DataLoader(data, 2, sampler=Stateful()),
        "lanes": DataLoader(lambda: iter(data), 2, num_shards=2),
        "stateful lanes": DataLoader(Rows(8), 2, num_shards=2, rank=0, world_size=2, uneven=True),
        "stream": DataLoader(Numbers().filter(bool), 2, num_shards=2, rank=0, world_size=2, steps_per_epoch=1),
        "named": DataLoader(stream(), 2, num_shards=2),  # what it is made of is known to its workers
        "slots": DataLoader(
            lambda: iter(data), num_shards=2, global_batch_size=4, rank=0, world_size=2, steps_per_epoch=1
        ),
    }
    assert {name: dataclasses.astuple(loader.guarantee()) for name, loader in loaders.items()} == {
        "own": (True, True, "at once", "each has everything", True),
        "ranks": (False, True, "at once", "share every global batch", True),
        "torch": (True, False, "by running the sampler again", "each has everything", True),
        "sampler": (True, False, "by running the sampler again", "as the sampler says", False),
        "stateful": (True, False, "by the sampler's state", "as the sampler says", False),
        "lanes": (True, True, "by replaying lanes", "each has everything", True),
        "stateful lanes": (True, False, "by the dataset's state", "share the lanes", False),
        "stream": (True, False, "by the dataset's state", "share the lanes", True),
        "named": (True, True, "by the dataset's state or by replaying lanes", "each has everything", True),
        "slots": (True, True, "by replaying lanes", "share every global batch", True),
    }


def test_a_mixture_says_that_rows_come_again_when_its_weights_were_set_so() -> None:
    mixed = feed.mix({"web": list(range(700)), "code": list(range(300))}, {"web": 0.7, "code": 0.3})
    loader = DataLoader(mixed, 10, shuffle=True, seed=7, collate_fn=list)
    assert loader.guarantee().repeats is False  # type: ignore[attr-defined]
    batches = iter(loader)
    for _ in range(40):
        next(batches)
    assert loader.set_weights({"web": 0, "code": 1}) == 40, "nothing is ahead without workers"
    assert loader.guarantee().repeats is True  # type: ignore[attr-defined]
    assert len(list(batches)) == 60, "the epoch under way keeps its rows"
    assert loader.stats()["sources"]["code"]["passes"] > 2  # type: ignore[index]
