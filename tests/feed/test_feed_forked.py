"""A process that is a fork of the trainer's: the trainer's pass is not its own, and goes on undisturbed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from feed_data import noise

from headrace.feed import DataLoader

PLACES = ["local", "unix", "tcp"]


def in_a_child(work: Callable[[], object]) -> str:
    """Returns what comes of some work in a forked child: its result, or its error, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = str(work())
        except Exception as error:  # noqa: BLE001 - told
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        told = file.read().decode()
    status = os.waitpid(child, 0)[1]
    return told if status == 0 else f"{told}, ended with {os.waitstatus_to_exitcode(status)}"


@pytest.mark.parametrize(("place", "persistent"), [("local", True), *((place, False) for place in PLACES)])
def test_a_fork_is_told_and_has_passes_of_its_own(
    loader_at: Callable[..., DataLoader], place: str, persistent: bool
) -> None:
    options: dict[str, Any] = {"persistent_workers": True} if persistent else {}
    with loader_at(place, noise(), **options) as loader:
        whole = len(list(loader))
        batches = iter(loader)
        next(batches)
        told = in_a_child(lambda: next(batches))
        assert f"FeedError: this pass over the loader belongs to process {os.getpid()}" in told
        assert "iter(loader)" in told
        assert in_a_child(lambda: len(list(loader))) == str(whole)
        assert len(list(batches)) == whole - 1
        assert in_a_child(lambda: len(list(loader))) == str(whole)  # between two passes, with workers that wait
        assert len(list(loader)) == whole
        assert loader.stats()["workers_lost"] == 0


class Counted(torch.utils.data.IterableDataset[int]):
    """Numbers, one after the other."""

    def __iter__(self) -> Iterator[int]:
        yield from range(400)


@pytest.mark.parametrize(
    ("dataset", "options"), [(list(range(400)), {}), (Counted(), {"num_shards": 1})], ids=["rows", "lanes"]
)
def test_a_fork_is_told_also_where_batches_are_looked_at_before_they_are_taken(
    dataset: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With metrics, what is ready is counted; with a device, the next batch is copied if it is ready."""
    monkeypatch.setenv("HEADRACE_METRICS", str(tmp_path / "0.jsonl"))
    with DataLoader(dataset, batch_size=4, num_workers=2, **options) as loader:
        batches: Any = iter(loader)
        first = next(batches).tolist()
        for _ in range(3):
            assert "FeedError: this pass over the loader belongs to" in in_a_child(lambda: next(batches))
            assert in_a_child(batches._batches.ready) == "True"
        assert first + [number for batch in batches for number in batch.tolist()] == list(range(400))
        assert loader.stats()["workers_lost"] == 0


class Sweeping:
    """A dataset whose samples have Python collect garbage."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


class Local:
    """Stands for what must be freed in the process that made it, CUDA's for one. It refers to itself."""

    def __init__(self) -> None:
        self.itself, self.home = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.home:
            os.abort()


@pytest.mark.parametrize("collects", [True, False])
def test_a_worker_never_collects_what_it_inherits_of_the_trainer(collects: bool) -> None:
    before = gc.isenabled()
    gc.disable()
    try:
        Local()
        if collects:
            gc.enable()
        with DataLoader(Sweeping(), batch_size=2, num_workers=2, multiprocessing_context="fork") as loader:
            assert [index for batch in loader for index in batch.tolist()] == list(range(12))
            assert loader.stats()["workers_lost"] == 0
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
        gc.collect()  # else a child that a later test forks may collect it, and abort without a word


@pytest.mark.parametrize("dataset", [list(range(40)), Counted()], ids=["rows", "lanes"])
def test_a_fork_is_told_also_without_workers(dataset: Any) -> None:
    with DataLoader(dataset, batch_size=4) as loader:
        whole = [batch.tolist() for batch in loader]
        batches = iter(loader)
        first = next(batches).tolist()
        assert "FeedError: this pass over the loader belongs to" in in_a_child(lambda: next(batches))
        assert in_a_child(lambda: len(list(loader))) == str(len(whole))
        assert [first, *(batch.tolist() for batch in batches)] == whole
