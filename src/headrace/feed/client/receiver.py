"""The receiver: takes batches from remote feed servers into slabs, in a process of its own.

    python -m headrace.feed.client.receiver --socket FD --parent PID

A thread in the trainer would starve on the interpreter's lock while the training loop runs. So each training rank has
one receiver, which holds the TCP connections to the hosts (frame route = number of the host) and receives payloads
straight into the rank's slabs. Towards the rank it behaves as executors do: a SliceRequest is answered by a Done that
names a slab. It ends when the rank closes the socket or ends.
"""

from __future__ import annotations

import argparse
import collections
import errno
import ipaddress
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from headrace.child_python import watch_parent
from headrace.errors import FeedError, ProtocolError
from headrace.feed.batch.row_layout import decode_layout
from headrace.feed.batch.slab import Slab
from headrace.feed.client.worker_pool import Keepalive
from headrace.feed.descriptors import FULL, no_room
from headrace.feed.identifiers import RequestNumber, RouteNumber, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import HANDSHAKE_SECONDS, ClientHandshake, RefusedByServer, refusal, split_address
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import Frame, OtherVersion
from headrace.feed.wire.transport import ClientTls, TlsRefused, client_tls, configure_tcp
from headrace.feed.worker.send_buffers import own_block

CONNECT_SECONDS = 5.0
LOOK_SECONDS = 0.5
LOOKUP_SECONDS = 0.01  # while a name is looked up


@dataclass(eq=False)
class HostLink:
    """One remote feed server."""

    route: RouteNumber
    address: str
    handshake: ClientHandshake
    deadline: float
    keepalive: Keepalive
    channel: FramedConnection = field(init=False)
    connected: bool = False
    requests: dict[RequestNumber, messages.SliceRequest] = field(default_factory=dict)
    fresh: dict[RequestNumber, Slab] = field(default_factory=dict)
    looked: float = 0.0


def look_up(name: str, port: int) -> Future[list[Any]]:
    """Looks up the addresses of a host, in a thread: a resolver may take half a minute over one that is gone.

    Of an address it is done at once.
    """
    lookup: Future[list[Any]] = Future()

    def resolve() -> None:
        try:
            lookup.set_result(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            lookup.set_exception(error)

    if _is_address(name):
        resolve()
    else:
        threading.Thread(target=resolve, name=f"lookup of {name}", daemon=True).start()
    return lookup


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(eq=False)
class _Dialling:
    """A host that is to be connected as soon as its name is looked up; `begun`: monotonic seconds."""

    route: RouteNumber
    dial: messages.Dial
    tls: ClientTls | None
    lookup: Future[list[Any]]
    begun: float


class Receiver:
    """See the module.

    Args:
        channel: to the training rank.
    """

    def __init__(self, channel: FramedConnection) -> None:
        self._rank = channel
        self._hosts: dict[RouteNumber, HostLink] = {}
        self._slabs: dict[SlabNumber, Slab] = {}
        # A name may have several addresses, as localhost has ::1 and 127.0.0.1: the next dial takes the next one.
        self._failures: collections.Counter[str] = collections.Counter()
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, None)
        self._dials: list[_Dialling] = []
        self._lookups: dict[tuple[str, int], Future[list[Any]]] = {}  # one thread for a name at most

    def run(self) -> None:
        """Works until the rank closes. Raises ConnectionClosed then."""
        while True:
            self._watch_writes()
            for key, events in self._selector.select(timeout=LOOKUP_SECONDS if self._dials else LOOK_SECONDS):
                peer: HostLink | None = key.data
                if peer is None:
                    self._hear_rank(events)
                elif self._hosts.get(peer.route) is peer:
                    self._hear_host(peer, events)
            if self._dials:
                self._connect_found()
            now = time.monotonic()
            for host in list(self._hosts.values()):
                if host.channel.amid_payload and now - host.looked > LOOK_SECONDS:
                    self._hear_host(host, selectors.EVENT_READ)  # of a payload that comes slowly no poll tells
            for host in list(self._hosts.values()):
                self._watch(host, now)

    def _watch(self, host: HostLink, now: float) -> None:
        if host.handshake.welcome is None:
            if now > host.deadline:
                self._down(host, "no answer in time")
            return
        verdict = host.keepalive.check(now, host.channel.signs_of_life)
        if verdict == "ask":
            self._forward(host, messages.Ping())
        elif verdict == "gone":
            self._down(host, "it gives no sign of life")

    def _watch_writes(self) -> None:
        for key in list(self._selector.get_map().values()):
            host: HostLink | None = key.data
            channel = self._rank if host is None else host.channel
            pending = channel.wants_write or (host is not None and not host.connected)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if pending else 0)
            if key.events != events:
                self._selector.modify(key.fileobj, events, host)

    # The rank

    def _hear_rank(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._rank.flush()
        if events & selectors.EVENT_READ:
            for frame in self._rank.receive():
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, messages.SlabOffer):
            self._slabs[message.slab] = Slab(frame.take_descriptor(), message.size)
        elif isinstance(message, messages.SlabDrop):
            slab = self._slabs.pop(message.slab, None)
            if slab is not None:
                slab.close()
        elif isinstance(message, messages.Dial):
            self._dial(frame.route, message)
        else:
            host = self._hosts.get(frame.route)
            if host is None:
                return  # it went down while this was on its way; the rank has been sent Down
            if isinstance(message, messages.Down):
                self._down(host, message.reason)
                return
            if isinstance(message, messages.SliceRequest):
                host.requests[message.number] = message
            self._forward(host, message)

    def _forward(self, host: HostLink, message: messages.Message) -> None:
        try:
            host.channel.send(message)
        except ConnectionClosed as error:
            self._down(host, str(error))

    # Hosts

    def _dial(self, route: RouteNumber, dial: messages.Dial) -> None:
        try:
            name, port = split_address(dial.address)
            tls = client_tls(dial.tls_ca, dial.certified) if dial.tls_ca else None
        except FeedError as error:
            self._rank.send(messages.Down(error.message, refused=True), route=route)
            return
        except (OSError, ValueError) as error:
            self._rank.send(messages.Down(f"cannot resolve {dial.address}: {error}"), route=route)
            return
        lookup = self._lookups.get((name, port))
        if lookup is None or lookup.done():
            lookup = self._lookups[name, port] = look_up(name, port)
        self._dials.append(_Dialling(route, dial, tls, lookup, time.monotonic()))
        self._connect_found()

    def _connect_found(self) -> None:
        """Connects to the hosts whose names have been looked up, and gives up those that took too long."""
        waiting, self._dials = self._dials, []
        for dialling in waiting:
            if dialling.lookup.done():
                self._connect(dialling)
            elif time.monotonic() - dialling.begun > CONNECT_SECONDS:
                why = f"cannot resolve {dialling.dial.address}: no answer within {CONNECT_SECONDS:g} s"
                self._rank.send(messages.Down(why), route=dialling.route)
            else:
                self._dials.append(dialling)

    def _connect(self, dialling: _Dialling) -> None:
        route, dial = dialling.route, dialling.dial
        try:
            addresses = dialling.lookup.result()
        except (OSError, ValueError) as error:
            self._rank.send(messages.Down(f"cannot resolve {dial.address}: {error}"), route=route)
            return
        family, kind, protocol, _, target = addresses[self._failures[dial.address] % len(addresses)]
        handshake = ClientHandshake(dial.secret, dial.client, dial.rank, dial.world_size)
        now = time.monotonic()
        host = HostLink(route, dial.address, handshake, now + CONNECT_SECONDS + HANDSHAKE_SECONDS, Keepalive(now))
        try:
            with ExitStack() as undo:
                connection = undo.enter_context(socket.socket(family, kind, protocol))
                connection.setblocking(False)
                configure_tcp(connection)
                code = connection.connect_ex(target)
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
                host.channel = FramedConnection(
                    connection,
                    sink=lambda frame, length: self._place(host, frame, length),
                    handshake=messages.decode_greeting,
                    tls=dialling.tls,
                )
                self._selector.register(host.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, host)
                undo.pop_all()
        except OSError as error:
            self._failures[dial.address] += 1
            self._rank.send(messages.Down((error.strerror or str(error)).lower()), route=route)
            return
        self._hosts[route] = host

    def _hear_host(self, host: HostLink, events: int) -> None:
        host.looked = time.monotonic()
        try:
            if not host.connected:
                host.connected = True
                host.channel.check_connected()
            if events & selectors.EVENT_WRITE:
                host.channel.flush()
            if events & selectors.EVENT_READ:
                for frame in host.channel.receive():
                    self._answer(host, frame)
        except (ConnectionClosed, OSError) as error:  # OSError: no descriptor or memory for what it sends
            self._down(host, str(error) or "connection closed")
        except ProtocolError as error:
            self._down(host, str(error), refused=isinstance(error, (RefusedByServer, TlsRefused, OtherVersion)))

    def _answer(self, host: HostLink, frame: Frame) -> None:
        message = frame.message
        if host.handshake.welcome is None:
            host.handshake.hear(message, host.channel)
            if host.handshake.welcome is not None:
                self._rank.send(host.handshake.welcome, route=host.route)
            return
        if isinstance(message, messages.Pong):
            return
        if isinstance(message, messages.Refused):
            raise refusal(message)
        if isinstance(message, messages.Answer):
            if host.requests.pop(message.request, None) is None:
                raise ProtocolError(f"it answered request {message.request}, which was not asked")
            if isinstance(message, messages.Done):
                self._deliver(host, frame, message)
                return
        self._rank.send(message, route=host.route)

    def _deliver(self, host: HostLink, frame: Frame, done: messages.Done) -> None:
        slab = host.fresh.pop(done.request, None)
        if frame.aborted:
            if slab is not None:
                slab.close()
            self._rank.send(messages.Cancelled(done.request), route=host.route)
            return
        done.fresh = slab is not None
        if slab is None:
            self._rank.send(done, route=host.route)
            return
        done.size = slab.size
        self._rank.send(done, route=host.route, descriptors=[slab.descriptor])
        slab.close()

    def _place(self, host: HostLink, frame: Frame, length: int) -> Sequence[memoryview]:
        """Names the memory for the payload of a Done: in the slab that was asked for, or in a fresh one."""
        done = frame.message
        request = host.requests.get(done.request) if isinstance(done, messages.Done) else None
        if request is None or not isinstance(done, messages.Done):
            raise ProtocolError(f"a payload came with a {type(done).__name__} that was not asked for")
        needed, regions = length, [(0, length)]
        if done.layout:
            if request.layout and done.layout != request.layout:
                raise ProtocolError("the rows that came have another layout than those asked for")
            needed, regions = _place_of(request, done.layout)
        slab = self._slabs.get(request.slab)
        if slab is None or slab.size < needed:
            if request.layout:
                raise ProtocolError("the slab that was asked for is too small")
            slab = host.fresh[done.request] = Slab.create(needed)
        return [slab.memory(offset, size) for offset, size in regions]

    def _down(self, host: HostLink, why: str, *, refused: bool = False) -> None:
        if host.handshake.welcome is None:
            self._failures[host.address] += 1
        del self._hosts[host.route]
        self._selector.unregister(host.channel)
        host.channel.close()
        for slab in host.fresh.values():
            slab.close()
        self._rank.send(messages.Down(why, refused), route=host.route)


def _place_of(request: messages.SliceRequest, encoded: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Returns the bytes that a slab needs for what is asked, and where it goes: (offset, length) in the slab."""
    batch, *others = request.batches
    if others or not request.layout:
        return own_block(request, encoded)
    layout = decode_layout(encoded)
    return layout.size(batch.rows), layout.regions(batch.rows, batch.first, batch.last)


def main() -> int:
    """Entry point of the module. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(options.parent)
    try:
        Receiver(FramedConnection(socket.socket(fileno=options.socket))).run()
    except ConnectionClosed:
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"headrace: the receiver of this rank ends: {no_room(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
