"""Slabs: anonymous shared memory (memfd) that batches are written into and viewed in.

The kernel frees a slab when the last process that maps it is gone, however it ended, so nothing can be left behind,
and /dev/shm is not needed. A slab is written by one process at a time, the one that was asked to. A mapping keeps a
descriptor of its own (Python's mmap duplicates it), so slabs are few.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ProtocolError
from headrace.feed.descriptors import FULL, keep_room
from headrace.feed.identifiers import SlabNumber

GRANULE = 64 << 10
MAX_FREE = 32  # a slab costs descriptors, of which a process may have no more than 1024


class Pinning(Protocol):
    """Page-locks mappings, for copies to a device; see `cuda_pinning`."""

    def register(self, address: int, size: int) -> bool:
        """Page-locks memory. Returns whether it was done."""

    def unregister(self, address: int) -> None:
        """Undoes it, before the memory is unmapped."""

    def fence(self) -> Callable[[], bool] | None:
        """Returns what tells whether all work started until now has read such memory; None if no work reads it."""


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

    def view(self, size: int | None = None) -> NDArray[np.uint8]:
        """Returns a new array over the first `size` bytes; all arrays made of it keep it, and the mapping, alive."""
        return np.frombuffer(self._map, np.uint8, self.size if size is None else size)

    @property
    def pinned(self) -> bool:
        """Whether the mapping is page-locked."""
        return self._map.unregister is not None

    def pin(self, pinning: Pinning) -> None:
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

    def __init__(self, slab: Slab, used: int, number: SlabNumber, returned: Returned, pinning: Pinning | None) -> None:
        self._slab, self._number, self._returned, self._pinning = slab, number, returned, pinning
        self.used, self.pinned = used, pinning is not None
        self.bytes = used if self.pinned else 0  # of the views that are held
        self.views = int(self.pinned)
        self._whole = self._track(slab.view(used)) if self.pinned else None

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Returns a view for the user."""
        if self._whole is not None:
            return self._whole[offset : offset + length]
        self.views += 1
        self.bytes += length
        return self._track(np.frombuffer(self._slab.memory(offset, length), np.uint8))

    def _track(self, view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        finalizer = weakref.finalize(view, _give_back, self._number, view.size, self._returned, self._pinning)
        finalizer.atexit = False
        return view

    def end(self) -> None:
        """No more views are made."""
        self._whole = None


def _give_back(number: SlabNumber, size: int, returned: Returned, pinning: Pinning | None) -> None:
    returned.append((number, size, pinning.fence() if pinning is not None else None))


class SlabPool:
    """The slabs of one client, bounded in bytes.

    Args:
        limit: bytes over all slabs. It is passed only for the batch that is next in line (`force`).
        pinning: page-locks the slabs that the user gets; None for ordinary memory.
    """

    def __init__(self, limit: int, pinning: Pinning | None = None) -> None:
        self.limit = limit
        self._pinning = pinning
        self._slabs: dict[SlabNumber, Slab] = {}
        self._free: list[SlabNumber] = []
        self._returned: Returned = collections.deque()
        self._fenced: Returned = collections.deque()  # the user let go of them, but a device may still read
        self._leased: dict[SlabNumber, Lease] = {}
        self._next = 1
        self.dropped: list[SlabNumber] = []

    def __getitem__(self, number: SlabNumber) -> Slab:
        return self._slabs[number]

    @property
    def total_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.size for slab in self._slabs.values())

    @property
    def free_bytes(self) -> int:
        """Bytes of the slabs that are not in use."""
        self._collect()
        return sum(self._slabs[number].size for number in self._free)

    @property
    def leased_bytes(self) -> int:
        """Bytes of the slabs that the user looks at."""
        self._collect()
        return sum(self._slabs[number].size for number in self._leased)

    @property
    def wasted_bytes(self) -> int:
        """Bytes of the batches in these slabs that the user does not look at (any more)."""
        self._collect()
        return sum(lease.used - lease.bytes for lease in self._leased.values())

    @property
    def leased_slabs(self) -> int:
        """Number of the slabs that the user looks at."""
        self._collect()
        return len(self._leased)

    def _collect(self) -> None:
        while self._returned:
            self._fenced.append(self._returned.popleft())
        for _ in range(len(self._fenced)):
            number, size, fence = self._fenced.popleft()
            if fence is not None and not fence():
                self._fenced.append((number, size, fence))
                continue
            lease = self._leased.get(number)
            if lease is None:  # the pool was closed
                continue
            lease.views -= 1
            lease.bytes -= size
            if not lease.views:
                self._ended(number)

    def acquire(self, size: int, *, force: bool = False) -> SlabNumber | None:
        """Returns the number of a free slab of at least `size` bytes; None when a limit does not allow one.

        Raises:
            OSError: it must be (`force`), and there is no memory or no descriptor.
        """
        self._collect()
        fitting = [number for number in self._free if self._slabs[number].size >= size]
        if fitting:
            number = min(fitting, key=lambda candidate: self._slabs[candidate].size)
            self._free.remove(number)
            return number
        while self._free and self.total_bytes + size > self.limit:
            self.drop(self._free.pop())
        if self.total_bytes + size > self.limit and not force:
            return None
        while True:
            try:
                return self._add(Slab.create(size))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if self._free:
                    self.drop(self._free.pop())
                elif force:
                    raise
                else:
                    return None

    def adopt(self, slab: Slab) -> SlabNumber:
        """Takes over a slab that a worker made."""
        return self._add(slab)

    def _add(self, slab: Slab) -> SlabNumber:
        number = SlabNumber(self._next)
        self._next += 1
        self._slabs[number] = slab
        return number

    def release(self, number: SlabNumber) -> None:
        """Gives a slab back; it may be handed out again."""
        self._free.append(number)
        if self.total_bytes > self.limit:
            self._free.remove(number)
            self.drop(number)
        elif len(self._free) > MAX_FREE:
            smallest = min(self._free, key=lambda candidate: self._slabs[candidate].size)
            self._free.remove(smallest)
            self.drop(smallest)

    @contextlib.contextmanager
    def leased(self, number: SlabNumber, used: int) -> Iterator[Lease]:
        """Within it views are made of its first `used` bytes for the user; it comes back when all of them are gone."""
        slab = self._slabs[number]
        if self._pinning is not None:
            slab.pin(self._pinning)
        lease = self._leased[number] = Lease(slab, used, number, self._returned, self._pinning if slab.pinned else None)
        lease.views += 1  # this
        try:
            yield lease
        finally:
            lease.end()
            self._returned.append((number, 0, None))

    def _ended(self, number: SlabNumber) -> None:
        del self._leased[number]
        if number in self._slabs:
            self._free.append(number)

    def drop(self, number: SlabNumber) -> None:
        """Gives up a slab that is not free and not leased."""
        self._slabs.pop(number).close()
        self.dropped.append(number)

    def close(self) -> None:
        """Closes all descriptors. What the user still views stays mapped until the last view is gone."""
        for slab in self._slabs.values():
            slab.close()
        self._slabs.clear()
        self._free.clear()
        self._leased.clear()
