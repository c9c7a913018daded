"""One connection of a client to the feed server: a training rank over the Unix socket, or its receiver over TCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.feed.identifiers import NO_SLAB, PipelineNumber, RequestNumber, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.chunks import Payload
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection

_NO_PAYLOAD = Payload()


@dataclass(eq=False)
class ClientConnection:
    """One connection of a client.

    Attributes:
        channel: the connection.
        name: who it is, for the log.
        local: whether it came over the Unix socket and can pass descriptors.
        deadline: monotonic time by which it must have proved itself.
        hello: its proof, None until then.
        job: which job it belongs to, as it said when it opened a pipeline.
    """

    channel: FramedConnection
    name: str
    local: bool
    deadline: float
    challenge: messages.Challenge
    hello: messages.Hello | None = None
    closed: bool = False
    job: str = ""

    @property
    def summed(self) -> bool:
        """Whether what it is sent carries sums."""
        return self.channel.summed

    def send(
        self,
        message: messages.Message,
        descriptors: Sequence[int] = (),
        payload: Payload = _NO_PAYLOAD,
        sent: Callable[[], None] | None = None,
        key: RequestNumber | None = None,
    ) -> None:
        """Queues a message; nothing when the connection is gone (the server's loop notices that)."""
        if not self.closed:
            try:
                self.channel.send(message, descriptors=descriptors, payload=payload, sent=sent, key=key)
                return
            except (ConnectionClosed, OSError):  # it is gone, or no descriptor is left for what it is passed
                self.closed = True
                self.channel.close()
                return
        if sent is not None:
            sent()

    def abort(self, request: RequestNumber) -> None:
        """Stops the answer to a request, if it is on its way; answers `Cancelled` if nothing of it had left."""
        if not self.closed and self.channel.abort(request):
            self.send(messages.Cancelled(request))


@dataclass(eq=False)
class ServerRequest:
    """A client's request on its way through the server.

    `arrival` counts the requests of all clients; its number is the client's. `charged`: bytes, see `fair_queue`.
    """

    client: ClientConnection
    message: messages.SliceRequest
    arrival: int
    pipeline: PipelineNumber
    staging: SlabNumber = NO_SLAB
    cancelled: bool = False
    begun: float = 0.0
    charged: float = 0.0
