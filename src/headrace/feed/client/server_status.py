"""Asking feed servers what they are doing: one short authenticated connection each, as a client makes them."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.errors import ProtocolError
from headrace.feed.client.remote_pool import connect_unix
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import Endpoint, Endpoints, split_address
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.handshake import ClientHandshake
from headrace.feed.wire.messages import decode_greeting
from headrace.feed.wire.transport import client_tls, configure_tcp

CLIENT = "headrace feed status"
MAX_AT_ONCE = 32


@dataclass(frozen=True)
class Answer:
    """The result of asking one server.

    Attributes:
        endpoint: the server.
        status: what it answered; None if it could not be asked.
        reason: why it could not be asked.
    """

    endpoint: Endpoint
    status: messages.Status | None
    reason: str = ""


def inquire(endpoints: Endpoints, timeout: float = 5.0) -> list[Answer]:
    """Asks all servers at the same time.

    Args:
        endpoints: the servers, and the secret.
        timeout: seconds for each.

    Returns:
        One answer for each, in order.
    """
    servers: Sequence[Endpoint] = endpoints.current()
    if not servers:
        return []
    with ThreadPoolExecutor(min(MAX_AT_ONCE, len(servers)), "headrace-inquiry") as pool:
        return list(pool.map(lambda endpoint: _ask(endpoint, endpoints, timeout), servers))


def _ask(endpoint: Endpoint, endpoints: Endpoints, timeout: float) -> Answer:
    deadline = time.monotonic() + timeout
    try:
        channel = _connect(endpoint, endpoints.tls_ca, timeout)
    except OSError as error:
        return Answer(endpoint, None, (error.strerror or str(error)).lower())
    try:
        return Answer(endpoint, _converse(channel, endpoints.secret, deadline))
    except ProtocolError as error:
        return Answer(endpoint, None, error.message)
    except TimeoutError:
        return Answer(endpoint, None, f"no answer within {timeout:g} s")
    except ConnectionClosed as error:
        return Answer(endpoint, None, f"connection lost: {error}")
    finally:
        channel.close()


def _connect(endpoint: Endpoint, tls_ca: str, timeout: float) -> FramedConnection:
    if endpoint.address.startswith("unix:"):
        return connect_unix(endpoint.address).channel
    host, port = split_address(endpoint.address)
    tls = client_tls(tls_ca, endpoint.certified) if tls_ca else None
    connection = socket.create_connection((host, port), timeout)
    configure_tcp(connection)
    return FramedConnection(connection, handshake=decode_greeting, tls=tls)


def _converse(channel: FramedConnection, secret: bytes, deadline: float) -> messages.Status:
    handshake = ClientHandshake(secret, CLIENT)
    while True:
        for frame in channel.wait(max(0.0, deadline - time.monotonic())):
            frame.discard()
            if isinstance(frame.message, messages.Status) and handshake.welcome is not None:
                return frame.message
            handshake.hear(frame.message, channel)
            if handshake.welcome is not None:
                channel.send(messages.StatusRequest())
