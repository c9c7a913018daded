"""A loader that nobody has any more ends its workers and its connections, without being closed."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path

import feed_data
import psutil
import pytest
from effort import SOAK
from feed_servers import wait_until
from source_data import fill_tars

from headrace import feed
from headrace.feed import DataLoader

LOADERS: dict[str, Callable[[Path], DataLoader]] = {
    "pipeline": lambda _: DataLoader(feed_data.noise(), 8, num_workers=1),
    "seed": lambda _: DataLoader(feed_data.noise(), 8, num_workers=1, shuffle=True, seed=1),
    "sampler": lambda _: DataLoader(feed_data.noise(), 8, num_workers=1, shuffle=True),
    "rank": lambda _: DataLoader(feed_data.noise(), global_batch_size=8, rank=0, world_size=2, seed=1, num_workers=1),
    "auto": lambda _: DataLoader(feed_data.noise(), 8, num_workers="auto"),
    "dataset": lambda _: DataLoader(feed_data.Noise(), 8, shuffle=True, num_workers=1, persistent_workers=True),
    "shards": lambda folder: DataLoader(feed.tar(folder), None, num_workers=1, persistent_workers=True),
    "buckets": lambda folder: DataLoader(
        feed.tar(folder).map(len), 8, buckets=feed.Buckets([1] * 40), shuffle=True, seed=1, num_workers=1,
        persistent_workers=True,
    ),
    "lanes": lambda folder: DataLoader(
        feed.tar(folder).filter(bool).map(len), 8, num_shards=2, num_workers=1, persistent_workers=True
    ),
    "mixture": lambda folder: DataLoader(
        feed.mix({"a": feed.tar(folder).map(len), "b": range(9)}, {"a": 1, "b": 1}), 8, num_workers=1,
        persistent_workers=True, seed=1,
    ),
}  # fmt: skip


PASSES = ["none", "a part", "one", "two"]
EACH_ONCE = list(zip(LOADERS, itertools.cycle(["a part", "two", "one", "a part", "none"]), strict=False))


@pytest.mark.parametrize(("kind", "passes"), list(itertools.product(LOADERS, PASSES)) if SOAK else EACH_ONCE)
def test_its_workers_end_with_it(kind: str, passes: str, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    loader = LOADERS[kind](fill_tars(tmp_path / "data", {"a": 40}))
    gone = weakref.ref(loader)
    if passes == "a part":
        batches = iter(loader)
        next(batches)
        del batches
    for _ in range({"one": 1, "two": 2}.get(passes, 0)):
        assert list(loader)
    del loader
    gc.collect()
    assert gone() is None
    wait_until(lambda: set(psutil.Process().children()) <= before, "the workers' end")


def test_a_pass_keeps_its_loader() -> None:
    batches = iter(DataLoader(feed_data.noise(), 8, num_workers=1, shuffle=True, seed=1))
    gc.collect()
    assert len(list(batches)) == 12
