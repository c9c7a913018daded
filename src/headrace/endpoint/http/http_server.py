"""A threaded HTTP/1.1 server: one thread a connection, not too many of them, and an end that lets requests finish."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import ssl
import threading
import time

import h11

from headrace.endpoint.http.http_message import (
    CHUNK_BYTES,
    BodyProblem,
    ClientGone,
    Handler,
    HttpLimits,
    HttpProblem,
    HttpReply,
    HttpRequest,
)
from headrace.endpoint.http.reply_stream import CONTINUE, ReplyStream, discard, handshake
from headrace.endpoint.http.request_stream import RequestHead, RequestStream, StreamBody, parse_head
from headrace.errors import UsageError

_log = logging.getLogger(__name__)
_BACKLOG = 256
_CUT_OFF = 3  # times `kept_seconds`
_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL})


def listen(address: str, port: int) -> socket.socket:
    """Returns a socket that listens.

    Args:
        address: IPv4 or IPv6 address of this machine.
        port: 0 takes one that is free.

    Raises:
        UsageError: it is in use, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "choose another port; 0 takes one that is free"
        if isinstance(error, socket.gaierror) or error.errno in _NOT_OURS:
            hint = "give an address of this machine: 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses"
        raise UsageError(f"{address}:{port} cannot be listened on: {error.strerror or error}", hint) from error
    return listener


class HttpConnection:
    """Answers the requests of one connection, one after the other, in a thread of its own, until one side has enough.

    Who has shown a key keeps the place while he is answered; all others keep it if nobody waits for it.

    Args:
        server: that has accepted it; its `changed` guards the attributes.
        sock: this object closes it.
        peer: address and port of the other end.

    Attributes:
        thread: in which it is served.
        idle: no request has begun.
        since: when the connection came; of one that has shown a key: when its last request ended, or the next one
            began. None while a request is answered whose sender is known.
        proven: a sender who is known has used it.
        leaving: how often it was told to end, because its place is needed.
    """

    def __init__(self, server: HttpServer, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._server = server
        self._limits = server.limits
        self._peer = peer
        self._use(sock)
        self.thread = threading.Thread(target=self._serve, name=f"http-{server.port}-{peer[1]}", daemon=True)
        self.idle = True
        self.since: float | None = time.monotonic()
        self.proven = False
        self.leaving = 0

    def _use(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read = RequestStream(sock, self._limits)
        self._write = ReplyStream(sock, self._limits)

    def _serve(self) -> None:
        try:
            if self._server.tls is None or self._secured(self._server.tls):
                while self._serve_one():
                    pass
        except BodyProblem as problem:
            _log.debug("%s:%s: %s", *self._peer, problem.message)
        except Exception:  # noqa: BLE001 - the boundary: it is logged, and answered or closed
            _log.exception("a connection ended by an error of headrace")
        finally:
            self._sock.close()
            self._server.forget(self)

    def _turn(self, *, idle: bool) -> bool:
        """A request begins to come, or was answered. Returns whether the connection goes on."""
        with self._server.changed:
            self.idle = idle
            if self.proven:
                self.since = time.monotonic()
            if idle:
                self._server.changed.notify_all()
            return not self._server.stopping and not self.leaving

    def _prove(self) -> None:
        with self._server.changed:
            self.proven, self.since = True, None

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
        if not self._turn(idle=False):
            return False
        try:
            self._sock.settimeout(self._limits.head_seconds)
            if not self._sock.recv(1, socket.MSG_PEEK):  # a socket that is gone is not closed by what wraps it
                raise ClientGone("the client closed the connection before its handshake")
            secured = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            raise ClientGone(f"the connection broke before its handshake: {error.strerror or error}") from error
        self._use(secured)
        handshake(secured, self._limits.head_seconds)
        return self._turn(idle=True)

    def _serve_one(self) -> bool:
        if not self._read.wait_for_request() or not self._turn(idle=False):
            return False
        try:
            head = parse_head(self._read.read_head(), self._limits)
        except HttpProblem as problem:
            self._refuse(problem)
            return False
        keeps = self._answer(head)
        return self._turn(idle=True) and keeps

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
            too_much = body.left is None or body.left > self._limits.drain_bytes
            keeps = keeps and not (unread and (body.waits or too_much))
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
            return self._server.handle(request), True
        except ClientGone:
            raise
        except HttpProblem as problem:
            return problem_reply(problem), not problem.closes
        except Exception:  # noqa: BLE001 - the boundary: it is logged, and answered or closed
            _log.exception("%s %s could not be answered", request.method, request.raw_path)
            return problem_reply(_OURS), False

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


class HttpServer:
    """Serves HTTP on one listening socket.

    Args:
        handle: answers requests; called by many threads at once.
        listener: from `listen`; the server closes it.
        limits: how many connections, how large and how slow requests may be.
        tls: certificate and key, for connections that begin with TLS; None without TLS.

    Attributes:
        handle, limits, tls: as given.
        changed: guards the connections and what each says of itself; told when one ends or is idle.
        stopping: no request begins any more.
    """

    def __init__(
        self,
        handle: Handler,
        listener: socket.socket,
        *,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.handle = handle
        self.limits = limits or HttpLimits()
        self.tls = tls
        self.changed = threading.Condition()
        self.stopping = False
        self._listener = listener
        self._connections: set[HttpConnection] = set()
        self._accepting = threading.Thread(target=self._accept, name=f"http-{self.port}", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self.changed:
            return len(self._connections)

    @property
    def idle_connections(self) -> int:
        """How many of them wait for their next request."""
        with self.changed:
            return sum(connection.idle for connection in self._connections)

    def start(self) -> None:
        """Begins to accept connections, in threads of its own."""
        self._accepting.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Ends the server: no new connection, no new request; those that are being answered have some time.

        Args:
            grace_seconds: after them what is still being answered is cut off.
        """
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        if self._accepting.is_alive():
            self._accepting.join()
        self._listener.close()
        with self.changed:
            self._shut(socket.SHUT_RD, only_idle=True)
            if not self.changed.wait_for(lambda: not self._connections, grace_seconds):
                _log.warning("%d connections were cut off after %.0f s", len(self._connections), grace_seconds)
                self._shut(socket.SHUT_RDWR, only_idle=False)
            threads = [connection.thread for connection in self._connections]
        for thread in threads:
            thread.join(grace_seconds)  # its handler may work for longer; nobody hears it any more

    def _shut(self, how: int, *, only_idle: bool) -> None:
        for connection in self._connections:
            if connection.idle or not only_idle:
                connection.shut_down(how)

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError as error:
                if self.stopping:
                    return
                _log.warning("a connection could not be accepted: %s", os.strerror(error.errno or 0))
                with self.changed:  # most likely no descriptor is free: until a connection ends
                    self.changed.wait(1.0)
                continue
            if not self._make_room():
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start_connection(sock, (str(peer[0]), int(peer[1])))

    def _make_room(self) -> bool:
        """Waits until there is a place, ending connections of whom nobody knows yet. Returns False at the end."""
        with self.changed:
            while len(self._connections) >= self.limits.connections and not self.stopping:
                now = time.monotonic()
                unknown = [connection for connection in self._connections if not connection.proven]
                for connection in sorted(unknown or self._connections, key=lambda each: each.since or now):
                    if self._told_to_leave(connection, now):
                        break
                self.changed.wait(max(0.01, self.limits.kept_seconds / 10))
            return not self.stopping

    def _told_to_leave(self, connection: HttpConnection, now: float) -> bool:
        """Ends a connection that has had its time: it may send no more, and is cut off if that does not help.

        A request that has come whole is answered all the same: on a busy machine the client is not the slow one.
        """
        if connection.since is None or now - connection.since < self.limits.kept_seconds:
            return False
        if (
            not connection.proven
            and connection.leaving < 2
            and now - connection.since >= _CUT_OFF * self.limits.kept_seconds
        ):
            connection.leaving = 2
            connection.shut_down(socket.SHUT_RDWR)
        elif not connection.leaving and not connection.has_input():
            connection.leaving = 1
            connection.shut_down(socket.SHUT_RD)
        else:
            return False
        return True

    def _start_connection(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        connection = HttpConnection(self, sock, peer)
        with self.changed:
            self._connections.add(connection)
        try:
            connection.thread.start()
        except RuntimeError:  # no thread can be started
            _log.exception("no thread for a connection")
            sock.close()
            self.forget(connection)

    def forget(self, connection: HttpConnection) -> None:
        """Gives its place to others."""
        with self.changed:
            self._connections.discard(connection)
            self.changed.notify_all()
