"""Carries the messages of a run between its processes: frames over TCP, always under TLS.

The leader has one port, and the first frame of a connection says what it is. An agent has one, over which reports and
orders travel: the coordinator answers every report and sends changed orders at once. The supervisor of another host has
one over which it reports and is answered. A command of an engine has one for itself.

Both ends show a certificate of this run, or there is no connection: then nothing of a stranger is read, and nobody can
listen, change or repeat. A client takes the leader's certificate alone. The server knows a host by its certificate; an
agent's first frame says its attempt, because agents of another one may still run on a host that was cut off, and 16
random bytes of its process, because a host has one agent in an attempt, or one after another if it comes and goes. Who
is refused is closed and counted, and changes nothing. The size of a frame and the time for a handshake are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import msgspec

from headrace.agent.control.control_messages import (
    SIZE_LIMIT,
    SUPERVISOR_LIMIT,
    Asking,
    Joining,
    Orders,
    Refused,
    Report,
    Supervising,
    decode_opening,
    decode_report,
    encode,
)
from headrace.errors import HeadraceError
from headrace.instance.launch_plan import Certificates
from headrace.instance.lifeline import Command

_log = logging.getLogger(__name__)

IN_USE = "a program that listens there already? end it, or name another port: engines.local.ports.control"
COMMAND_SECONDS = 10.0
HANDSHAKE_SECONDS = 5.0
UNHEARD_SECONDS = 5.0  # what was sent to the leader's machine and did not arrive there: the connection is broken
CLOSE_SECONDS = 1.0  # for a connection that is closed to have ended
ANSWER_SECONDS = 3.0  # for answers to what supervisors have said when the port is closed
BACKLOG = 1024
CLOSED = "the other end closed the connection"
_LENGTH = 4  # bytes of a frame's length, before it
_TOLD = 20  # refused connections that are logged


@functools.lru_cache(4)
def tls_context(tls: Certificates, server: bool = False) -> ssl.SSLContext:
    """Returns what a port that only hosts of the run may use needs, or its client. Raises ValueError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if server:
        context.num_tickets = 0  # nobody resumes a session
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=tls.ca.decode("ascii"))
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:  # Python reads it by a name only
        file.write(tls.certificate + tls.key)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class Stream:
    """A connection that carries frames.

    Attributes:
        limit: bytes of a frame that may come.
        peer: name of the host whose certificate the other end has shown.
        address: of the other end, for a log.
        feed_generation: of an agent's, that of the list of feed servers that was sent over it last.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = SIZE_LIMIT) -> None:
        self._reader = reader
        self._writer = writer
        self.limit = limit
        self.feed_generation = -1
        names = (writer.get_extra_info("peercert") or {}).get("subjectAltName", ())
        self.peer = str(next((name for kind, name in names if kind == "DNS"), ""))
        self.address = str(writer.get_extra_info("peername"))

    async def send(self, data: bytes) -> None:
        """Sends one frame. Raises ConnectionError."""
        try:
            self._writer.write(len(data).to_bytes(_LENGTH, "big") + data)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def offer(self, data: bytes) -> bool:
        """Sends one frame, unless the other end does not take what was sent before. Returns whether it was sent."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(len(data).to_bytes(_LENGTH, "big") + data)
        return True

    async def receive(self) -> bytes:
        """Waits for a frame. Raises ConnectionError when there comes none, Refused when it is too long."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            if size > self.limit:
                raise Refused(f"a message of {size} bytes; the limit is {self.limit}")
            return await self._reader.readexactly(size)
        except (OSError, EOFError) as error:
            raise ConnectionError(str(error) if isinstance(error, OSError) else CLOSED) from None

    async def close(self) -> None:
        """Closes the connection when everything was sent, and waits until it is closed."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_SECONDS)
        except asyncio.TimeoutError:
            self.abort()
        except OSError:
            pass  # it is closed: it was broken before

    def abort(self) -> None:
        """Closes the connection now."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def open_stream(
    address: str, leader: str, tls: Certificates, seconds: float = HANDSHAKE_SECONDS, limit: int = SIZE_LIMIT
) -> AsyncIterator[Stream]:
    """Connects to ``ip:port``, where the host `leader` and no other must answer. Raises ConnectionError."""
    ip, _, port = address.rpartition(":")
    opening = asyncio.open_connection(ip, int(port), ssl=tls_context(tls), server_hostname=leader)
    try:
        reader, writer = await asyncio.wait_for(opening, seconds)
        connected = writer.get_extra_info("socket")
        if connected is None:  # it was closed since
            raise ConnectionError(CLOSED)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_SECONDS * 1000))
        stream = Stream(reader, writer, limit)
    except asyncio.TimeoutError:
        raise ConnectionError(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise ConnectionError(str(error)) from None
    try:
        yield stream
    finally:
        stream.abort()


class Agents(Protocol):
    """What the server calls in its thread for the agents of an attempt: the shell of the coordinator."""

    def connected(self, host: str) -> None:
        """An agent opened a stream."""

    def disconnected(self, host: str) -> None:
        """An agent's stream broke, and it has no other."""

    def receive(self, host: str, report: Report) -> None:
        """A report came; it may be one that was sent before."""

    def orders(self, host: str) -> Orders:
        """All that is wanted from a host now."""


@dataclass(eq=False)
class _Attempt:
    number: int
    agents: Agents
    processes: dict[str, bytes] = field(default_factory=dict)  # of each host's agent
    replaced: set[bytes] = field(default_factory=set)  # processes of agents that count no more
    streams: dict[str, Stream] = field(default_factory=dict)
    woken: set[str] = field(default_factory=set)  # hosts to which orders go at the end of this turn of the loop


class ControlServer:
    """The end of the leader, with a thread of its own: one port for all that speak to it, in all attempts of a run.

    Args:
        tls: certificates of the leader's host.
        command: takes what an engine wants; called in the thread.
        answer: answers a report of another host's supervisor, in its time, in every part of a run; raises Refused,
            ConnectionError. Without it no other host has a supervisor.

    Attributes:
        refused: connections that were refused, or ended because of what came.
    """

    def __init__(
        self,
        tls: Certificates,
        command: Callable[[Command], None],
        answer: Callable[[str, bytes], Awaitable[bytes]] | None = None,
    ) -> None:
        self.refused = 0
        self._tls = tls
        self._command = command
        self._answer_of = answer
        self._attempt: _Attempt | None = None
        self._answering: set[Stream] = set()
        self._streams: dict[asyncio.Task[None], Stream] = {}  # by what serves them
        self._thread: threading.Thread | None = None

    def start(self, address: str | socket.socket) -> None:
        """Listens on ``ip:port``, or takes over a socket that listens.

        Raises:
            HeadraceError: the port is taken, or the certificates cannot be used.
        """
        opened: Future[None] = Future()

        def serve() -> None:
            try:
                asyncio.run(self._run(address, opened))
            except BaseException as error:
                if opened.done():
                    raise
                opened.set_exception(error)

        thread = threading.Thread(target=serve, name="headrace-port", daemon=True)
        thread.start()
        opened.result()
        self._thread = thread

    async def _run(self, address: str | socket.socket, opened: Future[None]) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        port = await self._listen(address)
        opened.set_result(None)
        await self._closing.wait()
        port.close()
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._answering and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for stream in self._streams.values():
            stream.abort()
        if self._streams:
            await asyncio.wait(set(self._streams), timeout=CLOSE_SECONDS)

    async def _listen(self, address: str | socket.socket) -> asyncio.Server:
        try:
            tls = tls_context(self._tls, server=True)
            if isinstance(address, str):
                ip, _, port = address.rpartition(":")
                listener = socket.create_server((ip, int(port)), backlog=BACKLOG)
            else:
                listener = address
            return await asyncio.start_server(
                self._accept,
                sock=listener,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, ValueError) as error:
            raise HeadraceError(f"cannot listen on {address}: {error}", hint=IN_USE) from None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream, task = Stream(reader, writer), cast("asyncio.Task[None]", asyncio.current_task())
        self._streams[task] = stream
        task.add_done_callback(lambda _: self._streams.pop(task))
        try:
            await self._serve(stream)
        except Refused as error:
            self.refused += 1
            if self.refused <= _TOLD:  # nobody must fill the disk
                _log.warning("refused a message from %s (%s): %s", stream.peer, stream.address, error)
        except ConnectionError:
            pass  # whoever waits for the host sees that it is not connected
        finally:
            await stream.close()  # before that it must not be forgotten, or nobody closes what its peer leaves open

    def close(self) -> None:
        """Closes the port. A supervisor that has reported by now is answered: it may be that all of it has come."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._thread = None

    def begin(self, number: int, agents: Agents, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Begins an attempt: its agents may connect.

        Args:
            number: of the attempt, from 1.
            agents: what they speak to.
            work: runs in the thread of the server; with its end the attempt is over.

        Returns:
            The end of the work.
        """
        self._attempt = attempt = _Attempt(number, agents)

        async def attempted() -> None:
            try:
                await work
            finally:
                self._attempt = None
                for stream in attempt.streams.values():
                    stream.abort()

        return asyncio.run_coroutine_threadsafe(attempted(), self._loop)

    def wake(self, hosts: Collection[str]) -> None:
        """Sends the agents of these hosts their orders, when what has come by now is read. For any thread."""
        self._for_agents(self._wake, hosts)

    def forget(self, hosts: Collection[str]) -> None:
        """The agents that these hosts have had count no more: another one of each may come. For any thread."""
        self._for_agents(self._forget, hosts)

    def _for_agents(self, act: Callable[[_Attempt, Collection[str]], None], hosts: Collection[str]) -> None:
        attempt = self._attempt
        if attempt is None or not hosts:
            return
        if threading.current_thread() is self._thread:
            act(attempt, hosts)
        else:
            self._loop.call_soon_threadsafe(act, attempt, hosts)

    def _forget(self, attempt: _Attempt, hosts: Collection[str]) -> None:
        for host in hosts:
            if (process := attempt.processes.pop(host, None)) is not None:
                attempt.replaced.add(process)
            if (stream := attempt.streams.pop(host, None)) is not None:
                stream.abort()

    def _wake(self, attempt: _Attempt, hosts: Collection[str]) -> None:
        if not attempt.woken:
            self._loop.call_soon(self._send_orders, attempt)
        attempt.woken.update(hosts)

    def _send_orders(self, attempt: _Attempt) -> None:
        woken, attempt.woken = attempt.woken, set()
        for host in woken & attempt.streams.keys():
            stream, orders = attempt.streams[host], attempt.agents.orders(host)
            if orders.feed_generation == stream.feed_generation:
                orders = msgspec.structs.replace(orders, feed=())
            if stream.offer(encode(orders)):  # else the answer to its next report has them
                stream.feed_generation = orders.feed_generation

    async def _serve(self, stream: Stream) -> None:
        match decode_opening(await stream.receive()):
            case Joining(number, process):
                await self._talk(self._joined(stream.peer, number, process), stream)
            case Asking(command):
                self._command(command)
                await stream.send(b"")
            case Supervising():
                await self._answer(stream)

    def _joined(self, host: str, number: int, process: bytes) -> _Attempt:
        attempt = self._attempt
        if attempt is None:
            raise ConnectionError("no attempt runs")  # the agent tries again
        if number != attempt.number:
            raise Refused(f"{host} is of attempt {number}, and this is attempt {attempt.number}")
        if process in attempt.replaced or attempt.processes.setdefault(host, process) != process:
            raise Refused(f"another process than the agent of {host}")
        return attempt

    async def _talk(self, attempt: _Attempt, stream: Stream) -> None:
        host = stream.peer
        attempt.streams[host] = stream  # when the agent has an older stream, that one is not written to any more
        attempt.agents.connected(host)
        try:
            while True:
                report = decode_report(await stream.receive())
                if attempt.streams.get(host) is not stream:
                    return
                attempt.agents.receive(host, report)
                self._wake(attempt, (host,))
        finally:
            if attempt.streams.get(host) is stream:
                del attempt.streams[host]
                attempt.agents.disconnected(host)
            stream.abort()

    async def _answer(self, stream: Stream) -> None:
        if self._answer_of is None:
            raise Refused("a supervisor, and no other host has one")
        stream.limit = SUPERVISOR_LIMIT
        while not self._closing.is_set():
            report = await stream.receive()
            self._answering.add(stream)
            try:
                await stream.send(await self._answer_of(stream.peer, report))
            finally:
                self._answering.discard(stream)


async def send_command(address: str, leader: str, tls: Certificates, command: Command) -> None:
    """Has the leader of a run take a command of the engine.

    Args:
        address: ``ip:port`` of its port.
        leader: name of its host.
        tls: certificates of any host of the job.
        command: what is wanted.

    Raises:
        ConnectionError: it was not reached in time, or has refused the command.
    """
    async with open_stream(address, leader, tls) as stream:
        await stream.send(encode(Asking(command)))
        try:
            await asyncio.wait_for(stream.receive(), COMMAND_SECONDS)
        except asyncio.TimeoutError:
            raise ConnectionError(f"no answer within {COMMAND_SECONDS:g} s") from None
        except ConnectionError as error:
            raise ConnectionError(f"refused: {error}") from None
