"""What the proxy does with CONNECT: services of AWS are this server itself, other hosts are refused or tunnelled."""

from __future__ import annotations

import base64
import contextlib
import hmac
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.endpoint.http.aws_names import is_aws_name
from headrace.endpoint.http.http_message import HttpReply
from headrace.endpoint.http.proxy_authority import ProxyAuthority
from headrace.endpoint.http.request_head import RequestHead

USER = "headrace"
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_CONNECT_SECONDS = 15.0
_TUNNEL_IDLE_SECONDS = 900.0
_TUNNEL_BYTES = 1 << 16


@dataclass(frozen=True)
class Terminated:
    """The connection is to a service of AWS: this server is that host."""

    host: str
    context: ssl.SSLContext


@dataclass(frozen=True)
class Tunnelled:
    """The connection is to another host, to which this socket is connected."""

    upstream: socket.socket


@dataclass(frozen=True)
class Refused:
    """There is no connection."""

    reply: HttpReply


class Proxy:
    """Decides about CONNECT.

    Args:
        authority: makes certificates for services of AWS.
        tunnels: tells whether a connection to another host and port is made; None: to no other.
    """

    def __init__(self, authority: ProxyAuthority, tunnels: Callable[[str, int], bool] | None = None) -> None:
        self.authority = authority
        self.token = secrets.token_urlsafe(24)
        self._expected = base64.b64encode(f"{USER}:{self.token}".encode())
        self._tunnels = tunnels or (lambda host, port: False)

    def url(self, address: str, port: int) -> str:
        """Returns the proxy's URL for the program that may use it; it holds the token.

        Args:
            address: where the server listens.
            port: where the server listens.
        """
        return f"http://{USER}:{self.token}@{f'[{address}]' if ':' in address else address}:{port}"

    def decide(self, head: RequestHead, prove: Callable[[], None]) -> Terminated | Tunnelled | Refused:
        """Returns what is done with a request for a connection; `Tunnelled` is connected already.

        Args:
            head: of the request.
            prove: is called when its sender has shown the token.
        """
        if not self._authorised(head):
            return Refused(HttpReply(
                407, (("Proxy-Authenticate", 'Basic realm="headrace serve"'),),
                b"This proxy serves the program that headrace serve started.\n",
            ))  # fmt: skip
        prove()
        found = _AUTHORITY.fullmatch(head.raw_path)
        if found is None or not 0 < int(found[2]) < 65536:
            return _refused(400, "CONNECT needs host:port")
        host, port = found[1].lower().strip("[]"), int(found[2])
        if is_aws_name(host) and port == 443:
            return Terminated(host, self.authority.context_for(host))
        if is_aws_name(host) or not self._tunnels(host, port):
            words = "it is no service of AWS (--tunnel HOST allows it)"
            if is_aws_name(host):
                words = "services of AWS are this machine, on port 443"
            return _refused(403, f"headrace serve does not connect to {host}:{port}: {words}")
        try:
            upstream = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            return _refused(502, f"no connection to {host}:{port}: {error.strerror or error}")
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Tunnelled(upstream)

    def _authorised(self, head: RequestHead) -> bool:
        scheme, _, given = head.headers.get("proxy-authorization").partition(" ")
        return scheme.lower() == "basic" and hmac.compare_digest(given.strip().encode(), self._expected)


def _refused(status: int, reason: str) -> Refused:
    # Most clients show the words after the status, and nothing else.
    return Refused(HttpReply(status, (("Content-Type", "text/plain"),), f"{reason}\n".encode(), reason=reason))


class _Activity:
    """When a byte was last carried, in either direction."""

    def __init__(self) -> None:
        self.last = time.monotonic()


def tunnel(client: socket.socket, upstream: socket.socket, early: bytes = b"") -> None:
    """Carries bytes in both directions until both ends have closed, one breaks, or nothing moves for 15 minutes.

    Args:
        client: who asked for the connection.
        upstream: whom it is with.
        early: bytes of the client that were read already.
    """
    activity = _Activity()
    back = threading.Thread(target=_carry, args=(upstream, client, activity), name="http-tunnel", daemon=True)
    back.start()
    try:
        upstream.settimeout(_CONNECT_SECONDS)
        upstream.sendall(early)
        _carry(client, upstream, activity)
    except OSError:
        _cut(client, upstream)
    back.join()


def _carry(source: socket.socket, sink: socket.socket, activity: _Activity) -> None:
    source.settimeout(_CONNECT_SECONDS)  # both directions look at the common activity that often
    try:
        while True:
            try:
                data = source.recv(_TUNNEL_BYTES)
            except TimeoutError:
                if time.monotonic() - activity.last > _TUNNEL_IDLE_SECONDS:
                    return _cut(source, sink)
                continue
            activity.last = time.monotonic()
            if not data:
                return sink.shutdown(socket.SHUT_WR)
            sink.sendall(data)
    except OSError:
        return _cut(source, sink)


def _cut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
