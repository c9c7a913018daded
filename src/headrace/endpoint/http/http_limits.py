"""What a client may ask of the server: how large, how many, how slow."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.endpoint.http.http_message import BodyProblem


@dataclass(frozen=True)
class HttpLimits:
    """Limits of a server. Every wait of a connection is bounded by one of them.

    Attributes:
        head_bytes: request line and headers together.
        target_bytes: the request line's target.
        headers: their number.
        body_bytes: of one request; 5 GiB is what S3 takes in one PutObject.
        connections: open at once, each with a thread. One more takes the place of the oldest that has shown no key,
            else of the one that was idle the longest.
        idle_seconds: between two requests of a connection.
        kept_seconds: how long a connection may be idle, or its sender unknown, at least, before another one takes its
            place: in TLS's handshake, in a head, in a body that is needed to check its signature.
        head_seconds: from the first byte of a request to the end of its head; also for TLS's handshake.
        stall_seconds: without a byte, in the middle of a body or reply.
        slowest: bytes a second that a body or reply needs on average, after `pace_seconds`.
        pace_seconds: from when on `slowest` is asked for.
        drain_bytes: of a body that nobody read, to keep the connection.
        drain_seconds: at most for that, and to let a client read the last reply before its connection is closed.
    """

    head_bytes: int = 1 << 16
    target_bytes: int = 1 << 14
    headers: int = 128
    body_bytes: int = 5 << 30
    connections: int = 256
    idle_seconds: float = 75.0
    kept_seconds: float = 1.0
    head_seconds: float = 15.0
    stall_seconds: float = 30.0
    slowest: float = 1000.0
    pace_seconds: float = 60.0
    drain_bytes: int = 1 << 20
    drain_seconds: float = 2.0


class Pace:
    """Counts the bytes of one body or reply, and ends one that is slower than the limits allow."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self._bytes = 0

    def moved(self, count: int) -> None:
        """Counts bytes.

        Raises:
            BodyProblem: they come or go too slowly.
        """
        self._bytes += count
        seconds = time.monotonic() - self._began
        if seconds > self._limits.pace_seconds and self._bytes < seconds * self._limits.slowest:
            raise BodyProblem(
                408,
                f"{self._bytes} bytes in {seconds:.0f} s; at least {self._limits.slowest:.0f} a second are asked for",
                closes=True,
            )
