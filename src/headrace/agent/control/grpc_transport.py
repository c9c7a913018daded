"""Carries the messages between agents and coordinator, over gRPC with plain bytes, always under TLS.

One bidirectional stream an agent, and a call for each command of an engine. The coordinator answers every report and
sends changed orders at once; nothing polls.

Both ends show a certificate of this run, or there is no connection: then nothing of a stranger is read, and nobody can
listen, change or repeat. A client takes the leader's certificate alone. The server knows an agent's host by its
certificate; with each call comes its attempt, because agents of another one may still run on a host that was cut off,
and 16 random bytes of its process, because a host has one agent in an attempt. What is refused changes nothing, and is
counted. Sizes, streams a connection and the time for a handshake are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # programs are started by exec
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # hosts start in any order, so refused connections are normal

import grpc
import grpc.aio

from headrace.agent.control.control_messages import (
    SIZE_LIMIT,
    Orders,
    Refused,
    Report,
    decode_command,
    decode_orders,
    decode_report,
    encode,
)
from headrace.errors import HeadraceError
from headrace.instance.certificates import Certificates
from headrace.instance.lifeline import Command
from headrace.instance.lifeline import encode as encode_command

_log = logging.getLogger(__name__)

METHOD = "/headrace.Control/Talk"
COMMAND_METHOD = "/headrace.Control/Command"
IN_USE = "a program that listens there already? end it, or name another port: engines.local.ports.control"
ATTEMPT, PROCESS = "headrace-attempt", "headrace-process-bin"  # what comes with a call
COMMAND_SECONDS = 10.0
LAST_WRITE_SECONDS = 1.0
CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS = [("grpc.so_reuseport", 0), ("grpc.server_handshake_timeout_ms", 5000)]
_SIZES = [
    ("grpc.max_receive_message_length", SIZE_LIMIT),
    ("grpc.max_send_message_length", SIZE_LIMIT),
]


class ControlHandler(Protocol):
    """What the server calls: the shell of the coordinator."""

    def connected(self, host: str) -> None:
        """An agent opened a stream."""

    def disconnected(self, host: str) -> None:
        """An agent's stream broke, and it has no other."""

    def receive(self, host: str, report: Report) -> None:
        """A report came; it may be one that was sent before."""

    def orders(self, host: str) -> Orders:
        """What that host must do now."""

    def command(self, command: Command) -> None:
        """The job's engine wants something."""


class ControlServer:
    """The coordinator's port.

    Args:
        handler: takes the reports and gives the orders.
        tls: the leader's certificates.
        attempt: which attempt of the job this is; agents of another one are refused.

    Attributes:
        refused: calls and messages that were refused.
    """

    def __init__(self, handler: ControlHandler, tls: Certificates, attempt: int = 1) -> None:
        self.refused = 0
        self._attempt = attempt
        self._tls = tls
        self._handler = handler
        self._agents: dict[str, object] = {}  # the process of each
        self._streams: dict[str, asyncio.Event] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        """Listens on ``ip:port``. Raises HeadraceError if the port is taken, or the certificates cannot be used."""
        server = grpc.aio.server(options=[*_SIZES, *SERVER_OPTIONS, ("grpc.max_concurrent_streams", 16)])
        service, _, method = METHOD[1:].partition("/")
        handlers = {
            method: grpc.stream_stream_rpc_method_handler(self._talk),
            COMMAND_METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._command),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        try:
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
            host = self._agent_of(certified_host(context), dict(context.invocation_metadata() or ()))
        except Refused as error:
            self._count(context, error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "refused")  # raises
        wake = asyncio.Event()
        self._streams[host] = wake  # when the agent has an older stream, that one is not written to any more
        self._handler.connected(host)
        writer = asyncio.ensure_future(self._write(context, host, wake))
        writer.add_done_callback(_retrieve_exception)  # also when this handler is cancelled before it can
        try:
            await self._read(context, host, wake)
        except Refused as error:
            self._count(context, error)
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
            self._check_attempt("a command", dict(context.invocation_metadata() or ()))
            command = decode_command(data)
        except Refused as error:
            self._count(context, error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "refused")  # raises
        self._handler.command(command)
        return b""

    def _agent_of(self, host: str, metadata: dict[str, object]) -> str:
        """Returns the host whose agent calls. Raises Refused."""
        self._check_attempt(host, metadata)
        process = metadata.get(PROCESS)
        if self._agents.setdefault(host, process) != process:
            raise Refused(f"another process than the agent of {host}")
        return host

    def _check_attempt(self, who: str, metadata: dict[str, object]) -> None:
        if metadata.get(ATTEMPT) != str(self._attempt):
            raise Refused(f"{who} is of attempt {metadata.get(ATTEMPT)}, and this is attempt {self._attempt}")

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes], host: str, wake: asyncio.Event) -> None:
        while True:
            data = await context.read()
            if not isinstance(data, bytes) or self._streams.get(host) is not wake:
                return
            self._handler.receive(host, decode_report(data))
            wake.set()

    async def _write(self, context: grpc.aio.ServicerContext[bytes, bytes], host: str, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            if self._streams.get(host) is not wake:
                return
            await context.write(encode(self._handler.orders(host)))

    def _count(self, context: grpc.aio.ServicerContext[bytes, bytes], error: Refused) -> None:
        self.refused += 1
        if self.refused <= 20:  # nobody must fill the disk
            _log.warning("control port: refused a message from %s: %s", context.peer(), str(error))


def _retrieve_exception(writer: asyncio.Task[None]) -> None:
    """Ignores a failed write: the stream has ended, and the reading side reports that."""
    if not writer.cancelled():
        writer.exception()


class Connection:
    """One stream of an agent to the coordinator."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._call = call

    async def send(self, report: Report) -> None:
        """Sends one report. Raises ConnectionError."""
        try:
            await self._call.write(encode(report))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionError(_reason(error)) from None

    async def receive(self) -> Orders:
        """Waits for orders. Raises ConnectionError when the stream has ended, Refused when they cannot be read."""
        try:
            data = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionError(_reason(error)) from None
        if not isinstance(data, bytes):
            raise ConnectionError("the coordinator closed the stream")
        return decode_orders(data)


@contextlib.asynccontextmanager
async def connect(
    address: str, leader: str, tls: Certificates, process: bytes, attempt: int = 1
) -> AsyncIterator[Connection]:
    """Opens a stream to the coordinator at ``ip:port``. Nothing is known to work until `receive` has returned.

    Args:
        address: of the coordinator.
        leader: name of its host.
        tls: certificates of this agent's host.
        process: random bytes of this agent's process.
        attempt: of which attempt of the job it is.
    """
    async with _channel(address, leader, tls) as channel:
        metadata = ((ATTEMPT, str(attempt)), (PROCESS, process))
        call = channel.stream_stream(METHOD)(metadata=metadata, wait_for_ready=True)
        try:
            yield Connection(call)
        finally:
            call.cancel()


async def send_command(address: str, leader: str, tls: Certificates, command: Command, attempt: int = 1) -> None:
    """Has the coordinator, or the leader's supervisor, take a command of the engine.

    Args:
        address: ``ip:port``.
        leader: name of its host.
        tls: certificates of any host of the job.
        command: what is wanted.
        attempt: of which attempt of the job; a supervisor takes it in all.

    Raises:
        ConnectionError: it was not reached in time, or has refused the command.
    """
    async with _channel(address, leader, tls) as channel:
        call = channel.unary_unary(COMMAND_METHOD)
        metadata = ((ATTEMPT, str(attempt)),)
        try:
            await call(encode_command(command), timeout=COMMAND_SECONDS, wait_for_ready=True, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(_reason(error)) from None


def _channel(address: str, leader: str, tls: Certificates) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, *channel_security(leader, tls, _SIZES))


def server_credentials(tls: Certificates) -> grpc.ServerCredentials:
    """Returns what a port needs that only hosts of the job may use. Raises ValueError."""
    return grpc.ssl_server_credentials([(tls.key, tls.certificate)], tls.ca, require_client_auth=True)


def channel_security(
    leader: str, tls: Certificates, sizes: Sequence[tuple[str, int]]
) -> tuple[grpc.ChannelCredentials, list[tuple[str, int | str]]]:
    """Returns credentials and options of a channel to such a port, at which `leader` and no other host answers."""
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return credentials, [*sizes, *CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", leader)]


def certified_host(context: grpc.ServicerContext | grpc.aio.ServicerContext[bytes, bytes]) -> str:
    """Returns the name of the host whose certificate the caller has shown."""
    return bytes(next(iter(context.peer_identities() or ()))).decode()


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error)
