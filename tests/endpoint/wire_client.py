"""A client that writes and reads the bytes of HTTP itself, so that a test sees what is really sent."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.endpoint.http.http_message import Handler, HttpLimits
from headrace.endpoint.http.http_server import HttpServer, listen
from patience import allowed

SECONDS = 20.0


@contextmanager
def serving(
    handle: Handler,
    limits: HttpLimits | None = None,
    tls: ssl.SSLContext | None = None,
    address: str = "127.0.0.1",
) -> Iterator[HttpServer]:
    """A server on a free port of an address."""
    server = HttpServer(handle, listen(address, 0), limits=limits, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Wire:
    """A connection to a server."""

    def __init__(self, port: int, sock: socket.socket | None = None) -> None:
        self.sock = sock or socket.create_connection(("127.0.0.1", port), allowed(SECONDS))
        self.sock.settimeout(allowed(SECONDS))
        self.buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next reply (also of a `100 Continue`)."""
        while b"\r\n\r\n" not in self.buffer:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(f"closed after {self.buffer!r}")
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}

    def body(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(f"closed after {len(self.buffer)} bytes of {count}")
            self.buffer += data
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def reply(self) -> tuple[int, dict[str, str], bytes]:
        """The next reply with its body, which has a length."""
        status, headers = self.head()
        return status, headers, self.body(int(headers.get("content-length", "0")))

    def rest(self) -> bytes:
        """What comes until the server closes."""
        data = self.buffer
        while part := self.sock.recv(65536):
            data += part
        self.buffer = b""
        return data

    def ask(self, text: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Sends a request of lines, and returns its reply."""
        self.send(text.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        return self.reply()


def until(condition: object, seconds: float = 10.0) -> None:
    """Waits until a condition (a callable) holds."""
    began = time.monotonic()
    assert callable(condition)
    while not condition():
        assert time.monotonic() - began < allowed(seconds), "it did not come about in time"
        time.sleep(0.005)
