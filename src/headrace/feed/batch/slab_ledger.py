"""The slabs of a session: which slab belongs to what, and when it may be used again.

A worker that was asked for rows may write to their slab until its answer has come. So a slab that is given up while
answers are outstanding is retired, and goes back to the pool with the last of them. A slab that a lost worker may
still be writing to is tainted: it is never used again.
"""

from __future__ import annotations

import contextlib

from headrace.feed.batch.slab import Lease, Pinning, Slab, SlabPool
from headrace.feed.identifiers import NO_SLAB, SlabNumber


class SlabLedger:
    """See the module.

    Args:
        memory: limit of the slabs, bytes.
        pinning: page-locks the slabs that the user gets; None for ordinary memory.
    """

    def __init__(self, memory: int, pinning: Pinning | None = None) -> None:
        self._pool = SlabPool(memory, pinning)
        self._writers: dict[SlabNumber, int] = {}  # how many requests may write to a slab
        self._retired: set[SlabNumber] = set()
        self._tainted: set[SlabNumber] = set()

    def __getitem__(self, slab: SlabNumber) -> Slab:
        return self._pool[slab]

    @property
    def total_bytes(self) -> int:
        """Bytes of all slabs."""
        return self._pool.total_bytes

    @property
    def leased_bytes(self) -> int:
        """Bytes of the slabs that the user looks at."""
        return self._pool.leased_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes of these slabs that the user has let go of."""
        return self._pool.wasted_bytes

    @property
    def leased_slabs(self) -> int:
        """Number of the slabs that the user looks at."""
        return self._pool.leased_slabs

    def acquire(self, size: int, *, force: bool = False) -> SlabNumber | None:
        """See `SlabPool.acquire`."""
        return self._pool.acquire(size, force=force)

    def adopt(self, slab: Slab) -> SlabNumber:
        """See `SlabPool.adopt`."""
        return self._pool.adopt(slab)

    def leased(self, slab: SlabNumber, used: int) -> contextlib.AbstractContextManager[Lease]:
        """See `SlabPool.leased`."""
        return self._pool.leased(slab, used)

    def take_dropped(self) -> list[SlabNumber]:
        """Returns the slabs that are gone since the last call; workers should let go of them."""
        dropped, self._pool.dropped = self._pool.dropped, []
        return dropped

    def lend(self, slab: SlabNumber) -> None:
        """Notes that one more request allows its worker to write to the slab."""
        self._writers[slab] = self._writers.get(slab, 0) + 1

    def taint(self, slab: SlabNumber) -> None:
        """Notes that a worker which may write to the slab is lost, and may still be writing."""
        self._tainted.add(slab)

    def settle(self, slab: SlabNumber) -> None:
        """Notes that one of the requests that may write to a slab was answered, or that its worker is gone."""
        if slab == NO_SLAB:
            return
        self._writers[slab] -= 1
        if not self._writers[slab]:
            del self._writers[slab]
            if slab in self._retired:
                self._retired.discard(slab)
                self._give_back(slab)

    def discard(self, slab: SlabNumber) -> None:
        """Gives a slab back as soon as no worker may write to it."""
        if slab in self._writers:
            self._retired.add(slab)
        else:
            self._give_back(slab)

    def _give_back(self, slab: SlabNumber) -> None:
        if slab in self._tainted:
            self._tainted.discard(slab)
            self._pool.drop(slab)
        else:
            self._pool.release(slab)

    def close(self) -> None:
        """Closes all descriptors. What the user still views stays mapped until the last view is gone."""
        self._pool.close()
