"""Batches on a real GPU: the same bits, copied beside the computation, from slabs that are not used too early."""

from __future__ import annotations

import dataclasses
import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feed_servers import wait_until
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headrace.errors import FeedError
from headrace.feed import DataLoader
from headrace.feed.batch.cuda_pinning import CudaPinning
from headrace.feed.loader.device import DeviceBatches, open_device
from headrace.feed.plan.pass_progress import Progress

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


def test_the_mapping_can_be_locked_again_when_the_loader_is_gone() -> None:
    """cudaHostRegister refuses what it holds already: the same addresses come again with every new loader."""
    for _ in range(5):
        with DataLoader(Images(), batch_size=4, num_workers=1, pin_memory=True) as loader:
            assert all(batch["x"].is_pinned() for batch in loader)
        gc.collect()
        assert not memfds()


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
