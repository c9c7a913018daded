"""Slabs: bounded, returned when the last view is gone, never used while somebody may write to them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from feed_servers import open_descriptors
from numpy.typing import NDArray

from headrace.errors import ProtocolError
from headrace.feed.batch.pytree import align
from headrace.feed.batch.slab import GRANULE, MAX_FREE, Slab, SlabPool
from headrace.feed.client.assembly import OWN_BYTES, Assembly, Delivery
from headrace.feed.client.work_units import Bundle, Slice
from headrace.feed.descriptors import Descriptors
from headrace.feed.identifiers import SlabNumber
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.wire.frames import Frame


def leased_bytes(pool: SlabPool) -> int:
    return sum(lease.slab.size for lease in pool.leases())


def test_a_slab_is_rounded_up_and_shared_through_its_descriptor() -> None:
    slab = Slab.create(1)
    assert slab.size == GRANULE
    other = Slab(os.dup(slab.descriptor), slab.size)
    slab.view()[5] = 7
    assert other.view()[5] == 7
    slab.close()
    slab.close()
    assert other.view()[5] == 7
    other.close()


@pytest.mark.parametrize("size", [0, -1, GRANULE + 1, 2**62])
def test_a_descriptor_that_does_not_hold_what_was_announced_is_refused_and_closed(size: int) -> None:
    slab = Slab.create(1)
    before = open_descriptors()
    with pytest.raises(ProtocolError, match="was announced"):
        Slab(os.dup(slab.descriptor), size)
    assert open_descriptors() == before
    slab.close()


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (0, GRANULE + 1), (GRANULE, 1), (2**62, 2**62)])
def test_memory_outside_a_slab_is_refused(offset: int, length: int) -> None:
    slab = Slab.create(1)
    with pytest.raises(ProtocolError, match="not inside a slab"):
        slab.memory(offset, length)
    assert slab.memory(GRANULE, 0).nbytes == 0
    slab.close()


@pytest.fixture
def pool() -> SlabPool:
    return SlabPool(4 * GRANULE)


@pytest.mark.promise(
    "feed-guarantees", "memory is bounded, and progress is made within it; batches beyond are copied and counted"
)
def test_the_pool_gives_no_more_than_its_limit_except_by_force(pool: SlabPool) -> None:
    numbers = [pool.acquire(GRANULE) for _ in range(4)]
    assert None not in numbers
    assert pool.acquire(1) is None
    forced = pool.acquire(10 * GRANULE, force=True)
    assert forced is not None
    assert pool.total_bytes == 14 * GRANULE
    pool.discard(forced)
    assert pool.total_bytes == 4 * GRANULE, "what was forced beyond the limit is given up when it comes back"
    assert pool.take_dropped() == [forced]
    pool.close()


def test_free_slabs_are_used_again_the_smallest_that_fits_first(pool: SlabPool) -> None:
    small, large = pool.acquire(GRANULE), pool.acquire(2 * GRANULE)
    assert small is not None
    assert large is not None
    pool.discard(large)
    pool.discard(small)
    assert pool.acquire(1) == small
    assert pool.acquire(1) == large
    pool.close()


def test_free_slabs_that_are_too_small_make_room(pool: SlabPool) -> None:
    for number in [pool.acquire(GRANULE) for _ in range(4)]:
        assert number is not None
        pool.discard(number)
    assert pool.free_bytes == 4 * GRANULE
    big = pool.acquire(3 * GRANULE)
    assert big is not None
    assert pool.total_bytes <= 4 * GRANULE
    pool.close()


def test_slabs_that_are_adopted_for_ever_do_not_use_up_the_descriptors() -> None:
    pool, before = SlabPool(1 << 30), open_descriptors()
    sizes = [GRANULE * (1 + number % 7) for number in range(10 * MAX_FREE)]
    for size in sizes:
        pool.discard(pool.adopt(Slab.create(size)))
    assert pool.free_bytes == MAX_FREE * max(sizes), "the largest are kept, they fit most"
    assert len(pool.take_dropped()) == 9 * MAX_FREE
    assert open_descriptors() == before + 2 * MAX_FREE
    pool.close()


def lease(pool: SlabPool, number: SlabNumber, size: int) -> NDArray[np.uint8]:
    with pool.leased(number, size) as slab:
        return slab.view(0, size)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "array": lambda view: view,
    "slice": lambda view: view[10:20],
    "tensor": torch.from_numpy,
    "slice of a tensor": lambda view: torch.from_numpy(view[64:128])[3:5],
    "reshaped tensor": lambda view: torch.from_numpy(view).view(torch.float32).reshape(10, 25)[3],
    "memoryview": lambda view: memoryview(view)[1:3],
}


@pytest.mark.promise(
    "feed-guarantees", "a slab is not used again while a view of it, a late writer or a device may touch it"
)
@pytest.mark.parametrize("kind", VIEWS)
def test_a_slab_comes_back_when_the_last_view_of_any_kind_is_gone(kind: str, pool: SlabPool) -> None:
    number = pool.acquire(1)
    assert number is not None
    view = lease(pool, number, 1000)
    held = VIEWS[kind](view)
    del view
    gc.collect()
    assert leased_bytes(pool) == GRANULE
    assert pool.free_bytes == 0
    del held
    gc.collect()
    assert leased_bytes(pool) == 0
    assert pool.free_bytes == GRANULE
    assert pool.acquire(1) == number
    pool.close()


def test_views_may_be_dropped_in_another_thread(pool: SlabPool) -> None:
    views = []
    for _ in range(4):
        number = pool.acquire(1)
        assert number is not None
        views.append(lease(pool, number, 10))
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert pool.free_bytes == 4 * GRANULE
    pool.close()


def test_views_outlive_the_pool(pool: SlabPool) -> None:
    number = pool.acquire(1)
    assert number is not None
    view = lease(pool, number, 10)
    view[:] = 3
    pool.close()
    assert view.tolist() == [3] * 10
    del view
    assert pool.free_bytes == 0


def test_a_slab_is_not_free_while_answers_are_outstanding() -> None:
    pool = SlabPool(4 * GRANULE)
    slab = pool.acquire(1)
    assert slab is not None
    pool.lend(slab)
    pool.lend(slab)
    pool.discard(slab)
    pool.settle(slab)
    assert pool.acquire(1) != slab
    pool.settle(slab)
    assert pool.acquire(1) == slab
    pool.close()


@pytest.mark.promise(
    "feed-guarantees", "a slab is not used again while a view of it, a late writer or a device may touch it"
)
def test_a_slab_that_a_lost_worker_may_write_to_is_never_used_again() -> None:
    pool = SlabPool(4 * GRANULE)
    slab = pool.acquire(1)
    assert slab is not None
    pool.lend(slab)
    pool.taint(slab)
    pool.settle(slab)
    pool.discard(slab)
    assert pool.take_dropped() == [slab]
    assert pool.take_dropped() == []
    with pytest.raises(KeyError):
        pool[slab]
    pool.close()


def a_slice() -> Slice:
    bundle = Bundle((BatchPlan(0, 0, 0, [0, 1], 0),))
    bundle.slices = [Slice(bundle, 0, 2, whole=False)]
    return bundle.slices[0]


@pytest.mark.parametrize(
    "done",
    [
        messages.Done(1, GRANULE, [], b"\xff", 0, 0, True),
        messages.Done(1, 2**40, [["v", 1]], b"", 0, 0, True),
        messages.Done(1, 0, [], b"\x92\x91\xa1t\x90", 0, 0, True),
    ],
)
def test_an_answer_that_is_not_sound_is_refused(done: messages.Done) -> None:
    assembly = Assembly(1 << 20)
    slab = Slab.create(1)
    frame = Frame(done, 0, Descriptors([os.dup(slab.descriptor)]))
    with pytest.raises(ProtocolError):
        assembly.arrived(a_slice(), 0, done, frame)
    frame.discard()
    slab.close()
    assembly.ledger.close()


def test_an_answer_without_the_slab_that_it_speaks_of_is_refused() -> None:
    assembly = Assembly(1 << 20)
    done = messages.Done(1, GRANULE, [["v", 1]], b"", 0, 0, True)
    with pytest.raises(ProtocolError, match="with 0 descriptors"):
        assembly.arrived(a_slice(), 0, done, Frame(done))


def handed_over(assembly: Assembly, *lengths: int) -> list[Any]:
    """Returns a batch of float32 tensors of these lengths, as the user gets it."""
    slice_, size, nodes = a_slice(), 0, []
    for length in lengths:
        nodes.append(["t", "float32", [length], size])
        size = align(size + 4 * length)
    slab = Slab.create(size)
    slab.view().view(np.float32)[:2] = [1, 2]
    done = messages.Done(1, slab.size, [["l", nodes]], b"", 0, 0, True)
    assembly.arrived(slice_, 0, done, Frame(done, 0, Descriptors([os.dup(slab.descriptor)])))
    slab.close()
    [delivery] = assembly.hand_over(slice_.bundle)
    assert isinstance(delivery, Delivery)
    assert delivery.size == 4 * sum(lengths)
    return [*delivery.data, delivery.copied]


def test_a_batch_is_handed_over_as_views_and_its_slab_comes_back() -> None:
    assembly = Assembly(8 << 20)
    first, second, copied = handed_over(assembly, 100_000, 50_000)
    assert (first[:2].tolist(), copied) == ([1, 2], False)
    assert len(assembly.ledger.leases()) == 1
    del first
    assert len(assembly.ledger.leases()) == 1
    assert sum(lease.used - lease.bytes for lease in assembly.ledger.leases()) >= 400_000
    del second
    assert assembly.ledger.leases() == []
    assembly.ledger.close()


@pytest.mark.promise("feed-guarantees", "what a loop keeps of a batch does not keep the batch's slab")
def test_small_tensors_have_memory_of_their_own_and_keep_no_slab() -> None:
    assembly = Assembly(8 << 20)
    labels = []
    for _ in range(300):
        label, images, copied = handed_over(assembly, OWN_BYTES // 4, 100_000)
        labels.append(label)
        assert not copied
        del images
        assert len(assembly.ledger.leases()) == 0
    assert all(label[:2].tolist() == [1, 2] for label in labels)
    assembly.ledger.close()


@pytest.mark.promise("feed-guarantees", "what a loop keeps of a batch does not keep the batch's slab")
def test_a_user_who_keeps_a_part_of_every_batch_holds_few_slabs_and_else_what_he_keeps() -> None:
    assembly = Assembly(1 << 30)
    kept, copies = [], 0
    for _ in range(100):
        *images, copied = handed_over(assembly, *[100_000] * 20)  # 8 MB
        kept.append(images[7])
        copies += copied
        del images
    assert len(assembly.ledger.leases()) <= 8
    assert copies >= 90
    assert all(image.untyped_storage().nbytes() == 400_000 for image in kept)
    kept.clear()
    *images, copied = handed_over(assembly, *[100_000] * 20)
    assert not copied, "what is held whole again, or not at all, is not copied"
    del images
    assembly.ledger.close()


def test_a_user_who_holds_whole_batches_gets_views_up_to_half_of_the_memory() -> None:
    assembly = Assembly(400 << 20)
    batches = [handed_over(assembly, *[100_000] * 20) for _ in range(20)]
    assert not any(copied for *_, copied in batches)
    del batches
    assembly.ledger.close()
