"""What a client sends on a connection: heads and bodies, one request after the other, never waited for without end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import h11

from headrace.endpoint.http.http_limits import HttpLimits, Pace
from headrace.endpoint.http.http_message import BodyProblem, ClientGone, RequestBody, take_into
from headrace.endpoint.http.request_head import END, RequestHead, is_hopeless

_HEAD_BYTES = 1 << 14  # of what is received at once beside bodies


class RequestStream:
    """The receiving side of a connection.

    Args:
        sock: connected; a socket of TLS after its handshake.
        limits: how long is waited.
    """

    def __init__(self, sock: socket.socket, limits: HttpLimits) -> None:
        self._sock = sock
        self._limits = limits
        self._buffer = bytearray()

    @property
    def pending(self) -> bool:
        """Whether bytes came that nobody has read: those of the next request, when one has been answered."""
        return bool(self._buffer)

    def wait_for_request(self) -> bool:
        """Waits for the first byte of a request. Returns False if none came: closed, or idle for too long."""
        while True:
            while self._buffer[:2] == b"\r\n":  # some clients send an empty line after a body
                del self._buffer[:2]
            if self._buffer and self._buffer != b"\r":
                return True
            try:
                self._receive(self._limits.idle_seconds)
            except BodyProblem:
                return False

    def read_head(self) -> bytes:
        """Returns the bytes of a head, without the empty line after it.

        Raises:
            HttpProblem: it is too large, or did not come in time (BodyProblem).
        """
        until = time.monotonic() + self._limits.head_seconds
        searched = 0
        while (end := self._buffer.find(END, max(0, searched - 3))) < 0:
            if problem := is_hopeless(self._buffer, self._limits, searched):
                raise problem
            searched = len(self._buffer)
            self._receive(max(0.001, until - time.monotonic()))
        return self._take(end + len(END))[:end]

    def readinto(self, buffer: memoryview) -> int:
        """Puts the next bytes into a buffer, as soon as there are some. Returns their number, 1 or more.

        Raises:
            BodyProblem: there are none.
        """
        if not self._buffer:
            return self._received(buffer, self._limits.stall_seconds)
        return take_into(buffer, self._buffer)

    def receive(self) -> bytes:
        """Returns the next bytes, as soon as there are some.

        Raises:
            BodyProblem: there are none.
        """
        if not self._buffer:
            self._receive(self._limits.stall_seconds)
        return self._take(len(self._buffer))

    def put_back(self, data: bytes) -> None:
        """Takes back the last bytes of what `receive` returned: they are those of the next request."""
        self._buffer[:0] = data

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _receive(self, seconds: float) -> None:
        buffer = bytearray(_HEAD_BYTES)
        self._buffer += buffer[: self._received(memoryview(buffer), seconds)]

    def _received(self, buffer: memoryview, seconds: float) -> int:
        if self._sock.gettimeout() != seconds:  # to set it costs a call of the system
            self._sock.settimeout(seconds)
        try:
            count = self._sock.recv_into(buffer)
        except TimeoutError:
            raise BodyProblem(408, f"nothing came within {seconds:.0f} s", closes=True) from None
        except OSError as error:
            raise ClientGone(f"the connection broke: {error.strerror or error}") from error
        if not count:
            raise ClientGone("the client closed the connection")
        return count


class StreamBody(RequestBody):
    """The body of the request whose head was read last.

    Args:
        stream: where it comes from.
        head: of the request.
        limits: how large and how slow it may be.
        go_on: sends ``100 Continue`` to a client that waits for it.
    """

    def __init__(self, stream: RequestStream, head: RequestHead, limits: HttpLimits, go_on: Callable[[], None]) -> None:
        self._stream = stream
        self._length = head.length
        self._wire = head.wire
        self._limits = limits
        self._go_on = go_on if head.expects else None
        self._pace = Pace(limits)
        self._left = head.length or 0
        self._chunk = bytearray()  # that was received and not read
        self._total = 0
        self.done = head.length == 0

    @property
    def length(self) -> int | None:
        """Bytes in all; None for a chunked body."""
        return self._length

    @property
    def waits(self) -> bool:
        """Whether the client still waits for ``100 Continue``, and has not sent the body."""
        return self._go_on is not None

    @property
    def left(self) -> int | None:
        """Bytes that were not read; None if nobody knows."""
        return None if self._length is None and not self.done else self._left

    def readinto(self, buffer: memoryview) -> int:
        """See `RequestBody`."""
        if self.done:
            return 0
        if self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            if not self._stream.pending:
                go_on()
        if self._length is None:
            return self._read_chunks(buffer)
        count = self._stream.readinto(buffer[: self._left])
        self._left -= count
        self._pace.moved(count)
        self.done = not self._left
        return count

    def _read_chunks(self, buffer: memoryview) -> int:
        if not self._chunk:
            try:
                while (event := self._wire.next_event()) is h11.NEED_DATA:
                    self._wire.receive_data(self._stream.receive())
            except h11.RemoteProtocolError as error:
                raise BodyProblem(error.error_status_hint, f"the body's chunks: {error}", closes=True) from None
            if isinstance(event, h11.EndOfMessage):
                self.done = True
                self._stream.put_back(self._wire.trailing_data[0])
                return 0
            assert isinstance(event, h11.Data)
            self._chunk = bytearray(event.data)
            self._total += len(self._chunk)
            self._pace.moved(len(self._chunk))
            if self._total > self._limits.body_bytes:
                raise BodyProblem(413, f"the body of a request may have {self._limits.body_bytes} bytes", closes=True)
        return take_into(buffer, self._chunk)
