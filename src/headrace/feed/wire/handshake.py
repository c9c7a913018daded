"""Who may talk: a challenge and an answer, in both directions.

The server sends a random nonce; the client answers with its own nonce and a MAC over both; the server proves itself
with a MAC of its own. The secret never travels, a recorded exchange is of no use for another connection, and neither
side trusts a message before it has checked the other's MAC.

    server -> client   Challenge(version, server nonce)
    client -> server   Hello(version, client nonce, HMAC-SHA256(secret, "client" || fields), ...)
    server -> client   Welcome(HMAC-SHA256(secret, "server" || nonces), ...)

A third party in the middle cannot pass the proofs on. Under TLS their key is the secret bound to the server's
certificate. Without, the client's proof holds the address that it has dialled, and the server takes it only if the
connection came to that address, or to one that it is told to be reached by (`advertised`).

What follows on a TCP connection without TLS is sealed (`frames.Seal`), with keys made of secret and nonces.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from headrace.errors import ProtocolError
from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed.wire.messages import VERSION, Challenge, Hello, Message, Refused, Welcome

NONCE_BYTES = 32
HANDSHAKE_SECONDS = 5.0


class RefusedByServer(ProtocolError):
    """The server refuses this client; asking again will not help."""


def _mac(secret: bytes, *fields: object) -> bytes:
    return hmac.new(secret, msgspec.msgpack.encode(fields), hashlib.sha256).digest()


def bind(secret: bytes, binding: bytes) -> bytes:
    """Returns the key for a connection: the secret itself, or derived from it and the TLS certificate's SHA-256."""
    return hmac.new(secret, b"headrace tls" + binding, hashlib.sha256).digest() if binding else secret


class SessionKeys(NamedTuple):
    """Keys of a connection's seals, one for each direction."""

    client: bytes
    server: bytes


def session_keys(secret: bytes, offered: Challenge, hello: Hello) -> SessionKeys:
    """Derives the keys of a connection from its handshake."""
    nonces = (offered.nonce, hello.nonce)
    return SessionKeys(_mac(secret, "client frames", *nonces), _mac(secret, "server frames", *nonces))


def refusal(message: Refused) -> RefusedByServer:
    """Returns what is raised when a server refuses, in the handshake or later."""
    return RefusedByServer(f"the feed server refuses this client: {message.reason}")


def challenge() -> Challenge:
    """Makes a server's first message."""
    return Challenge(VERSION, os.urandom(NONCE_BYTES))


def answer(
    secret: bytes, offered: Challenge, client: str, rank: int = 0, world_size: int = 1, dialled: str = ""
) -> Hello:
    """Makes a client's answer. Raises RefusedByServer if the server speaks another version."""
    if offered.version != VERSION:
        raise RefusedByServer(f"the feed server speaks protocol {offered.version}, this client {VERSION}")
    nonce = os.urandom(NONCE_BYTES)
    mac = _mac(secret, "client", VERSION, offered.nonce, nonce, client, rank, world_size, dialled)
    return Hello(VERSION, nonce, mac, client, rank, world_size, dialled)


def check_answer(secret: bytes, offered: Challenge, hello: Hello, reached: Collection[str] = ()) -> str:
    """Returns why a client is refused, or an empty string.

    Args:
        secret: see `bind`.
        offered: what this connection was offered.
        hello: what it answered.
        reached: addresses that it may have dialled; none under TLS, where they do not matter.
    """
    if hello.version != VERSION:
        return f"this feed server speaks protocol {VERSION}, the client {hello.version}"
    fields = (hello.client, hello.rank, hello.world_size, hello.dialled)
    expected = _mac(secret, "client", VERSION, offered.nonce, hello.nonce, *fields)
    if len(hello.nonce) != NONCE_BYTES or not hmac.compare_digest(expected, hello.mac):
        return "wrong secret"
    if reached and hello.dialled not in reached:
        return (
            f"it dialled {hello.dialled}, and came to {' or '.join(reached)}: whoever is between could read and change "
            f"all that is sent. If that is meant, start the server with --advertise {hello.dialled}, or with TLS"
        )
    return ""


def welcome(secret: bytes, offered: Challenge, hello: Hello, host: str, executors: int) -> Welcome:
    """Makes the server's proof."""
    return Welcome(_mac(secret, "server", offered.nonce, hello.nonce, host, executors), host, executors)


class ClientHandshake:
    """A client's side, step by step: feed it what comes, send what it returns, until `welcome` is set."""

    def __init__(self, secret: bytes, client: str, rank: int = 0, world_size: int = 1) -> None:
        self._secret = secret
        self._identity = (client, rank, world_size)
        self._greeting: tuple[Challenge, Hello] | None = None
        self.keys: SessionKeys | None = None
        self.welcome: Welcome | None = None

    def step(self, message: Message, send: Callable[[Message], None], binding: bytes = b"", dialled: str = "") -> None:
        """Takes one message from the server.

        Args:
            message: what came.
            send: sends the answer.
            binding: of the connection's TLS, see `transport`.
            dialled: the address that the connection leads to.

        Raises:
            ProtocolError: the server refuses, or cannot prove itself.
        """
        if isinstance(message, Refused):
            raise refusal(message)
        if isinstance(message, Challenge) and self._greeting is None:
            self._secret = bind(self._secret, binding)
            self._greeting = message, answer(self._secret, message, *self._identity, dialled)
            send(self._greeting[1])
            return
        if isinstance(message, Welcome) and self._greeting is not None:
            proof = welcome(self._secret, *self._greeting, message.host, message.executors)
            if not hmac.compare_digest(proof.mac, message.mac):
                raise ProtocolError("the feed server could not prove that it holds the secret")
            self.keys = session_keys(self._secret, *self._greeting)
            self.welcome = message
            return
        raise ProtocolError(f"an unexpected {type(message).__name__} in the handshake")

    def hear(self, message: Message, channel: FramedConnection) -> None:
        """Takes one message from the server of a connection, as `step`, and trusts it when it has proved itself."""
        self.step(message, channel.send, channel.stream.binding, channel.stream.addresses[1])
        if self.keys is not None:
            channel.trust(*self.keys)
