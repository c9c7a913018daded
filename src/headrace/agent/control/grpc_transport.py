"""Carries sealed messages between agents and coordinator, over gRPC with plain bytes.

One bidirectional stream an agent, and a call for each command of an engine. The coordinator answers every report and
sends changed orders at once; nothing polls.
The server identifies an agent by the incarnation in its first valid frame and accepts no other, so a recorded stream
cannot be replayed. A frame with a wrong seal changes nothing: the stream is closed, and that is counted.
Sizes, streams a connection and the wait for the first frame are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Protocol

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # programs are started by exec
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # hosts start in any order, so refused connections are normal

import grpc
import grpc.aio

from headrace.agent.control.control_messages import (
    ENGINE,
    SIZE_LIMIT,
    Direction,
    Link,
    Orders,
    Refused,
    Report,
    decode_command,
    decode_orders,
    decode_report,
    encode,
    open_frame,
)
from headrace.errors import HeadraceError
from headrace.instance.certificates import Certificates
from headrace.instance.lifeline import Command
from headrace.instance.lifeline import encode as encode_command

_log = logging.getLogger(__name__)

METHOD = "/headrace.Control/Talk"
COMMAND_METHOD = "/headrace.Control/Command"
IN_USE = "a program that listens there already? end it, or name another port: engines.local.ports.control"
FIRST_FRAME_SECONDS = 5.0
COMMAND_SECONDS = 10.0
LAST_WRITE_SECONDS = 1.0
_OPTIONS = [
    ("grpc.max_receive_message_length", SIZE_LIMIT),
    ("grpc.max_send_message_length", SIZE_LIMIT),
    ("grpc.enable_http_proxy", 0),
]
_CLIENT_OPTIONS = [
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 16)]


class ControlHandler(Protocol):
    """What the server calls: the shell of the coordinator."""

    def connected(self, host: str) -> None:
        """An agent opened a stream."""

    def disconnected(self, host: str) -> None:
        """An agent's stream broke, and it has no other."""

    def receive(self, host: str, report: Report) -> None:
        """A report came, with a right seal and a new number of the link; it may be one that was sent before."""

    def orders(self, host: str) -> Orders:
        """What that host must do now."""

    def command(self, command: Command) -> None:
        """The job's engine wants something."""


class CommandFrames:
    """Opens the frames in which engines send commands (`send_command`); each is taken once.

    Args:
        secret: the job's secret.
        attempt: which attempt of the job they must be for.
    """

    def __init__(self, secret: bytes, attempt: int) -> None:
        self._secret = secret
        self._attempt = attempt
        self._heard: set[bytes] = set()  # incarnations of engines

    def open(self, data: bytes) -> tuple[Command, bytes]:
        """Returns the command of a frame and the answer to it. Raises Refused."""
        frame = open_frame(data, self._secret, Direction.FROM_ENGINE, self._attempt)
        if frame.incarnation in self._heard:
            raise Refused("a command of the engine was seen before")
        link = Link(self._secret, Direction.TO_ENGINE, ENGINE, frame.incarnation, self._attempt)
        command = decode_command(link.accept(frame))
        self._heard.add(frame.incarnation)
        return command, link.seal(b"")


class ControlServer:
    """The coordinator's port.

    Args:
        secret: the job's secret.
        hosts: names of the job's hosts.
        handler: takes the reports and gives the orders.
        tls: certificates, when connections are under TLS; then an agent must show one of this job too.
        attempt: which attempt of the job this is; agents of another one are refused.

    Attributes:
        refused: frames that were refused.
    """

    def __init__(
        self,
        secret: bytes,
        hosts: frozenset[str],
        handler: ControlHandler,
        tls: Certificates | None = None,
        attempt: int = 1,
    ) -> None:
        self.refused = 0
        self._attempt = attempt
        self._commands = CommandFrames(secret, attempt)
        self._tls = tls
        self._secret = secret
        self._hosts = hosts
        self._handler = handler
        self._links: dict[str, Link] = {}
        self._streams: dict[str, asyncio.Event] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        """Listens on ``ip:port``. Raises HeadraceError if the port is taken, or the certificates cannot be used."""
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        service, _, method = METHOD[1:].partition("/")
        handlers = {
            method: grpc.stream_stream_rpc_method_handler(self._talk),
            COMMAND_METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._command),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        try:
            if self._tls is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise HeadraceError(f"cannot listen on {address}: {error}", hint=IN_USE) from None
        if not bound:
            raise HeadraceError(f"cannot listen on {address}", hint=IN_USE)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Closes the port and all streams."""
        if self._server is not None:
            await self._server.stop(None)

    def wake(self, host: str) -> None:
        """Sends that host its orders now."""
        if host in self._streams:
            self._streams[host].set()

    async def _talk(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        try:
            data = await asyncio.wait_for(context.read(), FIRST_FRAME_SECONDS)
            link = self._welcome(data)
        except (Refused, asyncio.TimeoutError) as error:
            self._refuse(context, error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
            return
        host = link.host
        wake = asyncio.Event()
        self._streams[host] = wake  # when the agent has an older stream, that one is not written to any more
        self._handler.connected(host)
        writer = asyncio.ensure_future(self._write(context, link, wake))
        writer.add_done_callback(_retrieve_exception)  # also when this handler is cancelled before it can
        try:
            await self._read(context, link, wake)
        except Refused as error:
            self._refuse(context, error)
        finally:
            if self._streams.get(host) is wake:
                del self._streams[host]
                self._handler.disconnected(host)
            wake.set()  # gRPC does not take the end of a stream while a write is cancelled: let it finish
            await asyncio.wait({writer}, timeout=LAST_WRITE_SECONDS)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _command(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            command, answer = self._commands.open(data)
        except Refused as error:
            self._refuse(context, error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
        self._handler.command(command)
        return answer

    def _welcome(self, data: object) -> Link:
        if not isinstance(data, bytes):
            raise Refused("closed before the first frame")
        frame = open_frame(data, self._secret, Direction.TO_COORDINATOR, self._attempt)
        if frame.host not in self._hosts:
            raise Refused(f"{frame.host!r} is no host of this job")
        known = self._links.get(frame.host)
        link = known or Link(self._secret, Direction.TO_AGENT, frame.host, frame.incarnation, self._attempt)
        body = link.accept(frame)
        self._links[frame.host] = link
        self._handler.receive(frame.host, decode_report(body))
        return link

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes], link: Link, wake: asyncio.Event) -> None:
        while self._streams.get(link.host) is wake:
            wake.set()
            data = await context.read()
            if not isinstance(data, bytes):
                return
            self._handler.receive(link.host, decode_report(link.open(data)))

    async def _write(self, context: grpc.aio.ServicerContext[bytes, bytes], link: Link, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            if self._streams.get(link.host) is not wake:
                return
            await context.write(link.seal(encode(self._handler.orders(link.host))))

    def _refuse(self, context: grpc.aio.ServicerContext[bytes, bytes], error: Exception) -> None:
        self.refused += 1
        if self.refused <= 20:  # a stranger must not fill the disk
            _log.warning("control port: refused a message from %s: %s", context.peer(), str(error) or "no first frame")


def _retrieve_exception(writer: asyncio.Task[None]) -> None:
    """Ignores a failed write: the stream has ended, and the reading side reports that."""
    if not writer.cancelled():
        writer.exception()


class Connection:
    """One stream of an agent to the coordinator."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes], link: Link) -> None:
        self._call = call
        self._link = link

    async def send(self, report: Report) -> None:
        """Sends one report. Raises ConnectionError."""
        try:
            await self._call.write(self._link.seal(encode(report)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionError(_reason(error)) from None

    async def receive(self) -> Orders:
        """Waits for orders. Raises ConnectionError when the stream has ended, Refused when they are not genuine."""
        try:
            data = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionError(_reason(error)) from None
        if not isinstance(data, bytes):
            raise ConnectionError("the coordinator closed the stream")
        return decode_orders(self._link.open(data))


@contextlib.asynccontextmanager
async def connect(address: str, link: Link, tls: Certificates | None = None) -> AsyncIterator[Connection]:
    """Opens a stream to the coordinator at ``ip:port``. Nothing is known to work until `receive` has returned.

    Args:
        address: of the coordinator.
        link: this agent's end of the connection.
        tls: certificates, when connections are under TLS.
    """
    async with _channel(address, tls) as channel:
        call = channel.stream_stream(METHOD)(wait_for_ready=True)
        try:
            yield Connection(call, link)
        finally:
            call.cancel()


async def send_command(
    address: str, secret: bytes, command: Command, attempt: int, tls: Certificates | None = None
) -> None:
    """Has the coordinator at ``ip:port`` take a command of the engine.

    Args:
        address: of the coordinator.
        secret: the job's secret.
        command: what is wanted.
        attempt: of which attempt of the job.
        tls: certificates, when connections are under TLS.

    Raises:
        ConnectionError: it was not reached in time, or has refused the command.
        Refused: the answer is not the coordinator's.
    """
    link = Link(secret, Direction.FROM_ENGINE, ENGINE, os.urandom(16), attempt)
    async with _channel(address, tls) as channel:
        try:
            call = channel.unary_unary(COMMAND_METHOD)
            answer = await call(link.seal(encode_command(command)), timeout=COMMAND_SECONDS, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(_reason(error)) from None
    link.open(answer)


def _channel(address: str, tls: Certificates | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=_CLIENT_OPTIONS)


def server_credentials(tls: Certificates) -> grpc.ServerCredentials:
    """Returns what a port needs that only hosts of the job may use. Raises ValueError."""
    return grpc.ssl_server_credentials([(tls.key, tls.certificate)], tls.ca, require_client_auth=True)


def channel_credentials(tls: Certificates) -> grpc.ChannelCredentials:
    """Returns what a connection to such a port needs."""
    return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error)
