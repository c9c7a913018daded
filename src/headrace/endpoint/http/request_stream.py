"""What a client sends on a connection: heads and bodies, one request after the other, never waited for without end.

Heads are read by h11, and more strictly, so that two readers of one head never see two requests in it: lines end with
CR LF, no header is continued on the next line, one Content-Length at most and never beside Transfer-Encoding.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import h11

from headrace.endpoint.http.http_message import (
    BodyProblem,
    ClientGone,
    Headers,
    HttpLimits,
    HttpProblem,
    Pace,
    RequestBody,
    take_into,
)

END = b"\r\n\r\n"
_FRAMING_BYTES = 4096  # of a line before a chunk, and of trailers
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTINUED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]{1,19}[ \t]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: as it was sent.
        raw_path: path of the target, as it was sent.
        raw_query: what follows the first ``?``.
        headers: in order. Of a target with a host, that host is the only Host.
        length: bytes of the body; None if it is chunked.
        expects: the client sends the body after ``100 Continue`` only.
        wire: reads the chunks of the body, and frames the reply.
    """

    method: str
    raw_path: str
    raw_query: str
    headers: Headers
    length: int | None
    expects: bool
    wire: h11.Connection


def is_hopeless(data: bytes | bytearray, limits: HttpLimits, since: int = 0) -> HttpProblem | None:
    """Returns why the beginning of a head can be refused before its end has come; None if it may still be right.

    Args:
        data: what came of it.
        limits: how large it may be.
        since: bytes that were looked at before.
    """
    if _BARE_LF.search(data, since):
        return HttpProblem(400, "lines of a request end with CR LF", closes=True)
    if len(data) > limits.head_bytes:
        return HttpProblem(431, f"request line and headers may have {limits.head_bytes} bytes", closes=True)
    return None


def parse_head(data: bytes, limits: HttpLimits) -> RequestHead:
    """Reads a head.

    Args:
        data: request line and headers, without the empty line after them.
        limits: how large it may be.

    Raises:
        HttpProblem: it is none, or asks for what is not done here.
    """
    if problem := is_hopeless(data, limits):
        raise problem
    lengths = _LENGTH.findall(data)
    if _CONTINUED.search(data) or len(lengths) > 1 or not all(map(_NUMBER.fullmatch, lengths)):
        raise HttpProblem(400, "a header stands on one line, and Content-Length, a number, once at most", closes=True)
    wire = h11.Connection(h11.SERVER, max_incomplete_event_size=_FRAMING_BYTES)
    wire.receive_data(data + END)
    try:
        request = wire.next_event()
    except h11.RemoteProtocolError as error:
        raise HttpProblem(error.error_status_hint, f"no request of HTTP: {error}", closes=True) from None
    assert isinstance(request, h11.Request)
    if len(request.target) > limits.target_bytes:
        raise HttpProblem(414, f"the target of a request may have {limits.target_bytes} bytes", closes=True)
    if not request.http_version.startswith(b"1."):
        raise HttpProblem(505, "HTTP/1.1 is spoken here", closes=True)
    pairs = request.headers.raw_items()
    if len(pairs) > limits.headers:
        raise HttpProblem(431, f"a request may have {limits.headers} headers", closes=True)
    try:
        headers = Headers((name.decode(), value.decode()) for name, value in pairs)
    except UnicodeDecodeError:
        raise HttpProblem(400, "the value of a header is no UTF-8", closes=True) from None
    headers, path = _host_and_path(request.method.decode(), request.target.decode(), headers)
    raw_path, _, raw_query = path.partition("?")
    old = request.http_version == b"1.0"
    return RequestHead(
        request.method.decode(), raw_path, raw_query, headers, _length(headers, old=old, limits=limits),
        _expects(headers, old=old), wire,
    )  # fmt: skip


def _host_and_path(method: str, target: str, headers: Headers) -> tuple[Headers, str]:
    if absolute := _ABSOLUTE.fullmatch(target):
        others = [(name, value) for name, value in headers if name.lower() != "host"]
        headers = Headers([("Host", absolute[1]), *others])
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
        raise HttpProblem(400, "the target of a request begins with /", closes=True)
    return headers, target


def _length(headers: Headers, *, old: bool, limits: HttpLimits) -> int | None:
    if "transfer-encoding" in headers:
        if old or "content-length" in headers:
            raise HttpProblem(400, "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0", closes=True)
        return None
    length = int(headers.get("content-length", "0"))
    if length > limits.body_bytes:
        raise HttpProblem(413, f"the body of a request may have {limits.body_bytes} bytes", closes=True)
    return length


def _expects(headers: Headers, *, old: bool) -> bool:
    if old or "expect" not in headers:
        return False
    if [value.lower() for value in headers.get_all("expect")] != ["100-continue"]:
        raise HttpProblem(417, "the only expectation that is met here is 100-continue", closes=True)
    return True


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
