"""Batches on a real GPU: the same bits, copied beside the computation, from slabs that are not used too early."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import signal
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from feed_servers import wait_until
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headrace.errors import FeedError
from headrace.feed import DataLoader
from headrace.feed.batch.slab import CudaPinning
from headrace.feed.loader.device import DeviceBatches, open_device
from headrace.feed.plan.bookmark import Progress

BUSY_CYCLES = 500_000_000  # a quarter of a second and more on the GPUs of these years
ROWS = 400


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str


class Images:
    """Rows of 256 KB that are told apart by every element."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((65_536,), float(index)), "array": np.full(3, index), "i": index}


def as_samples(rows: list[Any]) -> Sample:
    return Sample(torch.stack([row["x"] for row in rows]), str(rows[0]["i"]))


def memfds() -> list[tuple[int, int]]:
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:headrace" in line]
    found = [re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line) for line in lines]
    return [(int(match[1], 16), int(match[2], 16)) for match in found if match]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_with_their_bits_while_the_gpu_is_busy(workers: int) -> None:
    """The computation lags behind the loader, so that a slab that is used too early would show."""
    with DataLoader(Images(), batch_size=4, num_workers=workers, memory=16 << 20, device="cuda") as loader:
        sums = []
        for step, batch in enumerate(loader):
            assert batch["x"].device == torch.device("cuda", torch.cuda.current_device())
            assert batch["array"].device.type == "cuda"  # default_collate makes a tensor of it
            if step % 10 == 0:
                torch.cuda._sleep(BUSY_CYCLES // 10)
            sums.append((batch["x"].min(dim=1).values, batch["x"].max(dim=1).values, batch["i"]))
    for low, high, index in sums:
        assert low.tolist() == high.tolist() == index.tolist()
    assert torch.cat([index for _, _, index in sums]).tolist() == list(range(ROWS))


def test_dataclasses_and_strings() -> None:
    device = torch.device("cuda:0")
    with DataLoader(Images(), batch_size=8, collate_fn=as_samples, num_workers=1, device=device) as loader:
        for step, sample in enumerate(loader):
            assert (sample.image.device, sample.name) == (device, str(8 * step))
            assert sample.image[3, 5].item() == 8 * step + 3


def test_the_copy_does_not_wait_for_the_computation() -> None:
    class One:
        def ready(self) -> bool:
            return False

        def fetch(self) -> tuple[Any, int]:
            return [torch.arange(1000), pack_sequence([torch.ones(3), torch.ones(2)])], 1

        def end(self, *, complete: bool) -> None: ...

    batches = DeviceBatches(One(), Progress(0), Progress(0), open_device(torch.device("cuda")))
    torch.cuda._sleep(BUSY_CYCLES)
    taken = batches.fetch()
    mark = batches._held[0][0]
    wait_until(mark.query, "the copy is done")
    assert not torch.cuda.current_stream().query(), "it was done while the computation went on"
    assert taken is not None
    tensor, packed = taken[0]
    assert tensor.tolist() == list(range(1000))
    assert isinstance(packed, PackedSequence)
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("cuda", "cpu")
    batches.end(complete=False)


class Sentences(UserDict):  # type: ignore[type-arg]
    """As transformers' BatchEncoding: a mapping that moves itself."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Sentences:
        return Sentences({key: value.to(device, non_blocking=non_blocking) for key, value in self.items()})


class Pair(NamedTuple):
    """Also comes from workers as what it is, with its tensors in a slab."""

    left: torch.Tensor
    right: torch.Tensor

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Pair:
        return Pair(*(each.to(device, non_blocking=non_blocking) for each in self))


def as_sentences(rows: list[Any]) -> Sentences:
    return Sentences({"x": torch.stack([row["x"] for row in rows]), "i": torch.tensor([row["i"] for row in rows])})


def as_pair(rows: list[Any]) -> Pair:
    return Pair(torch.stack([row["x"] for row in rows]), torch.tensor([row["i"] for row in rows]))


@pytest.mark.parametrize(("workers", "collate"), [(0, as_sentences), (0, as_pair), (2, as_sentences), (2, as_pair)])
def test_objects_that_move_themselves_arrive_with_their_bits_and_the_loop_runs_ahead(
    workers: int, collate: Any
) -> None:
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": collate, "memory": 16 << 20}
    with DataLoader(Images(), num_workers=workers, device="cuda", **options) as loader:
        sums, ahead = [], 0
        for batch in loader:
            ahead += not torch.cuda.current_stream().query()
            left, right = batch.values() if isinstance(batch, Mapping) else batch
            assert left.device.type == right.device.type == "cuda"
            torch.cuda._sleep(BUSY_CYCLES // 25)
            sums.append((left.min(dim=1).values, left.max(dim=1).values, right))
            del batch, left
    for low, high, index in sums:
        assert low.tolist() == high.tolist() == index.tolist()
    assert torch.cat([index for *_, index in sums]).tolist() == list(range(ROWS))
    if workers:
        assert ahead > len(sums) / 2, "somebody waited for the computation"


def test_pinned_batches_are_views_of_slabs() -> None:
    with DataLoader(Images(), batch_size=4, num_workers=1, pin_memory=True) as loader:
        for batch in loader:
            assert batch["x"].is_pinned()
            address = batch["x"].data_ptr()
            assert any(start <= address < end for start, end in memfds())
        assert loader.stats()["bytes_copied"] == 0


def test_a_slab_waits_for_the_user_s_own_copy() -> None:
    """Each view dies right behind the start of its copy, which stands in line behind a long computation."""
    with DataLoader(Images(), batch_size=4, num_workers=2, pin_memory=True, memory=64 << 20) as loader:
        copies = []
        for step, batch in enumerate(loader):
            if step % 10 == 0:
                torch.cuda._sleep(BUSY_CYCLES // 5)
            copies.append((batch["x"].to("cuda", non_blocking=True), batch["i"].tolist()))
            del batch
        for copy, index in copies:
            assert copy.min(dim=1).values.tolist() == copy.max(dim=1).values.tolist() == index


class Signed(Images):
    """Tells who made a row: a string, which stays on the host."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"by": str(os.getpid())}


def test_workers_that_are_killed_while_the_gpu_is_busy_change_nothing() -> None:
    options: dict[str, Any] = {"num_workers": 3, "memory": 16 << 20, "device": "cuda", "shuffle": True, "seed": 4}
    with DataLoader(Signed(), 4, **options) as loader:
        sums, victims = [], set()
        for step, batch in enumerate(loader):
            torch.cuda._sleep(BUSY_CYCLES // 50)
            sums.append((batch["x"].min(dim=1).values, batch["x"].max(dim=1).values, batch["i"]))
            maker = int(batch["by"][0])
            if step in (10, 30, 50) and maker not in victims:  # who has begun, while there is work left to miss them at
                victims.add(maker)
                os.kill(maker, signal.SIGKILL)
        assert loader.stats()["workers_lost"] == len(victims) > 0
    for low, high, index in sums:
        assert low.tolist() == high.tolist() == index.tolist()
    assert sorted(torch.cat([index for *_, index in sums]).tolist()) == list(range(ROWS))


def test_a_batch_that_dies_while_a_graph_is_captured_disturbs_nobody() -> None:
    with DataLoader(Images(), batch_size=4, num_workers=2, pin_memory=True, memory=16 << 20) as loader:
        value, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        seen = []
        for step, batch in enumerate(loader):
            copy = batch["x"].to("cuda", non_blocking=True)
            seen.append((copy.min(dim=1).values, copy.max(dim=1).values, batch["i"].tolist()))
            if step == 5:
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    del batch
                    value += 1
        graph.replay()
        torch.cuda.synchronize()
        assert value.tolist() == [1.0] * 4
    for low, high, index in seen:
        assert low.tolist() == high.tolist() == index
    assert [number for *_, index in seen for number in index] == list(range(ROWS))


def test_the_mapping_can_be_locked_again_when_the_loader_is_gone() -> None:
    """cudaHostRegister refuses what it holds already: the same addresses come again with every new loader."""
    for _ in range(5):
        with DataLoader(Images(), batch_size=4, num_workers=1, pin_memory=True) as loader:
            assert all(batch["x"].is_pinned() for batch in loader)
        gc.collect()
        assert not memfds()


class Sweeping(Images):
    """A dataset whose samples have Python collect garbage."""

    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return super().__getitem__(index)


def test_a_worker_never_frees_what_the_trainer_has_on_the_gpu() -> None:
    """CUDA does not work in a fork: to free a tensor that another stream has used ends the process."""
    gc.collect()
    gc.disable()
    try:
        tensor = torch.ones(1 << 20, device="cuda")
        tensor.record_stream(torch.cuda.Stream())
        garbage: list[Any] = [tensor, torch.cuda.current_stream().record_event()]
        garbage.append(garbage)
        del tensor, garbage
        with DataLoader(Sweeping(), batch_size=40, num_workers=2, multiprocessing_context="fork") as loader:
            assert torch.cat([batch["i"] for batch in loader]).tolist() == list(range(ROWS))
            assert loader.stats()["workers_lost"] == 0
    finally:
        gc.enable()


def test_what_cannot_be_locked_is_copied_with_a_warning_that_names_the_error() -> None:
    pinning = CudaPinning(fenced=True)
    memory = np.zeros(1 << 20, np.uint8)
    address = memory.ctypes.data
    assert pinning.register(address, memory.size)
    with pytest.warns(UserWarning, match="cannot be locked: .*already"):
        assert not pinning.register(address, memory.size)
    assert torch.ones(3, device="cuda").add(1).tolist() == [2, 2, 2]  # the error is not told to the next kernel
    pinning.unregister(address)
    assert not pinning.register(address, memory.size)  # it does not try again


def test_a_fence_is_passed_when_the_computation_is_done() -> None:
    torch.cuda._sleep(BUSY_CYCLES)
    fence = CudaPinning(fenced=True).fence()
    assert fence is not None
    assert not fence()
    torch.cuda.synchronize()
    assert fence()
    assert CudaPinning(fenced=False).fence() is None


def test_a_device_beyond_those_there_are_is_refused() -> None:
    with pytest.raises(FeedError, match=f"torch sees {torch.cuda.device_count()}"):
        DataLoader(Images(), device=f"cuda:{torch.cuda.device_count()}")
