"""A connection to whoever makes slices: an executor, a feed server, or the receiver behind which several hosts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.feed.batch.slab import Slab
from headrace.feed.identifiers import NO_ROUTE, RouteNumber, SlabNumber
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.messages import Message, SlabDrop, SlabOffer


@dataclass(eq=False)
class Link:
    """See the module.

    Attributes:
        channel: the connection.
        shared: whether frames are routed to several hosts (a receiver).
        slabs: those that were offered on it.
    """

    channel: FramedConnection
    shared: bool = field(default=False, kw_only=True)
    slabs: set[SlabNumber] = field(default_factory=set, init=False)

    def post(self, message: Message, route: RouteNumber = NO_ROUTE, descriptors: Sequence[int] = ()) -> None:
        """Sends a message. When the connection is closed, the next poll reports it."""
        try:
            self.channel.send(message, route=route, descriptors=descriptors)
        except ConnectionClosed:
            return

    def offer(self, number: SlabNumber, slab: Slab) -> None:
        """Passes a slab on, if that was not done."""
        if number not in self.slabs:
            self.slabs.add(number)
            self.post(SlabOffer(number, slab.size), descriptors=[slab.descriptor])

    def drop(self, number: SlabNumber) -> None:
        """Has the other end let a slab go, if it was offered."""
        if number in self.slabs:
            self.slabs.discard(number)
            self.post(SlabDrop(number))

    def reason(self) -> str:
        """Returns how the process behind the link ended."""
        return "connection closed"

    def close(self) -> None:
        """Closes the connection and ends the process behind it."""
        self.channel.close()
