"""Framed connections: messages, descriptors and bulk payloads over a stream socket.

A frame is a header (see `frames`), a message and a payload. Descriptors (Unix sockets only) arrive with the first byte
of their frame. The payload comes in checked chunks (see `frames`), is received straight into memory that the owner of
the connection names, and sent straight from where it lies: it is never copied into a message. A payload that is not
wanted any more can be stopped between two chunks (`abort`).

Every length is checked against the connection's limits before anything is allocated. A broken peer raises
ProtocolError, a closed one ConnectionClosed; both leave the connection unusable. Until a peer has proved who it is
(`trust`), its messages are small and only those of the handshake are decoded at all. Sockets are non-blocking:
`receive` returns what is complete, `send` queues what does not fit, and the owner polls (`wants_write`). What carries
the bytes is a stream of `transport`: a plain socket, or TLS.
"""

from __future__ import annotations

import collections
import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.errors import ProtocolError
from headrace.feed.batch.slab import Slab
from headrace.feed.descriptors import FULL, Descriptors, duplicates, keep_room
from headrace.feed.identifiers import NO_ROUTE, RouteNumber, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.frames import (
    HEADER_BYTES,
    NO_PAYLOAD,
    ChunkReader,
    ChunkWriter,
    Frame,
    Header,
    Payload,
    Seal,
    check_begin,
    read_header,
    write_header,
)
from headrace.feed.wire.messages import Decode, Message, SlabDrop, SlabOffer
from headrace.feed.wire.transport import MAX_DESCRIPTORS, ClientTls, PlainStream, ServerTls, TlsStream

MAX_MESSAGE = 64 << 20
MAX_PAYLOAD = 16 << 30
MAX_HANDSHAKE = 4096
LIVELY_BYTES = 16 << 10
_IOV_MAX = 512
_EXPECT = 1024 << 10  # bytes of a chunk that the receiver is woken for at once


class ConnectionClosed(Exception):
    """The peer has closed, or the connection broke."""


Sink = Callable[[Frame, int], Sequence[memoryview]]
"""Given a frame and its payload's length, names the memory to receive it into (sizes add up to the length)."""


@dataclass
class _Outgoing:
    """A frame on its way out: `parts` go next, then chunks of `payload`. Its header is made when it begins."""

    body: bytes
    route: RouteNumber
    seal: Seal | None
    parts: collections.deque[memoryview]
    payload: ChunkWriter
    descriptors: Descriptors
    sent: Callable[[], None] | None
    key: Hashable
    begun: bool = False

    def begin(self) -> None:
        """Makes the header: what was taken from the queue before has no number of its seal."""
        self.begun = True
        header = write_header(
            self.body, descriptors=len(self.descriptors), route=self.route, payload=self.payload.bytes, seal=self.seal
        )
        self.parts.append(memoryview(header + self.body))


class FramedConnection:
    """One framed connection.

    Args:
        connection: connected stream socket; the channel owns it from now on.
        sink: where payloads go; without one a payload is a protocol error.
        handshake: decoder for the messages of a peer that has yet to prove itself; None for one that is trusted.
        tls: this end's part in TLS; None for a plain connection.

    Attributes:
        stream: what carries the bytes.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        sink: Sink | None = None,
        handshake: Decode | None = None,
        tls: ServerTls | ClientTls | None = None,
    ) -> None:
        self.stream = PlainStream(connection) if tls is None else TlsStream(connection, tls)
        keep_room(connection.fileno())
        self._sink = sink
        self._decode_message: Decode = handshake or messages.decode
        self._max_message = MAX_MESSAGE if handshake is None else MAX_HANDSHAKE
        self._broken: ConnectionClosed | ProtocolError | None = None
        self._outgoing: collections.deque[_Outgoing] = collections.deque()
        self._descriptors = Descriptors()
        self._header = bytearray()
        self._lengths: Header | None = None
        self._body = bytearray()
        self._filled = 0
        self._frame: Frame | None = None
        self._payload: ChunkReader | None = None
        self._seal_sent: Seal | None = None
        self._seal_received: Seal | None = None
        self.bytes_received = self.bytes_sent = 0
        self._frames_received = 0

    def fileno(self) -> int:
        """Descriptor of the socket, -1 when closed."""
        return self.stream.fileno()

    def trust(self, sent: bytes = b"", received: bytes = b"") -> None:
        """The peer has proved itself: every message is taken from now on.

        Args:
            sent, received: keys for the seals of the two directions. Where nobody else reaches the bytes, behind TLS
                and on a Unix socket, there are no seals.
        """
        self._decode_message = messages.decode
        self._max_message = MAX_MESSAGE
        if sent and not self.stream.closed_to_others:
            self._seal_sent, self._seal_received = Seal(sent), Seal(received)

    @property
    def signs_of_life(self) -> int:
        """A number that grows while the peer does something useful: with every complete frame, or 16 KiB of a long one.

        Single bytes do not count: a peer that trickles, or one whose damaged frame would never end, is as good as dead.
        """
        return self._frames_received + self.bytes_received // LIVELY_BYTES

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return self.stream.wants_write or (self.stream.ready and bool(self._outgoing))

    def tcp_info(self, size: int) -> bytes:
        """Returns the first `size` bytes of the kernel's TCP_INFO; empty when the connection is closed."""
        return self.stream.tcp_info(size)

    def check_connected(self) -> None:
        """Raises ConnectionClosed if the connection that was begun could not be made."""
        code = self.stream.error()
        if code:
            raise ConnectionClosed(os.strerror(code).lower())

    def close(self) -> None:
        """Closes the socket and the descriptors that were not taken."""
        self._descriptors.close()
        if self._frame is not None:
            self._frame.discard()
        while self._outgoing:
            outgoing = self._outgoing.popleft()
            outgoing.descriptors.close()
            if outgoing.sent is not None:
                outgoing.sent()
        self._payload = None
        self.stream.close()

    def refuse_plain(self, why: str) -> None:
        """Refuses a peer without TLS, where this end has TLS. Close the channel then."""
        if isinstance(self.stream, TlsStream) and not self.stream.ready:
            body = messages.encode(messages.Refused(why))
            self.stream.send_unencrypted(write_header(body) + body)

    # Sending

    def send(
        self,
        message: Message,
        *,
        route: RouteNumber = NO_ROUTE,
        descriptors: Sequence[int] = (),
        payload: Payload = NO_PAYLOAD,
        sent: Callable[[], None] | None = None,
        key: Hashable = None,
    ) -> None:
        """Queues a frame and sends what fits.

        Args:
            message: the message.
            route: see the module.
            descriptors: passed along; the caller keeps its own.
            payload: must not change until `sent`.
            sent: called when the frame has left, or the channel was closed.
            key: name of the frame for `abort`.

        Raises:
            ConnectionClosed: the peer is gone.
            OSError: no descriptor is left.
        """
        body = messages.encode(message)
        pieces = (part.cast("B") for part in payload.pieces if part.nbytes)
        seal = self._seal_sent
        chunks = ChunkWriter(pieces, payload.sums, summed=not self.stream.authentic, seal=seal)
        copies, parts = duplicates(descriptors), collections.deque[memoryview]()
        self._outgoing.append(_Outgoing(body, route, seal, parts, chunks, copies, sent, key))
        if self.stream.ready:  # a TLS handshake is the owner's to drive, who hears of its end
            self.flush()

    def abort(self, key: Hashable) -> bool:
        """Stops a frame with a payload that is still queued.

        Returns:
            True when nothing of it had left and the peer will never hear of it; False when its message had, or it is
            not queued: then its payload ends here, or has gone.
        """
        for outgoing in self._outgoing:
            if outgoing.key == key:
                if not outgoing.begun:
                    self._outgoing.remove(outgoing)
                    outgoing.descriptors.close()
                    if outgoing.sent is not None:
                        outgoing.sent()
                    return True
                if outgoing.payload:
                    outgoing.parts.append(outgoing.payload.abort())
                return False
        return False

    def flush(self) -> None:
        """Sends as much of the queue as the socket takes.

        Raises:
            ConnectionClosed: the peer is gone.
            ProtocolError: TLS could not be agreed upon.
        """
        try:
            self.stream.advance()
            while self._outgoing and self._send_some(self._outgoing[0]):
                pass
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionClosed(str(error)) from error

    def _send_some(self, outgoing: _Outgoing) -> bool:
        parts = outgoing.parts
        begins = not outgoing.begun
        if begins:
            outgoing.begin()
        if begins or not parts:
            parts.extend(outgoing.payload.cut())
        count = self.stream.send(list(itertools.islice(parts, _IOV_MAX)), outgoing.descriptors)
        self.bytes_sent += count
        outgoing.descriptors.close()
        while count:
            if count >= parts[0].nbytes:
                count -= parts.popleft().nbytes
            else:
                parts[0] = parts[0][count:]
                count = 0
        if not parts and not outgoing.payload:
            self._outgoing.popleft()
            if outgoing.sent is not None:
                outgoing.sent()
        return True

    # Receiving

    def receive(self, limit: int = 64) -> list[Frame]:
        """Returns the frames that are complete, some `limit` of them at most, without blocking.

        Raises:
            ConnectionClosed: the peer has closed and no complete frame is left.
            ProtocolError: the peer broke the protocol.
            OSError: no descriptor is left for one that came.
        """
        frames: list[Frame] = []
        if self._max_message == MAX_HANDSHAKE:
            limit = 1  # it may decide how the next one is taken
        try:
            # What TLS has decrypted is not left behind, nor a frame half read: no poll would report them.
            while self._broken is None and (len(frames) < limit or self.stream.pending or self._lengths is not None):
                frame = self._advance()
                if frame is not None:
                    frames.append(frame)
        except (BlockingIOError, InterruptedError):
            pass
        except (ConnectionClosed, ProtocolError) as error:
            self._broken = error
        except OSError as error:
            if error.errno in FULL:  # a descriptor is lost: the owner closes the connection
                for frame in frames:
                    frame.discard()
                raise
            self._broken = ConnectionClosed(str(error))
        if self._broken is None:
            self.stream.expect(self._certain())
        elif not frames:
            raise self._broken
        return frames

    def _certain(self) -> int:
        """Bytes that are sure to come, at least 1: those of a chunk come without a pause."""
        missing = self._payload.missing if self._payload is not None else 0
        return max(1, min(missing, _EXPECT))

    @property
    def amid_payload(self) -> bool:
        """Whether a payload is being received; a poll may not report every byte of it."""
        return self._payload is not None

    def _advance(self) -> Frame | None:
        if self._lengths is None:
            self._read_header()
            return None
        if self._frame is None:
            if self._filled < self._lengths.message:
                self._filled += self._recv_into(memoryview(self._body)[self._filled :])
                return None
            self._frame = self._decode(self._lengths)
            if self._lengths.payload:
                targets = self._payload_targets(self._frame, self._lengths.payload)
                self._payload = ChunkReader(targets, summed=not self.stream.authentic, seal=self._seal_received)
        if self._payload is not None:
            while not self._payload.complete:
                self._payload.advance(self._recv_into)
            self._frame.aborted = self._payload.aborted
        self._frames_received += 1
        frame, self._frame, self._lengths, self._payload = self._frame, None, None, None
        return frame

    def _read_header(self) -> None:
        missing = HEADER_BYTES - len(self._header)
        data, descriptors = self.stream.receive(missing)
        self._descriptors.extend(descriptors)
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("a peer passed more descriptors than allowed")
        if not data:
            raise ConnectionClosed("closed by the peer" if not self._header else "closed in the middle of a frame")
        self.bytes_received += len(data)
        self._header += data
        if len(self._header) < HEADER_BYTES:
            check_begin(self._header)
            return
        header = read_header(self._header)
        self._header.clear()
        if header.message > self._max_message:
            raise ProtocolError(f"a message of {header.message} bytes, at most {self._max_message} are allowed")
        if header.payload > MAX_PAYLOAD or (header.payload and self._sink is None):
            raise ProtocolError(f"a payload of {header.payload} bytes is not allowed here")
        if header.descriptors != len(self._descriptors):
            raise ProtocolError(f"a frame claims {header.descriptors} descriptors, {len(self._descriptors)} came")
        self._lengths = header
        self._body = bytearray(header.message)
        self._filled = 0

    def _decode(self, header: Header) -> Frame:
        header.verify(self._body, self._seal_received)
        try:
            message = self._decode_message(self._body)
        except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
            raise ProtocolError(f"a message that cannot be decoded: {error}") from error
        return Frame(message, header.route, Descriptors(self._descriptors.release()))

    def _payload_targets(self, frame: Frame, length: int) -> list[memoryview]:
        assert self._sink is not None
        targets = [target.cast("B") for target in self._sink(frame, length) if target.nbytes]
        if sum(target.nbytes for target in targets) != length:
            raise ProtocolError(f"a payload of {length} bytes does not fit its place")
        return targets

    def _recv_into(self, target: memoryview) -> int:
        if not target.nbytes:
            return 0
        count = self.stream.receive_into(target)
        if not count:
            raise ConnectionClosed("closed in the middle of a frame")
        self.bytes_received += count
        return count

    # Blocking use, for executors and tests

    def wait(self, timeout: float | None = None) -> list[Frame]:
        """Blocks until at least one frame is complete.

        Raises:
            ConnectionClosed, ProtocolError: as `receive`.
            TimeoutError: nothing came within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frames = self.receive()
            if frames:
                return frames
            self._poll(select.POLLIN | (select.POLLOUT if self.stream.wants_write else 0), deadline)

    def drain(self, timeout: float | None = None) -> None:
        """Blocks until the queue is sent. Raises ConnectionClosed, ProtocolError or TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.flush()
        while self._outgoing:
            self._poll(select.POLLOUT if self.wants_write else select.POLLIN, deadline)
            self.flush()

    def _poll(self, events: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self.stream, events)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not poll.poll(None if remaining is None else remaining * 1000):
            raise TimeoutError("no answer from the peer in time")


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
