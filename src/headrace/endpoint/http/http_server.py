"""A threaded HTTP/1.1 server: one thread a connection, not too many of them, and an end that lets requests finish."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import threading
import time

from headrace.endpoint.http.http_connection import HttpConnection
from headrace.endpoint.http.http_message import Handler, HttpLimits
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


class _Slot:
    """The place of a connection. Who has shown a key keeps it while he is answered; all others keep it if nobody waits.

    Attributes:
        connection, thread: that have it.
        idle: no request has begun.
        since: when the connection came; of one that has shown a key: when its last request ended, or the next one
            began. None while a request is answered whose sender is known.
        proven: a sender who is known has used it.
        leaving: how often it was told to end, because its place is needed.
    """

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.thread: threading.Thread | None = None
        self.idle = True
        self.since: float | None = time.monotonic()
        self.proven = False
        self.leaving = 0


class HttpServer:
    """Serves HTTP on one listening socket.

    Args:
        handle: answers requests; called by many threads at once.
        listener: from `listen`; the server closes it.
        limits: how many connections, how large and how slow requests may be.
        tls: certificate and key, for connections that begin with TLS; None without TLS.
    """

    def __init__(
        self,
        handle: Handler,
        listener: socket.socket,
        *,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handle = handle
        self._listener = listener
        self._limits = limits or HttpLimits()
        self._tls = tls
        self._changed = threading.Condition()
        self._slots: set[_Slot] = set()
        self._stopping = False
        self._accepting = threading.Thread(target=self._accept, name=f"http-{self.port}", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self._changed:
            return len(self._slots)

    @property
    def idle_connections(self) -> int:
        """How many of them wait for their next request."""
        with self._changed:
            return sum(slot.idle for slot in self._slots)

    def start(self) -> None:
        """Begins to accept connections, in threads of its own."""
        self._accepting.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Ends the server: no new connection, no new request; those that are being answered have some time.

        Args:
            grace_seconds: after them what is still being answered is cut off.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        if self._accepting.is_alive():
            self._accepting.join()
        self._listener.close()
        with self._changed:
            self._shut(socket.SHUT_RD, only_idle=True)
            if not self._changed.wait_for(lambda: not self._slots, grace_seconds):
                _log.warning("%d connections were cut off after %.0f s", len(self._slots), grace_seconds)
                self._shut(socket.SHUT_RDWR, only_idle=False)
            threads = [slot.thread for slot in self._slots if slot.thread is not None]
        for thread in threads:
            thread.join(grace_seconds)  # its handler may work for longer; nobody hears it any more

    def _shut(self, how: int, *, only_idle: bool) -> None:
        for slot in self._slots:
            if slot.connection is not None and (slot.idle or not only_idle):
                slot.connection.shut_down(how)

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                _log.warning("a connection could not be accepted: %s", os.strerror(error.errno or 0))
                with self._changed:  # most likely no descriptor is free: until a connection ends
                    self._changed.wait(1.0)
                continue
            if not self._make_room():
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start_connection(sock, (str(peer[0]), int(peer[1])))

    def _make_room(self) -> bool:
        """Waits until there is a place, ending connections of whom nobody knows yet. Returns False at the end."""
        with self._changed:
            while len(self._slots) >= self._limits.connections and not self._stopping:
                now = time.monotonic()
                unknown = [slot for slot in self._slots if not slot.proven]
                for slot in sorted(unknown or self._slots, key=lambda slot: slot.since or now):
                    if self._told_to_leave(slot, now):
                        break
                self._changed.wait(max(0.01, self._limits.kept_seconds / 10))
            return not self._stopping

    def _told_to_leave(self, slot: _Slot, now: float) -> bool:
        """Ends a connection that has had its time: it may send no more, and is cut off if that does not help.

        A request that has come whole is answered all the same: on a busy machine the client is not the slow one.
        """
        if slot.connection is None or slot.since is None or now - slot.since < self._limits.kept_seconds:
            return False
        if not slot.proven and slot.leaving < 2 and now - slot.since >= _CUT_OFF * self._limits.kept_seconds:
            slot.leaving = 2
            slot.connection.shut_down(socket.SHUT_RDWR)
        elif not slot.leaving and not slot.connection.has_input():
            slot.leaving = 1
            slot.connection.shut_down(socket.SHUT_RD)
        else:
            return False
        return True

    def _start_connection(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        slot = _Slot()
        slot.connection = HttpConnection(
            sock, peer, self._handle, self._limits,
            tls=self._tls,
            begin=lambda: self._began(slot), prove=lambda: self._proved(slot), end=lambda: self._ended(slot),
        )  # fmt: skip
        slot.thread = threading.Thread(
            target=self._serve, args=(slot,), name=f"http-{self.port}-{peer[1]}", daemon=True
        )
        with self._changed:
            self._slots.add(slot)
        try:
            slot.thread.start()
        except RuntimeError:  # no thread can be started
            _log.exception("no thread for a connection")
            sock.close()
            self._forget(slot)

    def _serve(self, slot: _Slot) -> None:
        assert slot.connection is not None
        try:
            slot.connection.serve()
        except Exception:  # noqa: BLE001 - the boundary: it is logged, and answered or closed
            _log.exception("a connection ended by an error of headrace")
        finally:
            self._forget(slot)

    def _forget(self, slot: _Slot) -> None:
        with self._changed:
            self._slots.discard(slot)
            self._changed.notify_all()

    def _began(self, slot: _Slot) -> bool:
        with self._changed:
            slot.idle = False
            if slot.proven:
                slot.since = time.monotonic()
            return not self._stopping and not slot.leaving

    def _proved(self, slot: _Slot) -> None:
        with self._changed:
            slot.proven, slot.since = True, None

    def _ended(self, slot: _Slot) -> bool:
        with self._changed:
            slot.idle = True
            if slot.proven:
                slot.since = time.monotonic()
            self._changed.notify_all()
            return not self._stopping and not slot.leaving
