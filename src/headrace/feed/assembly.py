"""Batches as they come together: the slabs that they lie in, what has arrived of them, and how they are handed over.

A batch gets its slab when it is first asked for, as soon as its size can be known; until then the worker makes a slab
and passes it on. Every part lands in the slab of its batch. When the user holds more than half of the memory, further
batches are copied to ordinary memory, so that the loader goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.feed import messages, tree
from headrace.feed.frames import Frame
from headrace.feed.layout import Layout, decode_layout
from headrace.feed.schedule import Batch, Part
from headrace.feed.shelf import Shelf
from headrace.feed.slab import Slab

_HELD_SHARE = 0.5  # of the memory: more than that in the user's hands, and batches are copied out
_HELD_SLABS = 64  # likewise: every slab takes two descriptors, of which a process may have 1,024


@dataclass
class _Result:
    """What has arrived of a batch."""

    node: list[Any] | None = None
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
    """

    def __init__(self, memory: int) -> None:
        self.shelf = Shelf(memory)
        self._memory = memory
        self._results: dict[Batch, _Result] = {}
        self._encoded = b""
        self._layout: Layout | None = None
        self._largest = 0  # of the slabs that batches made whole have needed

    @property
    def stackable(self) -> bool:
        """Whether the layout is known, so that parts of a batch can be asked for."""
        return self._layout is not None

    def layout_of(self, part: Part) -> bytes:
        """Returns the encoded layout that a part is asked for with, empty when it is not made row by row."""
        return b"" if part.whole else self._encoded

    def prepare(self, part: Part, *, head: bool) -> bool:
        """Gives the batch of a part its slab, if its size is known. Returns False when the memory does not allow it.

        Args:
            part: what is about to be asked for.
            head: whether its batch is the next in line, which always gets a slab.
        """
        batch = part.batch
        if batch.slab:
            return True
        if self._layout is not None and not part.whole:
            size = max(1, self._layout.size(batch.plan.rows))
        else:
            size = self._largest
        slab = self.shelf.acquire(size, force=head) if size else 0
        if slab is None:
            return False
        batch.slab = slab
        self._results[batch] = _Result()
        return True

    def arrived(self, batch: Batch, done: messages.Done, frame: Frame) -> None:
        """Takes a worker's answer. Raises ProtocolError if it is not sound."""
        if done.fresh:
            slab = Slab(frame.take_descriptor(), done.size)
            if batch.slab:
                self.shelf.discard(batch.slab)
            batch.slab = self.shelf.adopt(slab)
        elif not batch.slab:
            batch.slab = self.shelf.acquire(1, force=True) or 0  # a batch without a single byte
        size = self.shelf[batch.slab].size
        if done.layout:
            if self._layout is None:
                self._layout, self._encoded = decode_layout(done.layout), done.layout
            known = self._layout if done.layout == self._encoded else decode_layout(done.layout)
            node: list[Any] | None = known.describe(batch.plan.rows)
        else:
            node = done.node
            self._largest = max(self._largest, size)
        self._results[batch] = _Result(node, size)

    def forget(self, batch: Batch) -> None:
        """Lets go of what has arrived of a batch, and of its slab."""
        self._results.pop(batch, None)
        if batch.slab:
            self.shelf.discard(batch.slab)
            batch.slab = 0

    def forget_all(self) -> None:
        """Lets go of all batches."""
        for batch in list(self._results):
            self.forget(batch)

    def hand_over(self, batch: Batch) -> Delivery:
        """Makes the user's batch: views of its slab, or copies. Raises ProtocolError if it is not sound."""
        result = self._results.pop(batch)
        slab, batch.slab = batch.slab, 0
        held = self.shelf.leased_bytes + self.shelf[slab].size
        copy = held > self._memory * _HELD_SHARE or self.shelf.leased_slabs >= _HELD_SLABS
        if copy:
            data = tree.rebuild(result.node, self.shelf[slab].view(result.size), copy=True)
            self.shelf.discard(slab)
        else:
            data = tree.rebuild(result.node, self.shelf.lease(slab, result.size))
        return Delivery(data, tree.bytes_of(data), copy)
