"""What carries a connection's bytes: a plain socket, or TLS on top of one. Both never block.

`PlainStream` passes descriptors along on Unix sockets. `TlsStream` begins its handshake once the socket is connected
and continues it whenever it is used; until it is done (`ready`) nothing is sent or received. While TLS itself waits to
write, `wants_write` is set. Bytes that are decrypted and not read yet are `pending`: select does not see them.

TLS is of version 1.3 only. The server shows a certificate. The client accepts it if it was signed by the CA that it was
given (and by no other: the system's CAs do not count) and names the host or IP of the address that it dials. Who the
client is, it proves with the secret, as without TLS. `binding` is the SHA-256 of the server's certificate, equal at
both ends unless a third party sits between them; the handshake that follows mixes it into its proofs (see `endpoints`).
"""

from __future__ import annotations

import array
import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import FeedError, ProtocolError
from headrace.feed.descriptors import Descriptors

MAX_DESCRIPTORS = 4
TCP_INFO_BYTES = 60  # of struct tcp_info, up to the fields that `has_vanished` reads
VANISHED_MS, VANISHED_PROBES = 5_000, 3
_RECORD = 16 << 10  # plain bytes of a TLS record
_CMSG_CLOEXEC = 0x40000000  # Linux's MSG_CMSG_CLOEXEC; the socket module names it from Python 3.11 on


@dataclass(frozen=True)
class ServerTls:
    """The server's end. `digest`: SHA-256 of its certificate."""

    context: ssl.SSLContext
    digest: bytes


@dataclass(frozen=True)
class ClientTls:
    """The client's end. `host`: name or IP that the certificate must hold."""

    context: ssl.SSLContext
    host: str


def server_tls(certificate: Path, key: Path) -> ServerTls:
    """Loads a server's certificate (PEM, with its chain behind it) and private key (PEM, not encrypted).

    Raises:
        FeedError: one of them cannot be read, or they do not belong together.
    """

    def refuse() -> str:
        raise FeedError(f"the private key {key} is encrypted", hint="a server cannot ask for a passphrase: decrypt it")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key, refuse)
        leaf = certificate.read_text().partition("-----BEGIN CERTIFICATE-----")
        pem = leaf[1] + leaf[2].partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
        return ServerTls(context, hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise FeedError(f"cannot use the certificate {certificate} with the key {key}: {_reason(error)}") from error


def client_tls(ca: str, host: str) -> ClientTls:
    """Loads the CA (PEM) that must have signed the server's certificate.

    Raises:
        FeedError: it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies the certificate and its host name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise FeedError(f"cannot read the CA of the feed servers from {ca}: {_reason(error)}") from error
    return ClientTls(context, host)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class TlsRefused(ProtocolError):
    """The other end has a wrong certificate, or no TLS; a new attempt will not help."""


def configure_tcp(connection: socket.socket) -> None:
    """Has small frames sent at once, and the kernel notice within seconds that the host of a silent peer has vanished.

    There is no TCP_USER_TIMEOUT: Linux also closes a connection by it whose peer is frozen and has no room for what was
    sent, though the peer's kernel answers. While something is to be sent there are no keepalive probes; see
    `has_vanished`.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def has_vanished(info: bytes) -> bool:
    """Returns whether the other end's kernel has left what was sent unanswered: its host, or the way to it, is gone.

    The kernel of a frozen or stopped process answers, also that there is no room.

    Args:
        info: the first `TCP_INFO_BYTES` bytes, or more, of the connection's TCP_INFO (Linux); empty when it is closed.
    """
    if len(info) < TCP_INFO_BYTES:
        return False
    retransmits, probes = info[2], info[3]  # tcpi_retransmits, tcpi_probes: in a row, since the last acknowledgement
    silence = int.from_bytes(info[56:60], sys.byteorder)  # tcpi_last_ack_recv, milliseconds
    return max(retransmits, probes) >= VANISHED_PROBES and silence >= VANISHED_MS


class PlainStream:
    """A socket as it is. Raises BlockingIOError when nothing can be done now, OSError when it broke.

    Attributes:
        ready: whether there is no handshake any more.
        authentic: whether what arrives is surely what was sent.
        closed_to_others: whether nobody between the ends can read or change it.
        wants_write, pending, binding: see the module.
    """

    ready = True
    authentic = False
    wants_write = False
    pending = 0
    binding = b""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._expected = 1
        self.closed_to_others = connection.family == socket.AF_UNIX

    def fileno(self) -> int:
        """Descriptor of the socket, -1 when closed."""
        return self._socket.fileno()

    @property
    def addresses(self) -> tuple[str, str]:
        """This end's address and the other's, as the kernel has them. Raises OSError when it is not connected."""
        return socket_address(self._socket.getsockname()), socket_address(self._socket.getpeername())

    def error(self) -> int:
        """Returns, and clears, the socket's pending error number."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def tcp_info(self, size: int) -> bytes:
        """Returns the kernel's TCP_INFO of a connection; nothing when it is closed."""
        return b"" if self.fileno() < 0 else self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def expect(self, size: int) -> None:
        """Sets that a poll need not report less than `size` bytes, which are sure to come: one wake-up
        for many packets."""
        if size != self._expected and self._socket.family != socket.AF_UNIX:
            self._expected = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def advance(self) -> None:
        """Goes on with the handshake. Raises ProtocolError if it fails, TlsRefused if it always will."""

    def send(self, parts: Sequence[memoryview], descriptors: Sequence[int] = ()) -> int:
        """Sends some of `parts`, and all descriptors with the first byte. Returns the number of bytes sent."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        return self._socket.sendmsg(parts, ancillary, socket.MSG_NOSIGNAL)

    def receive(self, size: int) -> tuple[bytes, list[int]]:
        """Receives at most `size` bytes, and the descriptors that came with them; no bytes at the end.

        Raises:
            ProtocolError: more descriptors came than a message may have.
        """
        data, ancillary, flags, _ = self._socket.recvmsg(size, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), _CMSG_CLOEXEC)
        descriptors = Descriptors()
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += array.array("i", content[: len(content) - len(content) % 4])
        if flags & socket.MSG_CTRUNC:
            count = len(descriptors)
            descriptors.close()
            if count < MAX_DESCRIPTORS:  # there was room for them in the message, and none in this process
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise ProtocolError("a peer passed more descriptors than allowed")
        return data, descriptors.release()

    def receive_into(self, target: memoryview) -> int:
        """Receives into memory. Returns the number of bytes, 0 at the end."""
        return self._socket.recv_into(target)


class TlsStream(PlainStream):
    """TLS 1.3.

    Args:
        connection: a TCP socket, connected or about to be.
        tls: this end's part.
    """

    authentic = True

    def __init__(self, connection: socket.socket, tls: ServerTls | ClientTls) -> None:
        super().__init__(connection)
        self.ready, self.closed_to_others = False, True
        self._side = tls
        self._tls: ssl.SSLSocket | None = None
        self.wants_write = isinstance(tls, ClientTls)  # a client speaks first, as soon as it is connected

    def expect(self, size: int) -> None:
        """See PlainStream. Bytes on the wire and bytes inside are not the same here, so nothing is set."""

    @property
    def pending(self) -> int:  # type: ignore[override]
        """Decrypted bytes that wait here."""
        return self._tls.pending() if self._tls is not None and self.ready else 0

    def _wrapped(self) -> ssl.SSLSocket:
        if self._tls is None:
            name = self._side.host if isinstance(self._side, ClientTls) else None
            self._tls = self._side.context.wrap_socket(
                self._socket,
                server_side=name is None,
                server_hostname=name,
                do_handshake_on_connect=False,
            )
            self._socket = self._tls
        return self._tls

    def advance(self) -> None:
        """See PlainStream."""
        if self.ready:
            return
        self.wants_write = False
        try:
            with self._translated():
                self._wrapped().do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise TlsRefused(f"its certificate is not accepted: {error.verify_message.rstrip('.')}") from error
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"):
                raise TlsRefused("it does not speak TLS 1.3") from error
            raise ProtocolError(f"no TLS connection: {_reason(error)}") from error
        self.ready = True
        certificate = self._wrapped().getpeercert(binary_form=True)
        self.binding = (
            self._side.digest if isinstance(self._side, ServerTls) else hashlib.sha256(certificate or b"").digest()
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Makes what a plain socket raises of what TLS raises when it has to wait or the other end is gone."""
        try:
            yield
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_write = not self.ready
            raise BlockingIOError from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise ConnectionResetError("closed by the peer") from error

    def send(self, parts: Sequence[memoryview], descriptors: Sequence[int] = ()) -> int:
        """See PlainStream. There are no descriptors on TCP."""
        assert not descriptors
        self.advance()
        tls, total = self._wrapped(), 0
        try:
            with self._translated():
                for piece in _records(parts):
                    rest = piece
                    while rest:
                        count = tls.send(rest)
                        total += count
                        rest = rest[count:]
        except BlockingIOError:
            if not total:
                raise
        return total

    def receive(self, size: int) -> tuple[bytes, list[int]]:
        """See PlainStream."""
        self.advance()
        with self._decrypting():
            return self._wrapped().recv(size), []

    def receive_into(self, target: memoryview) -> int:
        """See PlainStream."""
        self.advance()
        with self._decrypting():
            return self._wrapped().recv_into(target)

    @contextlib.contextmanager
    def _decrypting(self) -> Iterator[None]:
        try:
            with self._translated():
                yield
        except ssl.SSLError as error:
            raise ProtocolError(f"the TLS connection broke: {_reason(error)}") from error

    def send_unencrypted(self, data: bytes) -> None:
        """Sends a last message to a peer that has not begun to speak TLS."""
        with contextlib.suppress(OSError):
            socket.socket.send(self._socket, data, socket.MSG_NOSIGNAL)


def socket_address(name: tuple[str, int] | str | bytes) -> str:
    """Returns a socket's name as a text that both ends have of it. Raises ValueError if the host is no IP address."""
    if not isinstance(name, tuple):
        return f"unix:{os.fsdecode(name)}".replace("\0", "@")
    host = ipaddress.ip_address(name[0].partition("%")[0])  # the zone is each host's own
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return f"[{host}]:{name[1]}" if mapped is None and host.version == 6 else f"{mapped or host}:{name[1]}"


def _records(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """Joins small pieces with what follows them, so that no record is nearly empty.

    What TLS could not send must come again with at least its bytes: it does, from the same place, joined in the same
    way or to something longer.
    """
    joined: list[memoryview] = []
    size = 0
    for part in parts:
        rest = part
        if size or part.nbytes < _RECORD:
            joined.append(part[: _RECORD - size])
            rest = part[_RECORD - size :]
            size += joined[-1].nbytes
            if size < _RECORD:
                continue
            yield memoryview(b"".join(joined))
            joined, size = [], 0
        if rest:
            yield rest
    if joined:
        yield memoryview(b"".join(joined))
