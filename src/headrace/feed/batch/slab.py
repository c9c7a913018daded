"""Slabs: anonymous shared memory (memfd) that batches are written into and viewed in.

The kernel frees a slab when the last process that maps it is gone, however it ended, so nothing can be left behind,
and /dev/shm is not needed. A slab is written by one process at a time, the one that was asked to. A mapping keeps a
descriptor of its own (Python's mmap duplicates it), so slabs are few.

A worker that was asked for rows may write to their slab until its answer has come. So a slab that is given up while
answers are outstanding is retired, and is free with the last of them. A slab that a lost worker may still be writing to
is tainted: it is never used again.

A slab is page-locked, if it is to be, when it is first handed to the user, once, so that copies to a device can run by
themselves. Only the trainer's process does that; workers and the receiver never load CUDA. A copy that the user started
with ``non_blocking=True`` may still be reading when the last view of the slab dies. What dies with CUDA's own
page-locked memory waits for such copies; so does a slab here: a *fence* is put behind the work that the current stream
of every device in use has at that moment, and the slab is free when it was passed. A copy on a stream of the user's
own, whose batch dies while another stream is the current one, is not seen.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ProtocolError
from headrace.feed.descriptors import FULL, keep_room
from headrace.feed.identifiers import NO_SLAB, SlabNumber

GRANULE = 64 << 10
MAX_FREE = 32  # a slab costs descriptors, of which a process may have no more than 1024


class _Mapping(mmap.mmap):
    """A mapping that may be page-locked. A weak reference's callback would come after it was unmapped."""

    unregister: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.unregister is not None:
            self.unregister()


class Slab:
    """One mapped memfd.

    Args:
        descriptor: the memfd; the slab owns it.
        size: bytes.

    Raises:
        ProtocolError: the descriptor does not hold `size` bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        keep_room(descriptor)
        try:
            if size < 1 or os.fstat(descriptor).st_size < size:
                raise ProtocolError(f"a slab of {size} bytes was announced, it has {os.fstat(descriptor).st_size}")
            self._map = _Mapping(descriptor, size)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()

    @classmethod
    def create(cls, size: int) -> Slab:
        """Makes a slab of at least `size` bytes."""
        rounded = max(1, -(-size // GRANULE)) * GRANULE
        descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, rounded)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, rounded)

    def view(self, size: int | None = None, offset: int = 0) -> NDArray[np.uint8]:
        """Returns a new array over `size` bytes; all arrays made of it keep it, and the mapping, alive."""
        return np.frombuffer(self._map, np.uint8, self.size if size is None else size, offset)

    @property
    def pinned(self) -> bool:
        """Whether the mapping is page-locked."""
        return self._map.unregister is not None

    def pin(self, pinning: CudaPinning) -> None:
        """Page-locks the mapping, if it is not yet and can be; it is unlocked when it ends."""
        address = self.view(0).ctypes.data
        if not self.pinned and pinning.register(address, self.size):
            self._map.unregister = functools.partial(pinning.unregister, address)

    def memory(self, offset: int, length: int) -> memoryview:
        """Returns a part of the slab as memory. Raises ProtocolError if it is not inside."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ProtocolError(f"bytes {offset}+{length} are not inside a slab of {self.size}")
        return memoryview(self._map)[offset : offset + length]

    def close(self) -> None:
        """Closes the descriptor. The mapping goes with the last view of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


Returned = collections.deque[
    tuple[SlabNumber, int, Callable[[], bool] | None]
]  # slab, bytes of the view that is gone, and the fence to be passed


class Lease:
    """A slab that the user looks at: it returns to the pool when the last view of it is gone.

    Each view has a life of its own, so that it is known how many bytes a slab is still held for. A finaliser may run in
    any thread at any time, so it only leaves a note that the pool reads later. Of a page-locked slab all views have one
    life: a fence for each would cost more than it tells.

    Args:
        slab: which.
        used: bytes of it that hold something.
        number: its number.
        returned: where the notes go.
        pinning: of the slab, if it is page-locked.
    """

    def __init__(
        self, slab: Slab, used: int, number: SlabNumber, returned: Returned, pinning: CudaPinning | None
    ) -> None:
        self.slab, self._number, self._returned, self._pinning = slab, number, returned, pinning
        self.used, self.pinned = used, pinning is not None
        self.bytes = used if self.pinned else 0  # of the views that are held
        self.views = int(self.pinned)
        self._tracked: list[weakref.ref[Any]] = []  # a `weakref.finalize` each would cost twice as much
        self._whole = self._track(slab.view(used)) if self.pinned else None

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Returns a view for the user."""
        if self._whole is not None:
            return self._whole[offset : offset + length]
        self.views += 1
        self.bytes += length
        return self._track(self.slab.view(length, offset))

    def _track(self, view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        note = functools.partial(_give_back, self._number, view.size, self._returned, self._pinning)
        self._tracked.append(weakref.ref(view, note))  # the pool keeps this lease until all of its views are gone
        return view

    def end(self) -> None:
        """No more views are made."""
        self._whole = None


def _give_back(number: SlabNumber, size: int, returned: Returned, pinning: CudaPinning | None, _: object) -> None:
    returned.append((number, size, pinning.fence() if pinning is not None else None))


@dataclass(eq=False)
class _PooledSlab:
    """A slab, and what keeps it from being handed out again.

    Attributes:
        writers: requests that allow their worker to write to it.
        retired: it was given up; it is free with the last of its writers.
        tainted: a worker that may write to it is lost, and may still be writing.
    """

    slab: Slab
    writers: int = 0
    retired: bool = False
    tainted: bool = False


class SlabPool:
    """The slabs of one client, or of a feed server, bounded in bytes.

    Args:
        limit: bytes over all slabs. It is passed only for the batch that is next in line (`force`).
        pinning: page-locks the slabs that the user gets; None for ordinary memory.

    Attributes:
        numbers: those of the next slabs.
    """

    def __init__(self, limit: int, pinning: CudaPinning | None = None) -> None:
        self.limit = limit
        self._pinning = pinning
        self.numbers = map(SlabNumber, itertools.count(1))
        self._slabs: dict[SlabNumber, _PooledSlab] = {}
        self._free: list[SlabNumber] = []
        self._leased: dict[SlabNumber, Lease] = {}
        self._returned: Returned = collections.deque()
        self._fenced: Returned = collections.deque()  # the user let go of them, but a device may still read
        self._dropped: list[SlabNumber] = []

    def __getitem__(self, number: SlabNumber) -> Slab:
        return self._slabs[number].slab

    @property
    def total_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(pooled.slab.size for pooled in self._slabs.values())

    @property
    def free_bytes(self) -> int:
        """Bytes of the slabs that are not in use."""
        self._collect()
        return sum(self[number].size for number in self._free)

    def leases(self) -> list[Lease]:
        """Returns the slabs that the user looks at."""
        self._collect()
        return [*self._leased.values()]

    def _collect(self) -> None:
        for _ in range(len(self._fenced)):
            self._returned.append(self._fenced.popleft())
        while self._returned:
            number, size, fence = self._returned.popleft()
            if fence is not None and not fence():
                self._fenced.append((number, size, fence))
                continue
            lease = self._leased.get(number)
            if lease is None:  # the pool was closed
                continue
            lease.views -= 1
            lease.bytes -= size
            if not lease.views:
                del self._leased[number]
                self._free.append(number)

    def acquire(self, size: int, *, force: bool = False) -> SlabNumber | None:
        """Returns the number of a free slab of at least `size` bytes; None when a limit does not allow one.

        Raises:
            OSError: it must be (`force`), and there is no memory or no descriptor.
        """
        self._collect()
        fitting = [number for number in self._free if self[number].size >= size]
        if fitting:
            number = min(fitting, key=lambda candidate: self[candidate].size)
            self._free.remove(number)
            return number
        while self._free and self.total_bytes + size > self.limit:
            self._drop(self._free.pop())
        if self.total_bytes + size > self.limit and not force:
            return None
        while True:
            try:
                return self.adopt(Slab.create(size))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if self._free:
                    self._drop(self._free.pop())
                elif force:
                    raise
                else:
                    return None

    def adopt(self, slab: Slab) -> SlabNumber:
        """Takes over a slab that a worker made."""
        number = next(self.numbers)
        self._slabs[number] = _PooledSlab(slab)
        return number

    @contextlib.contextmanager
    def leased(self, number: SlabNumber, used: int) -> Iterator[Lease]:
        """Within it views are made of its first `used` bytes for the user; it comes back when all of them are gone."""
        slab = self[number]
        if self._pinning is not None:
            slab.pin(self._pinning)
        lease = self._leased[number] = Lease(slab, used, number, self._returned, self._pinning if slab.pinned else None)
        lease.views += 1  # this
        try:
            yield lease
        finally:
            lease.end()
            self._returned.append((number, 0, None))

    def take_dropped(self) -> list[SlabNumber]:
        """Returns the slabs that are gone since the last call; workers should let go of them."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def lend(self, number: SlabNumber) -> None:
        """Notes that one more request allows its worker to write to the slab."""
        self._slabs[number].writers += 1

    def taint(self, number: SlabNumber) -> None:
        """Notes that a worker which may write to the slab is lost, and may still be writing."""
        self._slabs[number].tainted = True

    def settle(self, number: SlabNumber) -> None:
        """Notes that one of the requests that may write to a slab was answered, or that its worker is gone."""
        if number != NO_SLAB:
            pooled = self._slabs[number]
            pooled.writers -= 1
            if pooled.retired:
                self.discard(number)

    def discard(self, number: SlabNumber) -> None:
        """Gives a slab back as soon as no worker may write to it; it may be handed out again, unless it is tainted."""
        pooled = self._slabs[number]
        pooled.retired = pooled.writers > 0
        if pooled.retired:
            return
        if pooled.tainted or self.total_bytes > self.limit:
            self._drop(number)
            return
        self._free.append(number)
        if len(self._free) > MAX_FREE:
            smallest = min(self._free, key=lambda candidate: self[candidate].size)
            self._free.remove(smallest)
            self._drop(smallest)

    def _drop(self, number: SlabNumber) -> None:
        self._slabs.pop(number).slab.close()
        self._dropped.append(number)

    def close(self) -> None:
        """Closes all descriptors. What the user still views stays mapped until the last view is gone."""
        for pooled in self._slabs.values():
            pooled.slab.close()
        self._slabs.clear()
        self._free.clear()
        self._leased.clear()


_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device, not just the current one


class CudaPinning:
    """Registers mappings of this process with CUDA.

    Args:
        fenced: whether the user starts copies of his own, so that slabs need a fence.
    """

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced
        self._owner = os.getpid()
        self._refused = False

    def register(self, address: int, size: int) -> bool:
        """Page-locks `size` bytes at an address.

        Returns:
            Whether it was done. When it cannot be done, a warning names the error, and no further mapping is tried:
            batches are then copied to page-locked memory of torch's.
        """
        if self._refused:
            return False
        import torch

        try:
            torch.cuda.check_error(_runtime().cudaHostRegister(address, size, _PORTABLE))
        except RuntimeError as error:  # a container may limit locked memory; a driver may not lock shared memory
            self._refused = True
            with contextlib.suppress(RuntimeError):  # CUDA would report it again when the next kernel starts
                torch.ones(1, device="cuda").add_(1)
            warnings.warn(
                f"batches are copied to page-locked memory, since their own cannot be locked: {error}", stacklevel=2
            )
            return False
        return True

    def unregister(self, address: int) -> None:
        """Undoes `register`, when no copy reads from there any more."""
        if sys.is_finalizing() or os.getpid() != self._owner:
            return  # the process ends, and CUDA with it; or this is a fork, whose CUDA is the parent's
        import torch

        for device in _devices():
            torch.cuda.synchronize(device)
        torch.cuda.check_error(_runtime().cudaHostUnregister(address))

    def fence(self) -> Callable[[], bool] | None:
        """Returns a function that tells whether the work that the devices have now is done; None when there is none."""
        if not self._fenced or sys.is_finalizing() or os.getpid() != self._owner:
            return None
        return _Fence()


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Fence:
    def __init__(self) -> None:
        self._events: list[Any] | None = _record()

    def __call__(self) -> bool:
        if self._events is None:
            self._events = _record()
        return self._events is not None and all(event.query() for event in self._events)


def _record() -> list[Any] | None:
    """Records an event on each device's current stream; None while a graph is captured, which it would break."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    return [torch.cuda.current_stream(device).record_event() for device in _devices()]


def _devices() -> list[int]:
    """Returns the devices that this process uses; to ask another one would take memory there."""
    import torch

    core: Any = torch._C
    return [device for device in range(torch.cuda.device_count()) if core._cuda_hasPrimaryContext(device)]
