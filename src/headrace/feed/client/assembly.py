"""Batches as they come together: the slabs that they lie in, what has arrived of them, and how they are handed over.

A bundle gets its slab when it is first asked for, as soon as its size can be known; until then the worker makes a slab
and passes it on. Every slice lands in the slab of its bundle, or, when it was asked for twice, in a spare one.

What the user keeps of a batch keeps its slab. So small tensors and arrays (labels) have ordinary memory of their own
from the start, and all of them do when the user holds more than half of the memory, or when what he holds is a small
part of the slabs that it lies in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.errors import ProtocolError
from headrace.feed.batch import pytree
from headrace.feed.batch.row_layout import Layout, decode_layout
from headrace.feed.batch.slab import CudaPinning, Slab, SlabPool
from headrace.feed.client.work_units import Bundle, Slice
from headrace.feed.identifiers import NO_SLAB, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.frames import Frame

_HELD_SHARE = 0.5  # of the memory: more than that in the user's hands, and batches are copied out
_HELD_SLABS = 64  # likewise: every slab takes two descriptors, of which a process may have 1,024
_WASTED = 16 << 20  # likewise: bytes, beside those of a batch, in slabs that are held for the rest of them
OWN_BYTES = 16 << 10  # of a tensor or array: those up to this size are always copied
_BUNDLE_BYTES = 4 << 20
_BUNDLE_SHARE = 32  # of the memory that a bundle may take, 1/n


@dataclass
class _Result:
    """What has arrived of a bundle: the descriptions of its batches (None for a failed one) and the bytes used."""

    nodes: list[list[Any] | None] = field(default_factory=list)
    size: int = 0


class Delivery(NamedTuple):
    """A batch for the user: its data, its payload bytes, and whether they were copied."""

    data: Any
    size: int
    copied: bool


class Assembly:
    """See the module.

    Args:
        memory: limit of the slabs, bytes.
        pinning: page-locks the slabs that the user gets; None for ordinary memory.
    """

    def __init__(self, memory: int, pinning: CudaPinning | None = None) -> None:
        self.ledger = SlabPool(memory, pinning)
        self._memory = memory
        self._results: dict[Bundle, _Result] = {}
        self._prepared: set[Bundle] = set()  # those that have slabs
        self._encoded = b""
        self._layout: Layout | None = None
        self._batch_bytes = 0  # the largest that a batch made whole has needed

    @property
    def bundle_limit(self) -> int:
        """Bytes that a bundle of several batches may have."""
        return min(_BUNDLE_BYTES, self._memory // _BUNDLE_SHARE)

    def batch_bytes(self, rows: int) -> int:
        """Returns the bytes that a batch is expected to have; 0 when it is not known yet."""
        return self._layout.size(rows) if self._layout is not None else self._batch_bytes

    def layout_of(self, slice_: Slice) -> bytes:
        """Returns the encoded layout that a slice is asked for with, empty when it is not made row by row."""
        return b"" if slice_.whole else self._encoded

    def prepare(self, slice_: Slice, *, head: bool) -> bool:
        """Gives the bundle of a slice its slab, if its size is known. Returns False when the memory does not allow it.

        Args:
            slice_: what is about to be asked for.
            head: whether its bundle is the next in line, which always gets a slab.
        """
        bundle = slice_.bundle
        if bundle.slab:
            return True
        size = self._size(slice_)
        slab = self.ledger.acquire(size, force=head) if size else NO_SLAB
        if slab is None:
            return False
        bundle.slab = slab
        self._prepared.add(bundle)
        return True

    def prepare_spare(self, slice_: Slice) -> SlabNumber:
        """Returns a slab for a slice of the next bundle in line that is asked for twice; 0 when its size is not known.

        It may pass the limit, by one bundle, because the trainer waits for this one.
        """
        if slice_.bundle.spare:
            return NO_SLAB
        size = self._size(slice_)
        slab = self.ledger.acquire(size, force=True) if size else None
        if slab is None:
            return NO_SLAB
        slice_.bundle.spare.append(slab)
        return slab

    def _size(self, slice_: Slice) -> int:
        bundle = slice_.bundle
        if self._layout is not None and not slice_.whole:
            return max(1, self._layout.size(bundle.plan.rows) * len(bundle.plans))
        return pytree.align(self._batch_bytes) * len(bundle.plans)

    def arrived(self, slice_: Slice, slab: SlabNumber, done: messages.Done, frame: Frame) -> None:
        """Takes a worker's answer.

        Args:
            slice_: what was asked for.
            slab: the slab that it was asked to be written to.
            done, frame: the answer.

        Raises:
            ProtocolError: it is not sound.
        """
        bundle = slice_.bundle
        if done.fresh:
            slab = self.ledger.adopt(Slab(frame.take_descriptor(), done.size))
        elif not slab:
            slab = self.ledger.acquire(1, force=True) or NO_SLAB  # batches without a single byte
        if slab != bundle.slab and slab not in bundle.spare:
            if bundle.slab:
                bundle.spare.append(slab)
            else:
                bundle.slab = slab
        slice_.slab = slab
        self._prepared.add(bundle)
        if done.layout:
            self._stacked(bundle, done)
        else:
            self._whole(bundle, done, self.ledger[slab].size)

    def learn(self, encoded: bytes) -> None:
        """Takes the layout of a row, before any batch has come."""
        self._layout, self._encoded = decode_layout(encoded), encoded

    def _stacked(self, bundle: Bundle, done: messages.Done) -> None:
        layout = decode_layout(done.layout)
        if self._layout is None:
            self._layout, self._encoded = layout, done.layout
        elif layout != self._layout:
            raise ProtocolError("the rows that came have another layout than those asked for")
        rows, batches = bundle.plan.rows, len(bundle.plans)
        size = layout.size(rows)
        nodes: list[list[Any] | None] = [layout.describe(rows, place * size) for place in range(batches)]
        self._results[bundle] = _Result(nodes, batches * size)

    def _whole(self, bundle: Bundle, done: messages.Done, size: int) -> None:
        if len(done.nodes) != len(bundle.plans) and not done.failures:
            raise ProtocolError(f"{len(done.nodes)} batches came, {len(bundle.plans)} were asked for")
        self._batch_bytes = max(self._batch_bytes, -(-min(size, max(1, done.size)) // len(bundle.plans)))
        self._results[bundle] = _Result(done.nodes, size)

    def forget(self, bundle: Bundle) -> None:
        """Drops what has arrived of a bundle, and gives its slabs back."""
        self._results.pop(bundle, None)
        self._prepared.discard(bundle)
        for slab in (bundle.slab, *bundle.spare):
            if slab:
                self.ledger.discard(slab)
        bundle.slab = NO_SLAB
        bundle.spare.clear()

    def forget_all(self) -> None:
        """Drops all bundles."""
        for bundle in list(self._prepared):
            self.forget(bundle)

    def hand_over(self, bundle: Bundle) -> Iterator[Delivery | Exception]:
        """Takes a complete bundle over and returns its batches, one by one: views of its slab, or copies.

        Raises:
            ProtocolError: while iterating; a batch is not sound.
        """
        if bundle.failed:
            self.forget(bundle)
            return iter([bundle.failures[place] for place in range(len(bundle.plans))])
        result = self._results.pop(bundle)
        self._prepared.discard(bundle)
        slab = self._merged(bundle)
        size, leases = self.ledger[slab].size, self.ledger.leases()
        copied = (
            sum(lease.slab.size for lease in leases) + size > self._memory * _HELD_SHARE
            or len(leases) >= _HELD_SLABS
            or sum(lease.used - lease.bytes for lease in leases) > _WASTED + size
        )
        return self._batches(bundle, result, slab, copied=copied)

    def _batches(
        self, bundle: Bundle, result: _Result, slab: SlabNumber, *, copied: bool
    ) -> Iterator[Delivery | Exception]:
        block = self.ledger[slab].view(result.size)
        own = pytree.copied(block)
        with self.ledger.leased(slab, result.size) as lease:

            def memory(offset: int, length: int) -> pytree.Bytes:
                if copied or (length <= OWN_BYTES and not lease.pinned):
                    return own(offset, length)
                return lease.view(offset, length)

            for place in range(len(bundle.plans)):
                if place in bundle.failures:
                    yield bundle.failures[place]
                    continue
                node = result.nodes[place]
                if node is None:
                    raise ProtocolError("a batch that did not fail has no description")
                yield Delivery(*pytree.rebuild_measured(node, block, memory), copied)

    def _merged(self, bundle: Bundle) -> SlabNumber:
        """Brings the slices of a bundle together in one slab, and gives the others back. Returns the slab."""
        slabs = [slice_.slab for slice_ in bundle.slices]
        final = next((slab for slab in slabs if slab in bundle.spare), bundle.slab)
        block = self.ledger[final].view()
        for slice_ in bundle.slices:
            if slice_.slab != final:
                if self._layout is None:
                    raise ProtocolError("a batch that was made whole came in several slabs")
                source = self.ledger[slice_.slab].view()
                for offset, length in self._layout.regions(bundle.plan.rows, slice_.first, slice_.last):
                    block[offset : offset + length] = source[offset : offset + length]
        for slab in (bundle.slab, *bundle.spare):
            if slab and slab != final:  # 0: the slice was asked for the first time when its size was not known
                self.ledger.discard(slab)
        bundle.slab = NO_SLAB
        bundle.spare.clear()
        return final
