"""Where the workers are, and who may talk: a shared secret is proved in both directions and never travels.

Workers are in this process's own children, or on hosts with feed servers.

Remote workers come from `workers="tcp://h1:7070,h2:7070"` or from HEADRACE_FEED, which holds such a list or the path
of the `feed.json` that a job's agent keeps up to date. That file is read again whenever it has changed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from headrace.errors import FeedError, ProtocolError
from headrace.feed.identifiers import CA_VARIABLE, FEED_VARIABLE, SECRET_VARIABLE
from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed.wire.messages import VERSION, Challenge, Hello, Message, Refused, Welcome
from headrace.feed.wire.transport import client_tls

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


MIN_SECRET = 16
MAX_PORT = 65535

State = Literal["starting", "ready", "leaving", "lost"]


@dataclass(frozen=True)
class Endpoint:
    """One feed server.

    Attributes:
        name: for messages, e.g. ``algo-1``.
        address: ``tcp://ip:port`` or ``unix:@name``.
        state: what is known of it.
        certified: name or IP that its certificate must hold: a host of a job shows its name in the job.
    """

    name: str
    address: str
    state: State = "ready"
    certified: str = ""


NOWHERE = Endpoint("", "")  # of workers that are no feed servers


class _FileHost(msgspec.Struct):  # what is read of `instance.launch_plan.FeedHosts`
    host: str
    address: str
    state: State


class _File(msgspec.Struct):
    secret_file: str
    hosts: tuple[_FileHost, ...]


_files = msgspec.json.Decoder(_File)


class Endpoints:
    """The feed servers of a loader.

    Args:
        source: a list of addresses, or the path of a feed.json.
        secret_file: file with the secret (hex), needed for a list of addresses.
        tls_ca: CA file; with it TCP connections are TLS. By default HEADRACE_FEED_TLS_CA.

    Raises:
        FeedError: the list or a file cannot be read, or there is no secret.
    """

    def __init__(self, source: str, secret_file: str | None = None, tls_ca: str | None = None) -> None:
        if not isinstance(source, str):
            raise FeedError(
                f"workers must be a text, got {source!r}", hint='write workers="tcp://host1:7070,host2:7070"'
            )
        self.tls_ca = tls_ca or os.environ.get(CA_VARIABLE, "")
        if self.tls_ca:
            client_tls(self.tls_ca, "")  # checked here, where the user sees the error, and not in the receiver
        self._path: Path | None = None
        self._seen: tuple[int, int] | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        if source.startswith(("tcp://", "unix:")):
            self._endpoints = tuple(_endpoint(part) for part in source.split(",") if part.strip())
            secret_file = secret_file or os.environ.get(SECRET_VARIABLE)
            if not secret_file:
                raise FeedError(
                    f"no secret for the feed servers {source}",
                    hint=f"set {SECRET_VARIABLE} to the file that the servers were started with",
                )
            self.secret = read_secret(secret_file)
            return
        if not source.startswith(("/", ".")) and not os.path.exists(source):
            raise FeedError(
                f"workers={source!r} is neither a list of addresses nor a file",
                hint=f'write workers="tcp://{source if ":" in source else "host:7070"}", or workers="local"',
            )
        self._path = Path(source)
        self.current()
        self.secret = read_secret(self._secret_file)

    def current(self) -> tuple[Endpoint, ...]:
        """Returns the feed servers as they are known now."""
        if self._path is None:
            return self._endpoints
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                file = _files.decode(self._path.read_bytes())
                self._secret_file = file.secret_file
                self._endpoints = tuple(Endpoint(host.host, host.address, host.state, host.host) for host in file.hosts)
                self._seen = seen
        except (OSError, msgspec.DecodeError) as error:
            raise FeedError(
                f"cannot read {self._path}: {error}", hint=f"unset {FEED_VARIABLE} to work locally"
            ) from error
        return self._endpoints


def _endpoint(address: str) -> Endpoint:
    address = address.strip()
    if not address.startswith("unix:"):
        address = address if address.startswith("tcp://") else f"tcp://{address}"
        return Endpoint(address.removeprefix("tcp://"), address, certified=split_address(address)[0])
    return Endpoint(address, address)


def read_secret(path: str | Path) -> bytes:
    """Reads a secret: hexadecimal digits.

    Raises:
        FeedError: it cannot be read, or is shorter than 16 bytes; or it is this user's own file, and others may read or
            write it, as ssh refuses such a key.
    """
    try:
        with Path(path).open() as file:
            secret, status = bytes.fromhex(file.read()), os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not hold hexadecimal digits"
        missing = isinstance(error, FileNotFoundError)
        hint = f"make one: headrace feed secret {path}" if missing else "name a file that headrace feed secret has made"
        raise FeedError(f"cannot read the feed's secret from {path}: {why}", hint=hint) from error
    if len(secret) < MIN_SECRET:
        raise FeedError(
            f"the feed's secret in {path} has {len(secret)} bytes, at least {MIN_SECRET} are needed",
            hint="make a new file, the same for all hosts: headrace feed secret FILE",
        )
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        raise FeedError(
            f"others than you may read or write the feed's secret in {path}: its mode is {status.st_mode & 0o777:04o}",
            hint=f"chmod 600 {path}; if others may have read it, make a new one: headrace feed secret FILE",
        )
    return secret


def split_address(address: str) -> tuple[str, int]:
    """Splits ``tcp://host:port`` or ``host:port``, with brackets around an IPv6 address.

    Raises:
        FeedError: there is no host, or no port.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit() or int(port) > MAX_PORT:
        raise FeedError(f"{address!r} is not HOST:PORT", hint='e.g. 127.0.0.1:7070, h1:7070 or "[::1]:7070"')
    return host.strip("[]"), int(port)


def find(workers: str | None, secret_file: str | None = None, tls_ca: str | None = None) -> Endpoints | None:
    """Finds the remote workers of a loader; None when it must use local processes.

    Args:
        workers: ``"local"``, a list of addresses, the path of a feed.json, or None for HEADRACE_FEED.
        secret_file, tls_ca: see `Endpoints`.
    """
    source = workers if workers is not None else os.environ.get(FEED_VARIABLE, "")
    if isinstance(source, str) and source in ("", "local"):
        return None
    endpoints = Endpoints(source, secret_file, tls_ca)
    return endpoints if endpoints.current() else None
