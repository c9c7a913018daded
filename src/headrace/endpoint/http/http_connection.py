"""One connection: requests and their replies, one after the other, until one side has enough.

Replies are framed by h11: head and small body in one send, files by the kernel, made pieces as chunks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http import HTTPStatus

import h11

from headrace.endpoint.http.http_message import (
    CHUNK_BYTES,
    BodyProblem,
    ClientGone,
    FileSlice,
    Handler,
    HttpLimits,
    HttpProblem,
    HttpReply,
    HttpRequest,
    Pace,
)
from headrace.endpoint.http.request_stream import RequestHead, RequestStream, StreamBody, parse_head

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WITH_HEAD_BYTES = 1 << 16  # of a file that is read, and sent together with the head
_SENDFILE_BYTES = 1 << 22
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_OWN = {"content-length", "transfer-encoding", "connection", "date"}


class ReplyStream:
    """The sending side of a connection.

    Args:
        sock: connected; a socket of TLS after its handshake.
        limits: how long is waited.
    """

    def __init__(self, sock: socket.socket, limits: HttpLimits) -> None:
        self._sock = sock
        self._limits = limits

    def send(self, data: bytes) -> None:
        """Sends bytes.

        Raises:
            BodyProblem: they cannot be sent, or are taken too slowly.
        """
        self._send(data, Pace(self._limits))

    def reply(self, reply: HttpReply, method: str, wire: h11.Connection, *, keeps: bool) -> bool:
        """Sends a reply. Returns False if the connection is to be closed after it.

        Args:
            reply: what to send.
            method: of the request; a reply to HEAD has no body.
            wire: frames the reply, as the request's version and headers ask for.
            keeps: the connection stays open, if the client wants so, too.

        Raises:
            BodyProblem: it cannot be sent, or is taken too slowly.
        """
        bare = method == "HEAD" or reply.status in (204, 304)
        body, pace = reply.body, Pace(self._limits)
        head = wire.send(_response(reply, method, keeps=keeps)) or b""
        if bare:
            self._send(head, pace)
        elif isinstance(body, bytes):
            self._send(head + (wire.send(h11.Data(body)) or b""), pace)
        elif isinstance(body, FileSlice):
            wire.send_with_data_passthrough(h11.Data(_Sized(body.size)))  # type: ignore[arg-type]
            self._send_file(head, body, pace)
        else:
            for piece in body:
                self._send(head + (wire.send(h11.Data(piece)) or b""), pace)
                head = b""
            self._send(head + (wire.send(h11.EndOfMessage()) or b""), pace)
        if wire.our_state is h11.SEND_BODY:
            wire.send(h11.EndOfMessage())
        return wire.our_state is h11.DONE

    def _send(self, data: bytes, pace: Pace) -> None:
        view = memoryview(data)
        self._sock.settimeout(self._limits.stall_seconds)
        with _told_as_gone():
            while view:
                sent = self._sock.send(view)
                view = view[sent:]
                pace.moved(sent)

    def _send_file(self, head: bytes, part: FileSlice, pace: Pace) -> None:
        if part.size <= _WITH_HEAD_BYTES or isinstance(self._sock, ssl.SSLSocket):
            self._send_read(head, part, pace)
        else:
            self._send_by_kernel(head, part, pace)

    def _send_read(self, head: bytes, part: FileSlice, pace: Pace) -> None:
        at, end = part.offset, part.offset + part.size
        while head or at < end:
            data = os.pread(part.file, min(CHUNK_BYTES, end - at), at)
            if not data and at < end:
                raise ClientGone("a file became shorter while it was sent")
            self._send(head + data, pace)
            head = b""
            at += len(data)

    def _send_by_kernel(self, head: bytes, part: FileSlice, pace: Pace) -> None:
        self._sock.settimeout(self._limits.stall_seconds)
        with _told_as_gone():
            self._sock.sendall(head, socket.MSG_MORE)
        out, at, end = self._sock.fileno(), part.offset, part.offset + part.size
        with _told_as_gone():
            while at < end:
                try:
                    sent = os.sendfile(out, part.file, at, min(_SENDFILE_BYTES, end - at))
                except BlockingIOError:
                    _wait_for(self._sock, select.POLLOUT, time.monotonic() + self._limits.stall_seconds)
                    continue
                if not sent:
                    raise ClientGone("a file became shorter while it was sent")
                at += sent
                pace.moved(sent)


class _Sized:
    """Stands for the bytes of a file that the kernel sends."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def _response(reply: HttpReply, method: str, *, keeps: bool) -> h11.Response:
    headers = [(name.encode(), value.strip().encode()) for name, value in reply.headers if name.lower() not in _OWN]
    headers.append((b"Date", formatdate(usegmt=True).encode()))
    own = next((value for name, value in reply.headers if name.lower() == "content-length"), "")
    body = reply.body
    if reply.status not in (204, 304):
        if method == "HEAD" and own:
            headers.append((b"Content-Length", own.encode()))
        elif isinstance(body, bytes | FileSlice):
            size = len(body) if isinstance(body, bytes) else body.size
            headers.append((b"Content-Length", b"%d" % size))
    if not keeps:
        headers.append((b"Connection", b"close"))
    reason = _REASONS.get(reply.status, "Status").encode()
    return h11.Response(status_code=reply.status, headers=headers, reason=reason)


def discard(reply: HttpReply) -> None:
    """Gives back what a reply holds, after it was sent or when it is not sent."""
    if isinstance(reply.body, FileSlice):
        os.close(reply.body.file)


def handshake(sock: ssl.SSLSocket, seconds: float) -> None:
    """Makes TLS's handshake as the server.

    Raises:
        ClientGone: the other end does not speak TLS, does not trust us, or did not speak in time.
    """
    sock.settimeout(seconds)  # for all of it
    with _told_as_gone():
        sock.do_handshake()


def _wait_for(sock: socket.socket, what: int, until: float) -> None:
    poll = select.poll()
    poll.register(sock, what)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError


@contextlib.contextmanager
def _told_as_gone() -> Iterator[None]:
    try:
        yield
    except BodyProblem:
        raise
    except TimeoutError:
        raise ClientGone("the client took nothing for too long") from None
    except OSError as error:
        raise ClientGone(f"the connection broke: {error.strerror or error}") from error


_log = logging.getLogger(__name__)


class HttpConnection:
    """Answers the requests of one connection.

    Args:
        sock: accepted; this object closes it.
        peer: address and port of the other end.
        handle: answers requests.
        limits: how long is waited, and how much is taken.
        tls: for connections that begin with TLS's handshake; None without TLS.
        begin: is called when a request begins to come; returns False if none may begin any more.
        prove: is called when the sender of the request is known.
        end: is called when it is answered; returns False if the connection is to be closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: tuple[str, int],
        handle: Handler,
        limits: HttpLimits,
        *,
        tls: ssl.SSLContext | None,
        begin: Callable[[], bool],
        prove: Callable[[], None],
        end: Callable[[], bool],
    ) -> None:
        self._sock = sock
        self._peer = peer
        self._handle = handle
        self._limits = limits
        self._tls = tls
        self._begin = begin
        self._prove = prove
        self._end = end
        self._read = RequestStream(sock, limits)
        self._write = ReplyStream(sock, limits)

    def serve(self) -> None:
        """Answers requests until the connection ends, and closes it."""
        try:
            if self._tls is None or self._secured(self._tls):
                while self._serve_one():
                    pass
        except BodyProblem as problem:
            _log.debug("%s:%s: %s", *self._peer, problem.message)
        finally:
            self._sock.close()

    def has_input(self) -> bool:
        """Tells whether bytes have come that this connection's thread has not read yet."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:
            return False  # it is closed
        return bool(poll.poll(0))

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """Ends what another thread waits for on the connection."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, how)  # not SSLSocket's, which takes the other thread's state away

    def _secured(self, context: ssl.SSLContext) -> bool:
        if not self._begin():
            return False
        try:
            self._sock.settimeout(self._limits.head_seconds)
            if not self._sock.recv(1, socket.MSG_PEEK):  # a socket that is gone is not closed by what wraps it
                raise ClientGone("the client closed the connection before its handshake")
            secured = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            raise ClientGone(f"the connection broke before its handshake: {error.strerror or error}") from error
        self._sock = secured
        handshake(secured, self._limits.head_seconds)
        self._read = RequestStream(secured, self._limits)
        self._write = ReplyStream(secured, self._limits)
        return self._end()

    def _serve_one(self) -> bool:
        if not self._read.wait_for_request() or not self._begin():
            return False
        try:
            head = parse_head(self._read.read_head(), self._limits)
        except HttpProblem as problem:
            self._refuse(problem)
            return False
        keeps = self._answer(head)
        return self._end() and keeps

    def _refuse(self, problem: HttpProblem) -> None:
        self._write.reply(problem_reply(problem), "GET", h11.Connection(h11.SERVER), keeps=False)
        self._linger()

    def _answer(self, head: RequestHead) -> bool:
        body = StreamBody(self._read, head, self._limits, lambda: self._write.send(CONTINUE))
        request = HttpRequest(
            head.method, head.raw_path, head.raw_query, head.headers, body,
            isinstance(self._sock, ssl.SSLSocket), prove=self._prove,
        )  # fmt: skip
        reply, keeps = self._reply_to(request)
        try:
            unread = not body.done
            keeps = keeps and ("Connection", "close") not in reply.headers
            keeps = keeps and not (unread and (body.waits or self._too_much(body)))
            keeps = self._write.reply(reply, head.method, head.wire, keeps=keeps)
        finally:
            discard(reply)
        if keeps and unread:
            keeps = self._drained(body)
        if not keeps:
            self._linger()
        return keeps

    def _reply_to(self, request: HttpRequest) -> tuple[HttpReply, bool]:
        """Returns the reply, and whether the connection can be used after it."""
        try:
            return self._handle(request), True
        except ClientGone:
            raise
        except HttpProblem as problem:
            return problem_reply(problem), not problem.closes
        except Exception:  # noqa: BLE001 - the boundary: it is logged, and answered or closed
            _log.exception("%s %s could not be answered", request.method, request.raw_path)
            return problem_reply(_OURS), False

    def _too_much(self, body: StreamBody) -> bool:
        return body.left is None or body.left > self._limits.drain_bytes

    def _drained(self, body: StreamBody) -> bool:
        until = time.monotonic() + self._limits.drain_seconds
        try:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            while body.readinto(buffer):
                if time.monotonic() > until:
                    return False
        except BodyProblem:
            return False
        return True

    def _linger(self) -> None:
        """Lets the client read the last reply: bytes of his that nobody has read would take it from him."""
        until = time.monotonic() + self._limits.drain_seconds
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not socket.socket.recv(self._sock, 1 << 16):
                    return


_OURS = HttpProblem(500, "this request could not be answered because of an error of headrace; its log tells more")


def problem_reply(problem: HttpProblem) -> HttpReply:
    """Returns the reply that tells a problem as plain text."""
    return HttpReply(problem.status, (("Content-Type", "text/plain; charset=utf-8"),), f"{problem}\n".encode())
