"""What a client sends on a connection: heads and bodies, one request after the other, never waited for without end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from headrace.endpoint.http.http_limits import HttpLimits, Pace
from headrace.endpoint.http.http_message import BodyProblem, ClientGone, RequestBody, chunk_size, take_into
from headrace.endpoint.http.request_head import END, is_hopeless

_LINE_BYTES = 4096  # of the line before a chunk, and of a trailer
_TRAILER_BYTES = 1 << 14
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

    def take_pending(self) -> bytes:
        """Returns the bytes that came and that nobody has read."""
        return self._take(len(self._buffer))

    def readinto(self, buffer: memoryview) -> int:
        """Puts the next bytes into a buffer, as soon as there are some. Returns their number, 1 or more.

        Raises:
            BodyProblem: there are none.
        """
        if not self._buffer:
            return self._received(buffer, self._limits.stall_seconds)
        return take_into(buffer, self._buffer)

    def read_line(self) -> bytes:
        """Returns the next line of a chunked body's framing, without CR LF.

        Raises:
            BodyProblem: it is too long, or did not come.
        """
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LINE_BYTES:
                raise BodyProblem(400, "the chunks of a body are framed by short lines", closes=True)
            self._receive(self._limits.stall_seconds)
        if end > _LINE_BYTES:
            raise BodyProblem(400, "the chunks of a body are framed by short lines", closes=True)
        return self._take(end + 2)[:end]

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
        length: bytes, None if it is chunked.
        limits: how large and how slow it may be.
        go_on: sends ``100 Continue``; None if the client does not wait for it.
    """

    def __init__(
        self, stream: RequestStream, length: int | None, limits: HttpLimits, go_on: Callable[[], None] | None
    ) -> None:
        self._stream = stream
        self._length = length
        self._limits = limits
        self._go_on = go_on
        self._pace = Pace(limits)
        self._left = length or 0  # of the body, or of the present chunk
        self._total = 0
        self._between = False  # chunks: the end of one was read, and the line before the next was not
        self.done = length == 0

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
        if self._length is None and not self._left and not self._next_chunk():
            return 0
        count = self._stream.readinto(buffer[: self._left])
        self._left -= count
        self._total += count
        self._pace.moved(count)
        if not self._left:
            self._between = self._length is None
            self.done = self._length is not None
        return count

    def _next_chunk(self) -> bool:
        if self._between and self._stream.read_line():
            raise BodyProblem(400, "a chunk of the body is longer than it says", closes=True)
        digits, _, _ = self._stream.read_line().partition(b";")
        self._left = chunk_size(digits.strip(b" \t"))
        if self._total + self._left > self._limits.body_bytes:
            raise BodyProblem(413, f"the body of a request may have {self._limits.body_bytes} bytes", closes=True)
        if self._left:
            return True
        trailers = 0
        while line := self._stream.read_line():
            trailers += len(line)
            if trailers > _TRAILER_BYTES:
                raise BodyProblem(431, f"trailers may have {_TRAILER_BYTES} bytes", closes=True)
        self.done = True
        return False
