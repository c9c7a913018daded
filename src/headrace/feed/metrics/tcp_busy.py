"""How busy the connections to clients on other hosts are, as the kernel counts it.

TCP_INFO (Linux 4.10) has, for every connection, the time in which it had bytes to send or to be acknowledged, and how
much of that the receiver's window did not let it. The difference is time that the network took.
"""

from __future__ import annotations

import struct
from typing import Protocol

_BUSY = struct.Struct("=QQ")  # microseconds: busy, and of these limited by the receiver's window
_BUSY_OFFSET = 168  # of tcpi_busy_time in struct tcp_info
_INFO_BYTES = _BUSY_OFFSET + _BUSY.size
SHARE_SECONDS = 1.0


class Connection(Protocol):
    """A connection, see `wire.framed_connection`."""

    bytes_sent: int

    def tcp_info(self, size: int) -> bytes:
        """Returns the kernel's TCP_INFO; empty when the connection is closed."""


class LinkUse:
    """Sums over the connections of a server. One that has ended is not kept, also when the sums are never taken."""

    def __init__(self) -> None:
        self._seen: dict[Connection, tuple[int, float]] = {}  # bytes and busy seconds that were added up
        self._sent, self._longest = 0, 0.0
        self._busy: dict[Connection, float] = {}  # busy seconds when the share was worked out
        self._share = self._shared_at = 0.0

    def share(self, now: float) -> float:
        """Returns which part of the time the busiest connection was sending, over about the last second.

        Args:
            now: monotonic seconds.
        """
        length = now - self._shared_at
        if length >= SHARE_SECONDS:
            before, self._busy = self._busy, {}
            for connection in self._seen:
                self._busy[connection] = busy_seconds(connection.tcp_info(_INFO_BYTES))
            spent = [busy - before[connection] for connection, busy in self._busy.items() if connection in before]
            self._share = min(1.0, max(spent, default=0.0) / length)
            self._shared_at = now
        return self._share

    def begin(self, connection: Connection) -> None:
        """A client has come over TCP."""
        self._seen[connection] = (0, 0.0)

    def end(self, connection: Connection) -> None:
        """Its connection is closed."""
        if connection in self._seen:
            self._add(connection)
            del self._seen[connection]

    def take(self) -> tuple[int, float]:
        """Returns the bytes that have left since the last time, and the seconds that the busiest connection took."""
        for connection in self._seen:
            self._add(connection)
        taken = self._sent, self._longest
        self._sent, self._longest = 0, 0.0
        return taken

    def _add(self, connection: Connection) -> None:
        bytes_before, busy_before = self._seen[connection]
        busy = max(busy_before, busy_seconds(connection.tcp_info(_INFO_BYTES)))
        self._sent += connection.bytes_sent - bytes_before
        self._longest = max(self._longest, busy - busy_before)
        self._seen[connection] = (connection.bytes_sent, busy)


def busy_seconds(info: bytes) -> float:
    """Returns the seconds of a TCP_INFO in which the network was busy; 0 for a closed connection's."""
    if len(info) < _INFO_BYTES:
        return 0.0
    busy: int
    limited: int
    busy, limited = _BUSY.unpack_from(info, _BUSY_OFFSET)
    return max(0, busy - limited) / 1e6
