"""Sends replies, framed by h11: head and small body in one send, files by the kernel, made pieces as chunks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import formatdate
from http import HTTPStatus

import h11

from headrace.endpoint.http.http_message import (
    CHUNK_BYTES,
    BodyProblem,
    ClientGone,
    FileSlice,
    HttpLimits,
    HttpReply,
    Pace,
)

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
