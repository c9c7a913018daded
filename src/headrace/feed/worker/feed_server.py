"""The feed server of one host: one TCP port and one abstract Unix socket, with executors behind them.

A client is a training rank (over the Unix socket, on this host) or its receiver process (over TCP). Every connection
is authenticated before anything else is read from it: until then a message may hold 4 KiB and must come within five
seconds, and of too many silent connections the oldest is closed. What clients ask goes to the `work_queue`.

The server keeps no state that matters: everything can be asked again, here or elsewhere. Its log never stops it, and
never fills the disk:

* a log that cannot be written (a full disk, a closed pipe) ends nothing: the line is lost, the server goes on;
* strangers cannot fill the disk: what connections did is logged once each, up to `BURST` lines and `RATE` a second
  after that; what is left out is counted, and logged in one line;
* a peer's words cannot begin a line of their own, nor make one longer than `LONGEST`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace._version import __version__
from headrace.errors import FeedError, ProtocolError
from headrace.feed.batch.slab import Slab
from headrace.feed.descriptors import FULL, no_room
from headrace.feed.identifiers import positive, whole
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.worker_meter import WorkMeter
from headrace.feed.pipelines.purity import numerics
from headrace.feed.wire import endpoints, messages
from headrace.feed.wire.endpoints import split_address
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import Frame
from headrace.feed.wire.messages import ClientStatus, ExecutorStatus
from headrace.feed.wire.transport import TCP_INFO_BYTES, ServerTls, configure_tcp, has_vanished, socket_address
from headrace.feed.worker.clients import ClientConnection
from headrace.feed.worker.executor_pool import ExecutorPool, ExecutorProcess
from headrace.feed.worker.work_queue import WorkQueue

BURST = 300
RATE = 1.0  # lines a second: some 10 MB a day under a flood that never ends
LONGEST = 500


class ServerLog:
    """See the module.

    Args:
        host: name of this host.
        descriptor: where lines go; stderr by default.
        clock: monotonic seconds.
    """

    def __init__(self, host: str, descriptor: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._descriptor = descriptor
        self._clock = clock
        self._allowed = float(BURST)
        self._seen = clock()
        self._left_out = 0

    def tell(self, text: str) -> None:
        """Writes a line."""
        clean = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:LONGEST])
        line = f"feed server {self._host}: {clean}{'...' if len(text) > LONGEST else ''}\n"
        try:
            os.write(self._descriptor, line.encode(errors="backslashreplace"))
        except OSError:
            return  # there is no other place to report it, and serving is more important

    def tell_of_connection(self, text: str) -> None:
        """Writes a line that a peer has caused, or counts it when there are too many."""
        self.catch_up()
        if self._allowed >= 1:
            self._allowed -= 1
            self.tell(text)
        else:
            self._left_out += 1

    def catch_up(self) -> None:
        """Logs how many lines were left out, when there is room for that again. Call it now and then."""
        now = self._clock()
        self._allowed = min(float(BURST), self._allowed + RATE * (now - self._seen))
        self._seen = now
        if self._left_out and self._allowed >= 1:
            self._allowed -= 1
            self.tell(f"{self._left_out} more lines about connections were left out")
            self._left_out = 0


MAX_PENDING = 64
WATCH_SECONDS = 1.0
MEMORY = 1 << 30
MAX_NICE = 19
TLS_SECONDS = 3.0  # a TLS client speaks at once; one without TLS waits for the server's first message
NEEDS_TLS = "it serves TLS only; give tls_ca= or HEADRACE_FEED_TLS_CA, the file of the CA that signed its certificate"


@dataclass(frozen=True)
class ServeOptions:
    """How a feed server is run.

    Attributes:
        bind: ``ip:port``; port 0 for one that is free.
        executors: worker processes.
        secret_file: file with the secret, hex.
        code: directories of the pipelines' code.
        nice: niceness of the executors.
        host: name of this host in messages.
        unix: abstract Unix socket for clients on this host, ``@`` first; empty for none.
        status_fd: descriptor for status lines.
        memory: limit of the staging slabs, bytes.
        metrics: ``ip:port`` or ``port`` (of loopback) for Prometheus; empty for none.
        tls_cert, tls_key: certificate and private key, PEM; with them TCP connections are TLS.
        advertised: ``ip:port`` that clients dial where that is another one than the server's, through a forwarded port.

    Raises:
        TypeError, ValueError: a number out of range, or a name that is none of an abstract socket.
    """

    bind: str
    executors: int
    secret_file: Path
    code: tuple[Path, ...] = ()
    nice: int = 0
    host: str = ""
    unix: str = ""
    status_fd: int | None = None
    memory: int = MEMORY
    metrics: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    advertised: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive("executors", self.executors)
        positive("memory", self.memory)
        if not 0 <= whole("nice", self.nice) <= MAX_NICE:
            raise ValueError(f"nice must be a number from 0 to {MAX_NICE}, got {self.nice}")
        if self.unix and not self.unix.startswith("@"):
            raise ValueError(f"unix must be the name of an abstract socket, @ first, got {self.unix!r}")


class FeedServer:
    """See the module.

    Args:
        listeners: listening sockets, TCP and Unix.
        options: how it is run.
        secret: the job's secret.
        pool: the executors.
        watch: called once a second with what the server is doing, or None.
        tls: for the connections over TCP, or None.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        options: ServeOptions,
        secret: bytes,
        pool: ExecutorPool,
        watch: Callable[[messages.Status], None] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._secret, self._advertised = secret, [_advertised(address) for address in options.advertised]
        self._pool = pool
        self._host = options.host
        self._log = ServerLog(options.host)
        self._status = options.status_fd
        if self._status is not None:
            os.set_blocking(self._status, False)  # who does not read it holds nobody up
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # see `_turn_away`
        self._memory = options.memory
        self._watch, self._watch_due, self._look_due = watch, 0.0, 0.0
        self._tls = tls
        self._ready: Callable[[], None] | None = None
        self._work = WorkMeter(MetricFile(), "", pool.size, pool.pids)
        self._work_queue = WorkQueue(pool, self._tell, options.memory, self._work)
        self._clients: list[ClientConnection] = []
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serves without end. Raises ExecutorsLost when the executors die faster than they may be replaced.

        Args:
            ready: called when all executors have started.
        """
        self._ready = ready
        try:
            self._loop()
        finally:
            self._work.flush()
            os.close(self._spare)

    # The loop

    def _loop(self) -> None:
        while True:
            self._work_queue.dispatch()
            self._sync()
            for key, events in self._selector.select(timeout=1.0):
                self._serve(key.data, events)
            self._expire()
            self._end_vanished()
            self._work_queue.end_stuck()
            self._work_queue.let_go()
            self._work.tick(len(self._pool.executors))
            if self._watch is not None and time.monotonic() >= self._watch_due:
                self._watch_due = time.monotonic() + WATCH_SECONDS
                self._watch(self.status())

    def _sync(self) -> None:
        """Registers with the selector what should be listened to, and for what."""
        self._forget_closed()
        owners: dict[FramedConnection, object] = {client.channel: client for client in self._clients}
        owners |= {executor.channel: executor for executor in self._pool.executors.values() if not executor.dead}
        owners[self._pool.forkserver] = self._pool
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.fileobj, FramedConnection) and key.fileobj not in owners:
                self._selector.unregister(key.fileobj)
        for channel, owner in owners.items():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            if channel not in self._selector.get_map():
                self._selector.register(channel, events, owner)
            elif self._selector.get_key(channel).events != events:
                self._selector.modify(channel, events, owner)

    def _forget_closed(self) -> None:
        for client in [client for client in self._clients if client.closed]:
            self._clients.remove(client)
            self._work.links.end(client.channel)
            self._work_queue.client_gone(client)

    def _serve(self, owner: object, events: int) -> None:
        if isinstance(owner, socket.socket):
            self._accept(owner)
        elif isinstance(owner, ExecutorPool):
            self._work_queue.hear_forkserver(self._read(owner.forkserver, events))
        elif isinstance(owner, ExecutorProcess) and not owner.dead:
            try:
                for frame in self._read(owner.channel, events):
                    self._work_queue.hear(owner, frame)
            except (ConnectionClosed, ProtocolError, OSError) as error:
                if isinstance(error, OSError):  # no memory or descriptor for what it has made
                    self._log.tell(f"executor {owner.number} is ended: {error}")
                self._pool.discard(owner)  # the fork server reports its end
        elif isinstance(owner, ClientConnection) and not owner.closed:
            self._hear_client(owner, events)

    def _read(self, channel: FramedConnection, events: int) -> list[Frame]:
        if events & selectors.EVENT_WRITE:
            channel.flush()
        return channel.receive() if events & selectors.EVENT_READ else []

    def _tell(self, **status: object) -> None:
        if status.get("event") == "ready":
            if self._ready is not None:
                self._ready()
        else:
            self._log.tell(", ".join(f"{key}: {value}" for key, value in status.items()))
        if self._status is not None:
            try:
                os.write(self._status, json.dumps(status).encode() + b"\n")
            except BlockingIOError:
                self._log.tell("nobody reads the status lines: one is lost")
            except OSError:
                self._status = None  # nobody will

    def status(self, asker: ClientConnection | None = None) -> messages.Status:
        """Returns what the server is doing, to `asker`, who is left out."""
        now, tally = time.monotonic(), self._work_queue.tally
        slices_per_second, bytes_per_second = tally.rates(now)
        return messages.Status(
            host=self._host,
            version=__version__,
            uptime=now - tally.begun,
            executors=[
                ExecutorStatus(
                    executor.number, executor.pid, bool(executor.requests), executor.slices, executor.restarts
                )
                for executor in self._pool.executors.values()
            ],
            clients=[
                ClientStatus(client.name, client.hello.rank, client.hello.world_size, client.local)
                for client in self._clients
                if client.hello is not None and not client.closed and client is not asker
            ],
            queue=self._work_queue.queued,
            staging_bytes=self._work_queue.staging_bytes,
            staging_limit=self._memory,
            slices=tally.slices,
            bytes=tally.bytes,
            cpu_seconds=tally.cpu_seconds,
            slices_per_second=slices_per_second,
            bytes_per_second=bytes_per_second,
            numerics=self._work_queue.numerics or numerics(),
            jobs=self._work_queue.jobs(),
        )

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MAX_PENDING):
            try:
                connection, address = listener.accept()
            except OSError as error:
                if error.errno in FULL:
                    self._turn_away(listener, no_room(error))
                return  # no further connection, or the peer has gone again
            try:
                self._welcome(connection, address)
            except OSError as error:
                connection.close()
                self._log.tell_of_connection(f"a connection is closed: {error}")

    def _turn_away(self, listener: socket.socket, why: FeedError) -> None:
        """Closes a connection that there is no descriptor for: one that waits would wake the loop again and again."""
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._log.tell_of_connection(f"a connection is closed: {why.message}")

    def _welcome(self, connection: socket.socket, address: Any) -> None:
        local = connection.family == socket.AF_UNIX
        if not local:
            configure_tcp(connection)
        pending = [client for client in self._clients if client.hello is None and not client.closed]
        if len(pending) >= MAX_PENDING:
            self._close(min(pending, key=lambda client: client.deadline), "too many connections that do not speak")
        channel = FramedConnection(connection, handshake=messages.decode_hello, tls=None if local else self._tls)
        name = "a local process" if local else f"{address[0]}:{address[1]}"
        client = ClientConnection(
            channel, name, local, time.monotonic() + endpoints.HANDSHAKE_SECONDS, endpoints.challenge()
        )
        self._clients.append(client)
        client.send(client.challenge)

    def _expire(self) -> None:
        self._log.catch_up()
        now = time.monotonic()
        for client in self._clients:
            if client.hello is not None or client.closed:
                continue
            if now > client.deadline:
                self._close(client, "no handshake in time")
            elif not client.channel.stream.ready and now > client.deadline - endpoints.HANDSHAKE_SECONDS + TLS_SECONDS:
                client.channel.refuse_plain(NEEDS_TLS)
                self._close(client, "it does not speak TLS")

    def _end_vanished(self) -> None:
        """Closes the connections of clients whose hosts have vanished. A frozen client keeps its own."""
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + WATCH_SECONDS
        for client in self._clients:
            if not client.local and not client.closed and has_vanished(client.channel.tcp_info(TCP_INFO_BYTES)):
                self._close(client, "its host has vanished")

    def _close(self, client: ClientConnection, why: str = "") -> None:
        if why:
            self._log.tell_of_connection(f"connection of {client.name} closed: {why}")
        client.closed = True
        client.channel.close()

    def _hear_client(self, client: ClientConnection, events: int) -> None:
        frames: deque[Frame] = deque()
        try:
            frames.extend(self._read(client.channel, events))
            while frames and not client.closed:
                self._take(client, frames[0])
                frames.popleft().discard()
        except ConnectionClosed:
            self._close(client)
        except (ProtocolError, msgspec.DecodeError, OSError) as error:  # OSError: no memory or descriptor for its slabs
            self._close(client, str(error))
        for frame in frames:
            frame.discard()

    def _take(self, client: ClientConnection, frame: Frame) -> None:
        message = frame.message
        if client.hello is None:
            self._greet(client, message)
        elif isinstance(message, messages.SliceRequest):
            self._work_queue.request(client, message)
        elif isinstance(message, messages.Cancel):
            self._work_queue.cancel(client, message)
        elif isinstance(message, messages.Open):
            self._forget_closed()  # what only they had open is not shared with this one
            self._work_queue.open(client, message)
        elif isinstance(message, messages.Ping):
            client.send(messages.Pong())
        elif isinstance(message, messages.StatusRequest):
            client.send(self.status(client))
        elif isinstance(message, messages.SlabOffer) and client.local:
            self._work_queue.offer(client, message.slab, Slab(frame.take_descriptor(), message.size))
        elif isinstance(message, messages.SlabDrop):
            self._work_queue.drop(client, message.slab)
        else:
            raise ProtocolError(f"an unexpected {type(message).__name__}")

    def _greet(self, client: ClientConnection, message: messages.Message) -> None:
        if not isinstance(message, messages.Hello):
            raise ProtocolError("it spoke before it proved that it holds the secret")
        secret = endpoints.bind(self._secret, client.channel.stream.binding)
        reached = () if client.channel.stream.binding else (client.channel.stream.addresses[0], *self._advertised)
        why = endpoints.check_answer(secret, client.challenge, message, reached)
        if why:
            client.send(messages.Refused(why))
            self._close(client, why)
            return
        client.hello = message
        client.name = f"{message.client} ({client.name})"
        if not client.local:
            self._work.links.begin(client.channel)
        client.send(endpoints.welcome(secret, client.challenge, message, self._host, self._pool.size))
        keys = endpoints.session_keys(secret, client.challenge, message)
        client.channel.trust(keys.server, keys.client)


def _advertised(address: str) -> str:
    try:
        return socket_address(split_address(address))
    except ValueError:
        raise FeedError(f"cannot advertise {address}: its host is no IP address", "e.g. 10.0.0.5:7070") from None
