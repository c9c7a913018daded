"""One connection: requests and their replies, one after the other, until one side has enough."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import time
from collections.abc import Callable

import h11

from headrace.endpoint.http.http_limits import HttpLimits
from headrace.endpoint.http.http_message import (
    CHUNK_BYTES,
    BodyProblem,
    ClientGone,
    Handler,
    HttpProblem,
    HttpReply,
    HttpRequest,
)
from headrace.endpoint.http.reply_stream import CONTINUE, ReplyStream, discard, handshake
from headrace.endpoint.http.request_stream import RequestHead, RequestStream, StreamBody, parse_head

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
            head.method, head.raw_path, head.raw_query, head.headers, body, self._peer,
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
